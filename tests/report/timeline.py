"""What stands on the timeline of a page that is open in a browser."""

import json

import pytest
from report.material import begins

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
