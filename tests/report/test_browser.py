"""The page in a real browser: no complaint, no request, and what is shown is what the trace says."""

import json

import numpy as np
import pytest
from report.browser import LAPTOP, PHONE, installed
from report.material import begins

import asyncsgd as asgd

pytestmark = pytest.mark.skipif(installed() is None, reason="needs Chromium; get it with: apt-get install chromium")

LINE = "asyncsgd.timelines[0]"


def look(browser):
    """Where the timeline stands."""
    return browser.evaluate(f"(({{t0, t1, low, high}}) => [t0, t1, low, high])({LINE}.window)")


def picture(browser):
    return browser.evaluate(f"{LINE}.canvas.toDataURL()")


def place(browser, job):
    """The middle of a job's bar, in the window, scrolled to where it can be seen."""
    browser.evaluate(f"{LINE}.canvas.scrollIntoView({{block: 'center'}})")
    return browser.evaluate(
        f"""(({{jobs, canvas, frame}}, box) => {{
            const f = {LINE}.frame(), k = {job};
            const x = (f.x(jobs.begin[k]) + f.x(jobs.end[k])) / 2, y = f.rowOf(jobs.worker[k]) + f.height / 2;
            return [box.left + x, box.top + y];
        }})({LINE}, {LINE}.canvas.getBoundingClientRect())"""
    )


def panel(browser):
    script = f"""JSON.stringify(Object.fromEntries([...{LINE}.panel.element.querySelectorAll("dl:not([hidden]) > div")]
        .map((row) => [row.querySelector("dt").textContent, row.querySelector("dd").textContent])))"""
    return json.loads(browser.evaluate(script))


def check_panel(shown, trace, job):
    """The numbers below the timeline are those of the trace."""
    jobs = trace.jobs
    assert shown["job"] == f"{job:,}"
    assert shown["worker"] == str(jobs.worker[job])
    assert shown["outcome"] == trace.jobs.name(job).partition("(")[2][:-1]
    assert shown["delay"].split()[0] == f"{jobs.ended_iteration[job] - jobs.assigned_iteration[job]:,}"
    assert shown["staleness"].split()[0] == f"{jobs.ended_version[job] - jobs.assigned_version[job]:,}"
    assert shown["read"] == f"version {jobs.assigned_version[job]:,}, iteration {jobs.assigned_iteration[job]:,}"
    assert float(shown["assigned"].split()[0]) == pytest.approx(jobs.assigned_time[job], rel=1e-5, abs=1e-6)
    assert float(shown["ended"].split()[0]) == pytest.approx(jobs.ended_time[job], rel=1e-5)
    assert float(shown["waited"].split()[0]) == pytest.approx(begins(trace)[job] - jobs.assigned_time[job], rel=1e-3)
    if jobs.arrived[job]:
        assert shown["came as"] == f"update {jobs.ended_iteration[job]:,}"
        assert float(shown["step"]) == pytest.approx(jobs.step[job])


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


# ---------------------------------------------------------------------------------------------- moving about


def test_the_wheel_zooms_around_the_pointer(browser, pages):
    browser.open(pages["storm"])
    x, y = place(browser, 20)
    before, seen = look(browser), picture(browser)
    browser.mouse("wheel", x, y, deltaX=0, deltaY=-300)
    assert look(browser) == before  # the page scrolls; whoever wants to zoom clicks first
    assert browser.evaluate(f"{LINE}.hint.hidden") is False
    browser.open(pages["storm"])
    x, y = place(browser, 20)
    browser.mouse("pressed", x, y, button="left", buttons=1, clickCount=1)
    browser.mouse("released", x, y, button="left", clickCount=1)
    x, y = place(browser, 20)
    under = browser.evaluate(f"{LINE}.frame().time({x} - {LINE}.canvas.getBoundingClientRect().left)")
    browser.mouse("wheel", x, y, deltaX=0, deltaY=-300)
    after = look(browser)
    assert after[1] - after[0] < 0.8 * (before[1] - before[0])
    again = browser.evaluate(f"{LINE}.frame().time({x} - {LINE}.canvas.getBoundingClientRect().left)")
    assert again == pytest.approx(under, abs=1e-3 * (after[1] - after[0]))
    assert picture(browser) != seen
    browser.mouse("wheel", x, y, deltaX=0, deltaY=300)
    assert look(browser)[:2] == pytest.approx(before[:2], abs=1e-6)


def test_control_and_wheel_zoom_at_once(browser, pages):
    browser.open(pages["storm"])
    x, y = place(browser, 20)
    before = look(browser)
    browser.mouse("wheel", x, y, deltaX=0, deltaY=-200, modifiers=2)
    after = look(browser)
    assert after[1] - after[0] < before[1] - before[0]


def test_dragging_pans(browser, pages):
    browser.open(pages["storm"])
    browser.evaluate(f"{LINE}.window.set(5, 15)")
    x, y = place(browser, 20)
    width = browser.evaluate(f"{LINE}.frame().width")
    browser.drag(x, y, x - width / 4, y)
    t0, t1, *_ = look(browser)
    assert (t0, t1) == pytest.approx((7.5, 17.5), rel=1e-6)
    assert browser.evaluate(f"{LINE}.selected") == -1  # a drag is no click


def test_buttons_do_the_same(browser, pages):
    browser.open(pages["storm"])
    press = "document.querySelector('[data-part=timelines] button[aria-label=\"{}\"]').click()"
    span = lambda: look(browser)[1] - look(browser)[0]  # noqa: E731
    before = span()
    browser.evaluate(press.format("zoom in"))
    assert span() == pytest.approx(before / 2)
    start = look(browser)[0]
    browser.evaluate(press.format("later"))
    assert look(browser)[0] == pytest.approx(start + before / 6)
    browser.evaluate(press.format("show the whole run"))
    t0, t1, low, high = look(browser)
    assert (t0, t1) == (low, high)


def test_the_strip_moves_the_window(browser, pages):
    browser.open(pages["storm"])
    browser.evaluate(f"{LINE}.canvas.scrollIntoView({{block: 'center'}})")
    left, top, width = browser.evaluate(
        f"(({{left, top, width}}) => [left, top, width])({LINE}.strip.getBoundingClientRect())"
    )
    browser.mouse("pressed", left + 0.75 * width, top + 10, button="left", buttons=1, clickCount=1)
    browser.mouse("released", left + 0.75 * width, top + 10, button="left", clickCount=1)
    t0, t1, low, high = look(browser)
    assert (t0 + t1) / 2 > low + 0.6 * (high - low)


def test_two_fingers_zoom_and_one_pans(browser, pages):
    browser.open(pages["storm"], width=PHONE, height=800, touch=True)
    browser.evaluate(f"{LINE}.window.set(5, 15)")
    x, y = place(browser, 20)
    y = browser.evaluate(f"{LINE}.canvas.getBoundingClientRect().top") + 60
    browser.touch("start", [(150, y), (250, y)])
    browser.touch("move", [(125, y), (275, y)])
    browser.touch("move", [(100, y), (300, y)])
    browser.touch("end", [])
    t0, t1, *_ = look(browser)
    assert t1 - t0 == pytest.approx(5, rel=0.15)
    browser.touch("start", [(300, y)])
    for x in (270, 230, 180):
        browser.touch("move", [(x, y)])
    browser.touch("end", [])
    assert look(browser)[0] > t0
    assert browser.errors() == []


def test_timelines_of_one_page_move_together(browser, pages):
    browser.open(pages["several"])
    assert browser.evaluate("asyncsgd.timelines.length") == 9
    before = browser.evaluate("asyncsgd.timelines.map((line) => line.canvas.toDataURL())")
    browser.evaluate("asyncsgd.timelines[1].window.zoom(0.3)")
    browser.frames()
    after = browser.evaluate("asyncsgd.timelines.map((line) => line.canvas.toDataURL())")
    assert all(one != two for one, two in zip(before, after, strict=True))


# ---------------------------------------------------------------------------------------------- without a mouse


def test_everything_is_reached_by_tab(browser, pages):
    browser.open(pages["one"])
    seen = set()
    for _ in range(80):
        browser.key("Tab")
        seen.add(
            browser.evaluate(
                "(({tagName: tag, className: css}) => tag.toLowerCase() + (typeof css === 'string' ? '.' + css : ''))"
                "(document.activeElement)"
            )
        )
    assert {"a.", "canvas.", "svg", "select.", "button.sort", "button.small", "summary."} <= seen


def test_keys_walk_from_job_to_job(browser, pages, storm):
    browser.open(pages["storm"])
    browser.evaluate(f"{LINE}.canvas.focus()")
    browser.key("ArrowRight")
    first = browser.evaluate(f"{LINE}.selected")
    assert first >= 0
    browser.key("ArrowRight")
    second = browser.evaluate(f"{LINE}.selected")
    worker = storm.jobs.worker
    mine = [job for job in range(len(storm)) if worker[job] == worker[first]]
    assert second == mine[mine.index(first) + 1]
    browser.key("ArrowLeft")
    assert browser.evaluate(f"{LINE}.selected") == first
    browser.key("ArrowDown")
    below = browser.evaluate(f"{LINE}.selected")
    assert worker[below] == worker[first] + 1
    said = browser.evaluate(f"{LINE}.panel.spoken.textContent")
    assert said.startswith(f"Job {below} of worker {worker[below]}: ")
    check_panel(panel(browser), storm, below)
    browser.key("Escape")
    assert browser.evaluate(f"{LINE}.selected") == -1


def test_keys_zoom_and_pan(browser, pages):
    browser.open(pages["storm"])
    browser.evaluate(f"{LINE}.canvas.focus()")
    before = look(browser)
    browser.key("+")
    closer = look(browser)
    assert closer[1] - closer[0] == pytest.approx((before[1] - before[0]) / 2)
    browser.key("ArrowRight", shift=True)
    assert look(browser)[0] > closer[0]
    browser.key("-")
    assert look(browser)[1] - look(browser)[0] == pytest.approx(before[1] - before[0])
    browser.key("0")
    t0, t1, low, high = look(browser)
    assert (t0, t1) == (low, high)
    browser.key("+")
    browser.key("End")
    assert look(browser)[1] == high
    browser.key("Home")
    assert look(browser)[0] == low


# ---------------------------------------------------------------------------------------------- many


def test_a_thousand_workers_and_a_hundred_thousand_jobs(browser, tmp_path, record_property):
    """Averages while they are many, bars when one looks closer; the times are written down, not judged."""
    rng = np.random.default_rng(0)
    speeds = asgd.durations.lognormal(rng.lognormal(0, 0.8, 1000), 0.4)
    run = asgd.simulate(asgd.tasks.quadratic(workers=1000), asgd.delay_adaptive(0.001), speeds, iterations=100_000)
    browser.open(run.report(tmp_path / "big.html"))
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
