"""Every kind of page in a real browser: no complaint, no request, nothing wider than the window."""

import sys

import pytest
from report.browser import LAPTOP, PHONE, installed

import asyncsgd as asgd
from asyncsgd import cli
from asyncsgd.cli import demo
from asyncsgd.experiments import paper_page, runner

pytestmark = pytest.mark.skipif(installed() is None, reason="needs Chromium; get it with: apt-get install chromium")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Runs of real workers, by the demo's names, each in its directory."""
    home = tmp_path_factory.mktemp("runs")
    task, engine = asgd.tasks.quadratic(workers=2, noise=0.1), asgd.engines.processes(2, min_seconds=[0.001, 0.004])
    methods = demo.candidates(2)
    return {
        name: asgd.train(
            task, method, engine=engine, iterations=40, every=5, directory=home / name.split()[0], progress=False
        )
        for name, method in methods.items()
    }


def of_directory(trained, home, monkeypatch):
    run = next(iter(trained.values()))
    monkeypatch.setattr(sys, "argv", ["asyncsgd", "report", str(run.directory), "--output", str(home / "run.html")])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code
    return home / "run.html"


def of_demo(trained, home, monkeypatch):
    rows = demo.summarise(trained, workers=2, slowdown=4.0)
    return demo._page(trained, rows, 2, 4.0, home)


def of_paper(trained, home, monkeypatch):
    pytest.importorskip("matplotlib")
    (home / "claim97_ours.py").write_text(CLAIM)
    monkeypatch.syspath_prepend(home)
    return paper_page.write(runner.run([runner.Experiment(97, "ours", "claim97_ours")], home), home)


def of_plan(trained, home, monkeypatch):
    pytest.importorskip("matplotlib")
    return asgd.plan([[1.0, 1.2], [1.1, 0.9], [7.0, 9.0]]).write_page(home / "plan.html")


CLAIM = """
import asyncsgd as asgd
from asyncsgd.experiments.common import Claim, Figure, Table, Verdict

def check(progress):
    task, speeds = asgd.tasks.quadratic(workers=2), asgd.durations.fixed([1, 9])
    run = asgd.simulate(task, asgd.async_sgd(0.1), speeds, iterations=90)
    delays = run.trace.delays
    return Claim(
        number=97, title="τ_avg is τ_C - 1", paper="so it says", measured=f"{delays.average:.3f}", why="an identity",
        verdict=Verdict.HOLDS, summary="as promised", refuted_by="another average", values={"average": delays.average},
        tables=(Table("Delays", ("average", "largest"), ((delays.average, delays.maximum),)),),
        figures=(Figure("ours", "Delays over the run", lambda fig, axes: axes.plot(run.trace.delay)),),
    )
"""
KINDS = {"directory": of_directory, "demo": of_demo, "paper": of_paper, "plan": of_plan}
SHOWN = {
    "directory": ("canvas", 1, "mini-batch"),
    "demo": ("canvas", 4, "Each run below either waits"),
    "paper": ("figure svg", 1, "τ_avg is τ_C - 1"),
    "plan": ("figure svg", 3, "Algorithm"),
}
"""What a page has to have drawn, how often, and words on it."""


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_page_loads_without_a_complaint_or_a_request(browser, trained, tmp_path, monkeypatch, kind):
    page = KINDS[kind](trained, tmp_path, monkeypatch)
    what, often, words = SHOWN[kind]
    for width in (LAPTOP, PHONE):
        for dark in (False, True):
            browser.open(page, width=width, dark=dark, touch=width == PHONE)
            assert browser.errors() == []
            assert browser.requests() == []
            assert browser.evaluate("document.documentElement.scrollWidth") <= width
            assert browser.evaluate(f"document.querySelectorAll({what!r}).length") >= often
            assert words in browser.evaluate("document.body.innerText")
