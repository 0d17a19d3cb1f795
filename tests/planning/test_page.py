"""The page of a plan: self-contained, and with the numbers of the plan."""

import html
import re
from itertools import pairwise

import pytest

import asyncsgd as asgd
from asyncsgd.format import number, relative, span
from asyncsgd.planning import terminal
from asyncsgd.planning.page import compose
from asyncsgd.planning.terminal import Line, chart

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module", params=[False, True], ids=["alike", "differing"])
def plan(request):
    return asgd.plan([[1.0, 1.2], [1.1, 0.9], [1.0, 1.1], [7.0, 9.0]], heterogeneous=request.param)


@pytest.fixture(scope="module")
def text(plan):
    return compose(plan).html()


def cells(text):
    return [html.unescape(cell) for cell in re.findall(r"<td[^>]*>(.*?)</td>", text)]


def test_it_has_the_numbers_of_the_dictionary(plan, text):
    found, shown = plan.to_dict(), cells(text)
    plain = html.unescape(text)
    assert found["reason"] in plain
    assert found["recommended"]["recipe"] in plain
    assert terminal.limit(plan) in plain
    for row in found["rows"]:
        assert span(row["seconds_per_gradient"]) in shown
        assert number(row["average_delay"], 3) in shown
        assert f"{row['maximum_delay']:,}" in shown
        if row["step"] is None:
            assert "biased" in shown
        else:
            assert f"{row['step']:.2g}" in shown
            assert f"{relative(row['relative'])} ×" in shown
            assert span(row["guaranteed_seconds"]) in shown
        if row["method"] == "federated_async_sgd":
            jobs = row["concurrency"]
            for key in ("lemma", "queued", "seconds_per_gradient", "floor"):
                assert f"{row[key] * jobs:.4g}" in shown
    assert any(cell.startswith("→ ") for cell in shown)


def test_it_needs_nothing_else(text):
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#|data:)""", text.replace('xlink:href="#', 'href="#'))
    assert "<script" not in text
    assert text.count("<figure>") == 3
    ids = re.findall(r'\bid="([^"]+)"', text)
    assert len(ids) == len(set(ids))
    for target in re.findall(r'href="#([^"]+)"|url\(#([^)]+)\)', text):
        assert "".join(target) in ids
    for tag in ("section", "details", "table", "figure", "div"):
        assert text.count(f"<{tag}") == text.count(f"</{tag}>")


def test_names_from_outside_are_escaped(tmp_path):
    path = tmp_path / "<b>&.csv"
    path.write_text("a,b\n1,2\n")
    written = asgd.plan(path).write_page(tmp_path / "p.html").read_text("utf-8")
    assert "<b>&" not in written
    assert "&lt;b&gt;&amp;.csv" in written


def test_the_plot_in_characters_is_where_the_numbers_are():
    drawn = chart("t", [Line("one", "A", "", [(1, 8.0), (4, 2.0), (16, 0.5)])], "x", width=21, height=9).plain
    rows = drawn.split("\n")[1:10]
    places = [(row.index("A"), height) for height, row in enumerate(rows) if "A" in row]
    assert [height for _, height in places] == [0, 4, 8]
    assert [b - a for (a, _), (b, _) in pairwise(places)] == [10, 10]
    assert rows[0].lstrip().startswith("8 s")
    assert rows[8].lstrip().startswith("500 ms")


def test_a_plot_of_one_point_is_drawn_too():
    drawn = chart("t", [Line("one", "A", "", [(3, 2.0)])], "x").plain
    assert drawn.count("A") == 2  # in the legend and in the plot
    assert "2 s" in drawn
