"""Claims that hold, raise and die: all are reported, in the page, in claims.json and by the exit code."""

import json
import sys
import warnings
from html.parser import HTMLParser

import pytest

from asyncsgd import cli
from asyncsgd.cli import paper
from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.experiments import paper_page, runner
from asyncsgd.experiments.common import Verdict
from asyncsgd.experiments.runner import Experiment

GOOD = """
import numpy as np
from asyncsgd.experiments.common import Claim, Figure, Table, Verdict

def check(progress):
    progress(0.5)
    return Claim(
        number={number}, title="A & B < C", paper="says <so>", measured="measured it", verdict=Verdict.CORRECTED,
        summary="in short", refuted_by="a <counterexample>", why="because",
        values={{"slope": np.float64(0.5), "never": float("inf"), "steps": np.arange(2)}},
        tables=(Table("a caption", ("a", "b"), ((1, 2.5), (None, "x<y"))),),
        figures=(Figure("fake-{number}", "a drawing", lambda fig, ax: ax.plot([1, 2], [1, 4])),),
    )
"""
BAD = "def check(progress):\n    progress(0.1)\n    raise ZeroDivisionError('no <luck>')\n"
DEAD = "import os\n\ndef check(progress):\n    os._exit(3)\n"


@pytest.fixture
def fakes(tmp_path, monkeypatch):
    """Three claims that are no claims of ours."""
    home = tmp_path / "fakes"
    home.mkdir()
    for number, (name, text) in enumerate({"good": GOOD, "bad": BAD, "dead": DEAD}.items(), start=1):
        (home / f"fake_{name}.py").write_text(text.format(number=number) if name == "good" else text)
    monkeypatch.syspath_prepend(home)
    return {name: Experiment(number, name, f"fake_{name}") for number, name in ((1, "good"), (2, "bad"), (3, "dead"))}


def test_every_claim_of_the_paper_has_its_file():
    found = runner.experiments()
    assert [one.number for one in found] == list(range(1, 11))
    assert [one.number for one in runner.experiments([5, 3])] == [3, 5]
    with pytest.raises(BadParameter, match="only = 11 is not a claim; pass some of 1, 2"):
        runner.experiments([3, 11])


def test_a_claim_that_raises_does_not_stop_the_others(fakes, tmp_path):
    seen = []
    found = runner.run(
        [fakes["bad"], fakes["good"]], tmp_path / "out", processes=1, progress=lambda *news: seen.append(news)
    )
    good, bad = found
    assert (good.number, good.verdict, good.error) == (1, "holds with a correction", "")
    assert good.values == {"slope": 0.5, "never": None, "steps": [0, 1]}
    assert (bad.number, bad.title, bad.verdict) == (2, "bad", Verdict.UNJUDGED)
    assert "ZeroDivisionError: no <luck>" in bad.measured
    assert "in check" in bad.error
    assert seen == [(2, 0.1), (1, 0.5), (1, 1.0)]
    assert (tmp_path / "out" / "fake-1.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (tmp_path / "out" / "fake-1.svg").read_text("utf-8")


@pytest.mark.slow
def test_in_worker_processes_even_one_that_dies_is_reported(fakes, tmp_path):
    seen = []
    found = runner.run(list(fakes.values()), tmp_path, progress=lambda *news: seen.append(news))
    assert [claim.verdict for claim in found] == ["holds with a correction", Verdict.UNJUDGED, Verdict.UNJUDGED]
    assert "ZeroDivisionError" in found[1].error
    assert "died" in found[2].error
    assert {(1, 0.5), (1, 1.0), (2, 0.1)} <= set(seen)
    assert (tmp_path / "fake-1.png").exists()


class Reader(HTMLParser):
    """Open and closed tags, and the words."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.outside = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "link"):
            self.open.append(tag)
        self.outside += [value for name, value in attributes if name in ("src", "href") and "//" in (value or "")]

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)


def test_the_folder_holds_everything(fakes, tmp_path):
    found = runner.run([fakes["good"], fakes["bad"]], tmp_path, processes=1)
    page = paper_page.write(found, tmp_path)
    html = page.read_text("utf-8")
    reader = Reader(html)
    assert reader.open == []  # well-formed, and
    assert [link for link in reader.outside if "w3.org" not in link] == []  # nothing is fetched from outside
    words = " ".join(reader.words)
    for said in (
        "A & B < C",
        "says <so>",
        "measured it",
        "because",
        "a <counterexample>",
        "a caption",
        "x<y",
        "a drawing",
        "no <luck>",
    ):
        assert said in words
    assert html.index("Verdicts") < html.index("says &lt;so&gt;")
    assert html.count('class="badge warn"') == html.count('class="badge bad"') == 2
    assert '<a href="#s2">A &amp; B &lt; C</a>' in html
    assert 'id="s2"' in html

    rows = json.loads((tmp_path / "claims.json").read_text("utf-8"))
    wanted = ["number", "title", "paper", "measured", "summary", "refuted_by", "verdict", "why", "values", "figures"]
    assert [list(row) for row in rows] == [wanted, [*wanted, "error"]]
    assert rows[0]["values"]["never"] is None
    assert rows[1]["verdict"] == "could not be judged"


@pytest.mark.parametrize(
    ("values", "expected"),
    [("[object()]", None), ("{1: (np.bool_(True), np.nan, 'x', None)}", {"1": [True, None, "x", None]})],
)
def test_values_become_json_or_an_error_of_their_claim(values, expected, tmp_path, monkeypatch):
    start = "import numpy as np\nfrom asyncsgd.experiments.common import Claim, Verdict\n"
    text = f"{start}def check(progress):\n    return Claim(1, 't', Verdict.HOLDS, values={values})\n"
    (tmp_path / f"fake_{expected is None}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = runner.judge(Experiment(1, "t", f"fake_{expected is None}"), tmp_path, lambda share: None)
    if expected is None:
        assert (found.verdict, "TypeError" in found.error) == (Verdict.UNJUDGED, True)
    else:
        assert found.values == expected


@pytest.fixture
def command(monkeypatch, capsys, tmp_path, fakes):
    """Run ``asyncsgd paper`` on the fakes: (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    known = [fakes["good"], fakes["bad"]]
    monkeypatch.setattr(
        runner, "experiments", lambda only=None: [one for one in known if only is None or one.number in only]
    )
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)  # main() changes it for good

    def run(*words):
        monkeypatch.setattr(sys, "argv", ["asyncsgd", "paper", *words])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, said.err

    return run


def test_the_command_writes_and_prints(command, tmp_path):
    code, out, _ = command("--only", "1", "--output", "here")
    assert code == 0
    assert "holds with a correction" in out
    assert "index.html" in out
    assert "What would refute them" in out
    assert "1  a <counterexample>" in out
    assert sorted(path.name for path in (tmp_path / "here").iterdir()) == [
        "claims.json", "fake-1.png", "fake-1.svg", "index.html",
    ]  # fmt: skip
    code, out, _ = command("--only", "1", "--json")
    assert code == 0
    assert json.loads(out) == json.loads((tmp_path / "paper" / "claims.json").read_text("utf-8"))


def test_the_exit_code_says_when_a_claim_was_not_judged(command, tmp_path):
    code, out, _ = command("--only", "2")
    assert code == 1
    assert "could not be judged" in out
    assert "Claim 2: Nothing: the experiment stopped with ZeroDivisionError: no <luck>" in out
    assert (tmp_path / "paper" / "index.html").exists()


def test_bad_input_is_named(command, tmp_path):
    code, _, err = command("--only", "three")
    assert code == 2
    assert "only = 'three' is not a list of claims; pass numbers, as in --only 3,5" in err
    (tmp_path / "file").write_text("")
    code, _, err = command("--output", "file")
    assert code == 2
    assert "'file' can't be a folder" in err
    assert paper.numbers("5,3,5") == [3, 5]


def test_without_matplotlib_it_says_so_before_it_measures(monkeypatch, tmp_path, fakes):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match=r"asyncsgd\[report\]"):
        runner.run([fakes["good"]], tmp_path)
