"""The page in a real browser: no complaint, no request, and what is shown is what the trace says."""

import json

import numpy as np
import pytest
from report.browser import LAPTOP, PHONE, installed
from report.material import begins
from report.timeline import LINE, check_panel, look, panel, picture, place

import asyncsgd as asgd

pytestmark = pytest.mark.skipif(installed() is None, reason="needs Chromium; get it with: apt-get install chromium")


# ---------------------------------------------------------------------------------------------- it loads


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [LAPTOP, PHONE])
@pytest.mark.parametrize("name", ["one", "several", "storm", "no clock", "two clocks", "nothing", "evil"])
def test_it_loads_without_a_complaint_or_a_request(browser, pages, name, width, dark):
    browser.open(pages[name], width=width, dark=dark, touch=width == PHONE)
    assert browser.evaluate("typeof asyncsgd") == "object"
    assert browser.errors() == []
    assert browser.requests() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate("document.querySelectorAll('img').length") == 0


def test_a_complaint_and_a_request_would_be_seen(browser, tmp_path):
    """The two lists above are empty for a reason."""
    bad = tmp_path / "bad.html"
    bad.write_text("<!doctype html><img src='gone.png'><script>console.error('oh')</script>", "utf-8")
    browser.open(bad)
    assert len(browser.requests()) == 1
    assert any("oh" in json.dumps(error) for error in browser.errors())


def test_it_is_dark_in_the_dark(browser, pages):
    brightness = {}
    for dark in (False, True):
        browser.open(pages["storm"], dark=dark)
        pixel = f"[...{LINE}.pen.getImageData(2, 2, 1, 1).data].slice(0, 3)"
        brightness[dark] = sum(browser.evaluate(pixel))
    assert brightness[False] > 700
    assert brightness[True] < 150


def test_the_theme_can_change_while_it_is_open(browser, pages):
    browser.open(pages["storm"])
    before = picture(browser)
    browser.send("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    browser.frames()
    assert picture(browser) != before
    assert browser.errors() == []


# ---------------------------------------------------------------------------------------------- what it shows


def test_the_scripts_read_what_was_written(browser, pages, storm):
    browser.open(pages["storm"])
    names = ("job", "outcome", "read", "version", "delay", "staleness", "begin", "end")
    found = browser.evaluate(f"(({{{', '.join(names)}}}) => [{', '.join(f'[...{n}]' for n in names)}])({LINE}.jobs)")
    cells = dict(zip(names, map(np.array, found), strict=True))
    jobs = storm.jobs
    ended = np.where(jobs.in_flight, storm.iterations, jobs.ended_iteration)
    np.testing.assert_array_equal(cells["job"], jobs.job)
    np.testing.assert_array_equal(cells["outcome"], jobs.outcome)
    np.testing.assert_array_equal(cells["read"], jobs.assigned_iteration)
    np.testing.assert_array_equal(cells["version"], jobs.assigned_version)
    np.testing.assert_array_equal(cells["delay"], ended - jobs.assigned_iteration)
    np.testing.assert_allclose(cells["begin"], begins(storm), atol=1e-6)
    over = ~jobs.in_flight
    np.testing.assert_allclose(cells["end"][over], jobs.ended_time[over], atol=1e-6)
    workers = browser.evaluate(f"[...{LINE}.jobs.worker].map((w) => {LINE}.jobs.workers[w])")
    assert workers == [str(worker) for worker in jobs.worker]


def test_pointing_at_a_job_shows_its_numbers(browser, pages, storm):
    browser.open(pages["storm"])
    jobs = storm.jobs
    chosen = int(np.flatnonzero(jobs.arrived & (jobs.ended_time < look(browser)[1]) & (jobs.step > 0))[3])
    x, y = place(browser, chosen)
    browser.mouse("moved", x, y)
    assert browser.evaluate(f"{LINE}.hovered") == chosen
    tip = browser.evaluate(f"{LINE}.tip.hidden ? '' : {LINE}.tip.textContent")
    assert tip.startswith(f"job {chosen} of worker {jobs.worker[chosen]}")
    assert f"delay{jobs.ended_iteration[chosen] - jobs.assigned_iteration[chosen]} updates" in tip
    browser.mouse("pressed", x, y, button="left", buttons=1, clickCount=1)
    browser.mouse("released", x, y, button="left", clickCount=1)
    assert browser.evaluate(f"{LINE}.selected") == chosen
    check_panel(panel(browser), storm, chosen)


def test_every_outcome_has_its_numbers_and_its_mark(browser, pages, storm):
    browser.open(pages["storm"])
    for code in range(1, 6):
        job = int(np.flatnonzero(storm.jobs.outcome == code)[0])
        browser.evaluate(f"{LINE}.select({job})")
        check_panel(panel(browser), storm, job)
    grey = browser.evaluate(
        """[...document.querySelectorAll(".colours canvas")].map((tile) => {
            const data = tile.getContext("2d").getImageData(0, 0, tile.width, tile.height).data;
            return [...data].filter((_, k) => k % 4 === 3).join();
        })"""
    )
    assert len(grey) == 5
    assert len(set(grey)) == 5  # told apart by shape alone


def test_a_job_shows_which_version_it_read(browser, pages, storm):
    browser.open(pages["storm"])
    jobs = storm.jobs
    late = int(np.flatnonzero((jobs.assigned_iteration > 9) & (jobs.ended_iteration - jobs.assigned_iteration > 5))[0])
    before = picture(browser)
    browser.evaluate(f"{LINE}.select({late})")
    browser.frames()
    assert picture(browser) != before
    maker = int(storm.job[jobs.assigned_iteration[late] - 1])
    assert panel(browser)["made by"] == f"job {maker} of worker {jobs.worker[maker]}"


# ---------------------------------------------------------------------------------------------- many


def test_a_thousand_workers_and_a_hundred_thousand_jobs(browser, tmp_path, record_property):
    """Averages while they are many, bars when one looks closer; the times are written down, not judged."""
    rng = np.random.default_rng(0)
    speeds = asgd.durations.lognormal(rng.lognormal(0, 0.8, 1000), 0.4)
    run = asgd.simulate(asgd.tasks.quadratic(workers=1000), asgd.delay_adaptive(0.001), speeds, iterations=100_000)
    browser.open(run.write_report(tmp_path / "big.html"))
    assert browser.errors() == []
    assert browser.evaluate(f"{LINE}.last.averaged") is True
    assert browser.evaluate(f"{LINE}.last.visible") >= 100_000
    for name, moving in (("whole", "false"), ("moving", "true")):
        times = browser.evaluate(
            f"Array.from({{length: 8}}, () => ({LINE}.draw({moving}), {LINE}.last.milliseconds)).sort((a, b) => a - b)"
        )
        record_property(f"redraw_{name}_milliseconds", times[4])
        print(f"redraw, {name}: {times[4]:.1f} ms")
    browser.evaluate(f"{LINE}.rows.set(100, 140); {LINE}.window.set(30, 33)")
    browser.frames()
    assert browser.evaluate(f"{LINE}.last.averaged") is False
    assert browser.errors() == []
