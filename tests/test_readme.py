"""What README shows, runs."""

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from asyncsgd.cli import app

pytestmark = [pytest.mark.docs, pytest.mark.processes]

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)


def test_there_is_an_example_for_everybody():
    assert len(BLOCKS) >= 4


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_the_example_runs(block, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "README.md", "exec"), {"__name__": "readme"})
    shown = capsys.readouterr().out
    assert "print" not in block or shown
    assert not re.search(r"<[\w. ]+ (at 0x|of )", shown), f"the reader is shown an object, not what it says: {shown}"


def test_the_pictures_and_pages_it_links_are_there():
    for target in re.findall(r"\]\(([^)#]+)\)", README):
        assert target.startswith("http") or (ROOT / target).exists(), target


@pytest.mark.parametrize("page", ["README.md", "docs/users/planner.md"])
def test_the_plan_it_shows_is_the_one_that_is_printed(page):
    shown = re.search(r"^Use asynchronous SGD with.*?up to constants\.$", (ROOT / page).read_text("utf-8"), re.M | re.S)
    durations = str(ROOT / "examples" / "durations.csv")
    printed = CliRunner().invoke(app, ["plan", durations, "--no-page"], env={"COLUMNS": "100"}).stdout
    assert " ".join(shown[0].split()) in " ".join(printed.split())
