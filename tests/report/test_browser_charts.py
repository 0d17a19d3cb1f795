"""Charts and tables in a real browser: what they show is what the trace says, and nothing covers anything."""

import json
from itertools import pairwise

import numpy as np
import pytest
from report.browser import LAPTOP, PHONE, installed

import asyncsgd as asgd
from asyncsgd.pages.run_page import compose
from asyncsgd.run.view import RunView
from asyncsgd.trace import Trace

pytestmark = pytest.mark.skipif(installed() is None, reason="needs Chromium; get it with: apt-get install chromium")

OVER = "asyncsgd.charts.find((chart) => chart.spec.title === 'Delay over the run')"


def test_charts_read_off_values(browser, pages):
    browser.open(pages["one"])
    chart = "asyncsgd.charts.find((chart) => chart.spec.title === 'loss')"
    line = json.loads(browser.evaluate(f"JSON.stringify({chart}.spec.lines[0])"))
    browser.evaluate(f"{chart}.svg.focus()")
    browser.key("ArrowRight")
    browser.key("ArrowRight")
    said = browser.evaluate(f"{chart}.spoken.textContent")
    assert float(said.split()[0].replace(",", "")) == pytest.approx(line["value"][1], rel=1e-3)
    assert said.endswith(f"at {line['iteration'][1]:.0f}")
    last = line["iteration"][-1]
    x, y = browser.evaluate(
        f"(({{left, top}}) => [left + {chart}.x({last}), top + 40])({chart}.svg.getBoundingClientRect())"
    )
    browser.mouse("moved", x, y)
    tip = browser.evaluate(f"{chart}.tip.textContent")
    assert float(tip.split()[0].replace(",", "")) == pytest.approx(line["value"][-1], rel=1e-3)


def test_charts_run_over_seconds_too(browser, pages):
    browser.open(pages["one"])
    before = browser.evaluate("asyncsgd.charts[0].svg.innerHTML")
    browser.evaluate(
        "[...document.querySelectorAll('.choice button')].find((b) => b.textContent === 'seconds').click()"
    )
    assert browser.evaluate("asyncsgd.charts[0].svg.innerHTML") != before
    assert browser.evaluate("asyncsgd.charts[0].svg.querySelector('.name').textContent") == "time"
    assert browser.evaluate("document.querySelector('.choice [aria-pressed=true]').textContent") == "seconds"


def test_runs_can_be_hidden(browser, pages):
    browser.open(pages["several"])
    lines = "asyncsgd.charts[0].svg.querySelectorAll('.line').length"
    assert browser.evaluate(lines) == 9
    browser.evaluate("document.querySelector('.legend [data-run=\"1\"]').click()")
    assert browser.evaluate(lines) == 8
    pressed = "[...document.querySelectorAll('.legend [data-run=\"1\"]')].map((b) => b.getAttribute('aria-pressed'))"
    assert set(browser.evaluate(pressed)) == {"false"}


def test_values_stay_inside_a_phone(browser, pages):
    browser.open(pages["several"], width=PHONE, touch=True)
    for part in (0.2, 0.5, 0.8):
        browser.evaluate(f"asyncsgd.charts.forEach((chart) => chart.point({part} * chart.width))")
        assert browser.evaluate("document.documentElement.scrollWidth") <= PHONE


def test_bars_count_the_trace_s_delays(browser, pages, storm):
    browser.open(pages["storm"])
    bars = "asyncsgd.charts.find((chart) => chart.spec.ranges)"
    ranges = browser.evaluate(f"{bars}.spec.ranges")
    browser.evaluate(f"{bars}.svg.focus()")
    delays = storm.delays.values
    for first, last in ranges[:4]:
        browser.key("ArrowRight")
        count = int(((delays >= first) & (delays <= last)).sum())
        assert f"{count:,} jobs" in browser.evaluate(f"{bars}.spoken.textContent")


def test_tables_are_sorted_by_a_click(browser, pages):
    browser.open(pages["storm"])
    column = (
        "[...document.querySelectorAll('table.sortable tbody tr')].map((row) => Number(row.cells[1].dataset.value))"
    )
    jobs = browser.evaluate(column)
    click = "document.querySelectorAll('table.sortable th button')[1].click()"
    browser.evaluate(click)
    assert browser.evaluate(column) == sorted(jobs, reverse=True)
    browser.evaluate(click)
    assert browser.evaluate(column) == sorted(jobs)


def boxes(browser, chosen):
    """Left, top, right and bottom of what a selector finds."""
    return browser.evaluate(
        f"""[...document.querySelectorAll({chosen!r})].map((found) => found.getBoundingClientRect())
            .map(({{left, top, right, bottom}}) => [left, top, right, bottom])"""
    )


@pytest.mark.parametrize("width", [LAPTOP, PHONE])
def test_large_numbers_have_room(browser, tmp_path, width):
    """Delays from 0 to ten thousand and more below the bars; losses like 1.234e-28 in their tiles."""
    trace = Trace.from_history(
        workers=[0, *(k % 30 + 1 for k in range(12_000))],
        assigned=[0, *(max(0, k - k % 400) for k in range(12_000))],
        arrived=[12_000, *range(12_000)],
    )
    metrics = {"iteration": np.array([0.0]), "time": np.array([0.0]), "loss": np.array([1.234e-28])}
    page = compose([RunView("large", trace, metrics)]).write(tmp_path / "large.html")
    assert trace.delays.maximum == 12_000
    browser.open(page, width=width, touch=width == PHONE)
    browser.evaluate("asyncsgd.charts.find((chart) => chart.spec.ranges).svg.id = 'bars'")
    ticks = boxes(browser, "#bars text[text-anchor=middle]")
    assert len(ticks) > 4
    assert all(right <= left for (_, _, right, _), (left, _, _, _) in pairwise(ticks))
    assert browser.evaluate("[...document.querySelectorAll('.tiles div')].every((t) => t.scrollWidth <= t.clientWidth)")


# ---------------------------------------------------------------------------------------------- levels


@pytest.mark.parametrize("width", [LAPTOP, PHONE])
@pytest.mark.parametrize("log", [False, True], ids=["linear", "log"])
def test_the_four_delays_are_levels_whose_names_do_not_touch(browser, tmp_path, width, log):
    """Concurrency grows, so that its mean is another one than the largest; all but the maximum lie close together."""
    history = [(40, 0, 200)] + [(k % 40, max(0, k - 3 - k // 20), k) for k in range(200)]
    workers, assigned, arrived = zip(*history, strict=True)
    trace = Trace.from_history(workers=workers, assigned=assigned, arrived=arrived)
    delays = trace.delays
    wanted = [delays.average, delays.maximum, delays.concurrency, delays.mean_concurrency]
    assert len({f"{value:.4g}" for value in wanted}) == 4
    browser.open(asgd.report(trace, tmp_path / "page.html"), width=width)
    if log:
        browser.evaluate(f"{OVER}.element.querySelector('button.small').click()")
    shown = browser.evaluate(f"[...{OVER}.svg.querySelectorAll('text.mark')].map((text) => text.textContent)")
    assert [text.rsplit(" ", 1)[0] for text in shown] == ["τ avg", "τ max", "τ C", "τ̄ C"]
    assert [float(text.rsplit(" ", 1)[1]) for text in shown] == pytest.approx(wanted, rel=1e-3)
    browser.evaluate(f"{OVER}.svg.id = 'over'")
    names = boxes(browser, "#over text.mark")
    edge = boxes(browser, "#over")[0]
    for place, (left, top, right, bottom) in enumerate(names):
        assert (left >= edge[0], top >= edge[1]) == (True, True)
        for other in names[place + 1 :]:
            assert right <= other[0] or other[2] <= left or bottom <= other[1] + 3 or other[3] <= top + 3


def test_levels_that_read_the_same_have_one_name(browser, pages):
    browser.open(pages["one"])
    shown = browser.evaluate(f"[...{OVER}.svg.querySelectorAll('text.mark')].map((text) => text.textContent)")
    assert shown[-1] == "τ C, τ̄ C 4"
    assert len(shown) == 3
