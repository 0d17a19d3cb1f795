"""The page of the claims is what its results give, and `asyncsgd paper --docs` writes both."""

import json
import re
from dataclasses import replace

import pytest
from docs.pages import DOCS, ROOT

from asyncsgd.cli import paper
from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.experiments import paper_page, runner
from asyncsgd.experiments.common import Claim, Verdict

PAGE = (DOCS / paper_page.PAGE).read_text(encoding="utf-8")
ROWS = json.loads((DOCS / paper_page.RESULTS).read_text(encoding="utf-8"))


def test_the_page_is_what_its_results_give():
    assert paper_page.filled(PAGE, ROWS) == PAGE, "run make paper, and commit the page with its results"


def test_a_number_changed_by_hand_is_found():
    shown = ROWS[8]["summary"]
    changed = re.sub(r"\d+-fold", "7-fold", shown, count=1)
    assert changed != shown
    assert paper_page.filled(PAGE.replace(shown, changed), ROWS) == PAGE
    assert paper_page.filled(PAGE, [*ROWS[:8], {**ROWS[8], "summary": changed}, ROWS[9]]) != PAGE


def test_every_claim_is_there_with_its_verdict_and_its_refutation():
    assert [row["number"] for row in ROWS] == [one.number for one in runner.experiments()]
    for row in ROWS:
        assert f"| {row['verdict']} |" in PAGE
        assert len(row["refuted_by"]) > 40
        assert row["summary"]


def test_one_clipping_norm_in_the_row_of_clipping():
    """T at both ends of τ_max, and what clipping gains and costs there, are of the same norm."""
    rows = ROWS[8]["values"]["rows"]
    norms = re.findall(r"G = ([\d.]+) × target", ROWS[8]["summary"] + ROWS[8]["why"])
    assert len(norms) >= 2
    assert len(set(norms)) == 1
    hardest = [row for row in rows if row["target"] == min(one["target"] for one in rows)]
    plain, clipped = (
        next(row["iterations"] for row in hardest if row["level"] == level) for level in (None, float(norms[0]))
    )
    for value in (
        f"{plain[-1] / plain[0]:.0f}-fold without",
        f"{clipped[-1] / clipped[0]:.1f}-fold with",
        f"{clipped[0] / plain[0]:.1f} times as long",
        f"{plain[-1] / clipped[-1]:.1f} times as short",
    ):
        assert value in ROWS[8]["summary"]


def test_the_pictures_of_the_page_are_figures_of_the_claims():
    drawn = {f"{name}.svg" for row in ROWS for name in row["figures"]}
    shown = paper_page.PICTURE.findall(PAGE)
    assert len(shown) == 3
    assert set(shown) <= drawn
    assert all((DOCS / "images" / name).exists() for name in shown)


def test_bars_and_underscores_survive_a_table():
    row = {"number": 1, "paper": "a | b", "summary": "τ̄_C and x*", "verdict": "holds", "refuted_by": "|C_T|"}
    page = "\n".join(
        f"<!-- claims: {name} -->\nstale words\n<!-- end of claims -->" for name in ("verdicts", "refutations")
    )
    filled = paper_page.filled(page, [row])
    assert r"| 1 | a \| b | τ̄\_C and x\* | holds |" in filled
    assert r"| 1 | \|C_T\| |" in filled
    assert "stale words" not in filled


FOUND = [
    Claim(n, "a title", verdict, paper="says", measured="m", summary="found", refuted_by="a counterexample")
    for n, verdict in ((1, "holds"), (2, "does not hold as written"), (3, "does not hold as written"))
]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A docs folder with a page, an output folder with its picture, and claims that are measured at once."""
    docs, output = tmp_path / "docs", tmp_path / "paper"
    (docs / "images").mkdir(parents=True)
    output.mkdir()
    (output / "claim03-a.svg").write_text("<svg>new</svg>")
    (docs / "measured.md").write_text(
        "by hand\n<!-- claims: count -->\n<!-- end of claims -->\n![x](images/claim03-a.svg)\n", encoding="utf-8"
    )
    monkeypatch.setattr(runner, "run", lambda *_, **__: FOUND)
    return docs, output


def test_the_command_writes_the_page_its_results_and_its_pictures(checkout, capsys):
    docs, output = checkout
    assert paper.show(output, None, as_json=False, docs=docs)
    page = (docs / "measured.md").read_text(encoding="utf-8")
    assert "by hand\n<!-- claims: count -->\nOne holds (1); two do not hold as written (2, 3).\n<!-- end" in page
    assert (docs / "measured.json").read_text("utf-8") == (output / "claims.json").read_text("utf-8")
    assert (docs / "images" / "claim03-a.svg").read_text("utf-8") == "<svg>new</svg>"
    assert "measured.md" in capsys.readouterr().err


def test_without_the_option_no_docs_are_written(checkout):
    docs, output = checkout
    before = (docs / "measured.md").read_text(encoding="utf-8")
    paper.show(output, None, as_json=False)
    assert sorted(path.name for path in docs.iterdir()) == ["images", "measured.md"]
    assert (docs / "measured.md").read_text(encoding="utf-8") == before


def test_a_claim_that_could_not_be_judged_leaves_the_page_alone(checkout, monkeypatch, capsys):
    docs, output = checkout
    monkeypatch.setattr(runner, "run", lambda *_, **__: [replace(FOUND[0], verdict=Verdict.UNJUDGED)])
    assert not paper.show(output, None, as_json=False, docs=docs)
    assert not (docs / "measured.json").exists()
    assert "is unchanged" in capsys.readouterr().err


def test_a_folder_without_the_page_is_refused_before_anything_is_measured(checkout, monkeypatch):
    docs, output = checkout
    monkeypatch.setattr(runner, "run", lambda *_, **__: pytest.fail("measured for nothing"))
    with pytest.raises(UsageError, match=r"has no measured.md with blocks to fill; pass the docs folder of a checkout"):
        paper.show(output, None, as_json=False, docs=output)
    with pytest.raises(BadParameter, match="only = '3' leaves claims out"):
        paper.show(output, "3", as_json=False, docs=docs)


def test_make_paper_asks_for_the_page():
    assert "asyncsgd paper --docs docs" in (ROOT / "Makefile").read_text(encoding="utf-8")
