"""Where commands put their pages: of simulations, of sweeps, of a folder of the paper."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from report.material import columns, data_of

from asyncsgd import cli
from asyncsgd.core.events import Outcome
from asyncsgd.experiments import paper_page
from asyncsgd.experiments.common import Claim, Verdict

TWO = """
[task]
kind = "quadratic"
workers = 2
[durations]
kind = "fixed"
seconds = [1.0, 4.0]
[[method]]
kind = "async_sgd"
stepsize = 0.1
[[method]]
kind = "minibatch_sgd"
stepsize = 0.1
[run]
iterations = 400
"""
GRID = """
[sweep]
stepsizes = [0.01, 0.1, 5.0]
target = 1e-3
"""


@pytest.fixture
def command(monkeypatch, capsys, tmp_path):
    """Run it in an empty folder: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["asyncsgd", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


def test_a_simulation_has_a_page_of_its_methods_side_by_side(command):
    Path("two.toml").write_text(TWO, encoding="utf-8")
    code, out, err = command("simulate", "two.toml", "--output", "two.html")
    assert (code, err) == (0, "")
    assert out.endswith("Page: two.html\n")
    text = Path("two.html").read_text("utf-8")
    runs = data_of(text)["runs"]
    assert [run["name"] for run in runs] == ["async_sgd", "minibatch_sgd"]
    assert [(columns(run["jobs"])["outcome"] == Outcome.APPLIED).sum() for run in runs] == [400, 400]
    assert "by Theorem 1" in text  # the file knows the task, and so does the page


def test_without_being_asked_nothing_is_written(command):
    Path("two.toml").write_text(TWO + GRID, encoding="utf-8")
    assert command("simulate", "two.toml")[0] == command("sweep", "two.toml")[0] == 0
    assert [path.name for path in Path().iterdir()] == ["two.toml"]


def test_a_sweep_has_a_page_of_every_method_at_its_best_step_up_to_the_target(command):
    Path("two.toml").write_text(TWO + GRID, encoding="utf-8")
    code, out, err = command("sweep", "two.toml", "--json", "--output", "best.html")
    assert (code, err) == (0, "Page: best.html\n")
    rows, data = json.loads(out), data_of(Path("best.html").read_text("utf-8"))
    (norms,) = [chart for chart in data["metrics"] if chart["name"] == "gradient_norm"]
    assert norms["target"] == 1e-3
    for row, run, line in zip(rows, data["runs"], norms["lines"], strict=True):
        assert run["name"] == row["method"]
        assert set(np.unique(run["step"]["value"])) <= {row["stepsize"]}
        assert line["iteration"][-1] == row["iterations_to_target"] < 400


def test_a_page_that_cannot_be_written_is_one_sentence(command):
    Path("two.toml").write_text(TWO, encoding="utf-8")
    code, _, err = command("simulate", "two.toml", "--output", ".")
    assert code == 2
    assert err == "asyncsgd: --output = '.' cannot be written (Is a directory); pass another path\n"


def test_a_page_of_the_paper_goes_where_it_is_wanted(command):
    Path("paper").mkdir()
    made = paper_page.write([Claim(3, "A claim", Verdict.HOLDS)], "paper").read_text("utf-8")
    assert command("report", "paper", "--output", "mine.html", "--title", "Ours & <theirs>")[1] == "Page: mine.html\n"
    mine = Path("mine.html").read_text("utf-8")
    assert "<title>Ours &amp; &lt;theirs&gt;</title>" in mine
    assert "<h1>Ours &amp; &lt;theirs&gt;</h1>" in mine
    assert mine.replace("Ours &amp; &lt;theirs&gt;", "The paper, reproduced") == made
    assert Path("paper/index.html").read_text("utf-8") == made
    assert json.loads(command("report", "paper", "--json", "--output", "copy.html")[1])["page"] == "copy.html"
    assert Path("copy.html").read_text("utf-8") == made
