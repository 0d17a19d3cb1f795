"""Moving about on the timeline in a real browser, with a mouse, with fingers and with keys."""

import pytest
from report.browser import PHONE, installed
from report.timeline import LINE, check_panel, look, panel, picture, place

pytestmark = pytest.mark.skipif(installed() is None, reason="needs Chromium; get it with: apt-get install chromium")


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
