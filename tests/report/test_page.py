"""The page itself: one file, whole, with nothing from outside that runs, and with the numbers of the runs."""

import base64
import hashlib
import re
import warnings

import numpy as np
import pytest
from report.material import Outline, data_of, stormy

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.pages.page import Page, asset
from asyncsgd.pages.run_page import SCRIPTS, compose
from asyncsgd.pages.sources import gather
from asyncsgd.run.view import RunView

EVIL = "<script>alert('x')</script><img src=x onerror=alert(1)>&\"'</script>"
SECTIONS = [
    "In short",
    "Progress",
    "Who worked when",
    "Delays",
    "Workers",
    "Steps",
    "Measured against theory",
    "Configuration",
]


@pytest.fixture(scope="module")
def task():
    return asgd.tasks.quadratic(workers=4, noise=0.1)


@pytest.fixture(scope="module")
def runs(task):
    speeds = asgd.durations.fixed([1.0, 1.0, 2.0, 9.0])
    methods = (asgd.minibatch_sgd(0.05), asgd.async_sgd(0.004), asgd.delay_adaptive(0.02))
    return {method.name: asgd.simulate(task, method, speeds, iterations=400) for method in methods}


def headings(text):
    return [re.sub(r"<.*", "", heading).strip() for heading in re.findall(r'<h2 id="s\d+">(.*?)</h2>', text)]


def page_of(runs, **options):
    return compose(gather(runs, **options)).html()


# ---------------------------------------------------------------------------------------------- one file, and whole


def test_it_needs_nothing_else(runs):
    text = page_of(runs)
    outline = Outline(text)
    assert outline.problems == []
    assert outline.open == []
    for tag, attributes in outline.tags:
        assert not attributes.get("src")
        assert attributes.get("href", "#").startswith(("#", "data:"))
        assert not any(name.startswith("on") for name in attributes), tag
    ids = [attributes["id"] for _, attributes in outline.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert re.findall(r"https?://[^\s\"'<]*", text) == ["http://www.w3.org/2000/svg"]  # a name, nothing to fetch


def test_only_our_script_may_run(runs):
    text = page_of(runs)
    script = re.search(r"<script>(.*)</script>", text, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)[1]
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src 'sha256-{digest}'"
    assert "script-src 'none'" in Page("no script").html()


def test_scripts_write_no_html():
    """Text from outside becomes text nodes only."""
    for name in SCRIPTS:
        source = asset(f"js/{name}.js")
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function", source), (
            name
        )
        assert not re.search(r"\bfetch\b|XMLHttpRequest|import\(|WebSocket|sendBeacon", source), name


def test_it_is_the_same_every_time(runs):
    assert page_of(runs) == page_of(runs)


# ---------------------------------------------------------------------------------------------- what it says


def test_one_run_has_every_section(runs, task):
    text = page_of(runs["delay_adaptive"], task=task)
    assert headings(text) == SECTIONS
    outline = Outline(text)
    run = runs["delay_adaptive"]
    tiles = re.search(r'<dl class="tiles">(.*?)</dl>', text)[1]
    found = dict(re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", tiles))
    assert found["updates"] == "400"
    assert found["τ avg"] == f"{run.trace.delays.average:.3g}"
    assert found["τ max"] == str(run.trace.delays.maximum)
    assert found["τ C"] == "4"
    assert found["loss"] == f"{run.metrics['loss'][-1]:.4g}"
    labels = [attributes["data-part"] for _, attributes in outline.tags if "data-part" in attributes]
    assert labels == ["metrics", "key", "timelines", "delays", "steps"]
    assert "DelayAdaptive(stepsize=0.02)" in outline.text
    for fact in gather(run, task)[0].diagnosis.facts:
        assert fact[1:] in outline.text


def test_several_runs_are_side_by_side(runs):
    text = page_of(runs)
    data = data_of(text)
    assert [run["name"] for run in data["runs"]] == list(runs)
    assert [metric["name"] for metric in data["metrics"]] == ["loss", "gradient_norm", "distance"]
    for metric in data["metrics"]:
        assert [line["run"] for line in metric["lines"]] == [0, 1, 2]
        for line, run in zip(metric["lines"], runs.values(), strict=True):
            assert line["iteration"] == run.metrics["iteration"].tolist()
            assert line["time"] == run.metrics["time"].tolist()
            assert line["value"] == run.metrics[metric["name"]].tolist()
    for name in runs:
        assert f"<td>{name}</td>" in text


def test_the_table_of_workers_is_the_trace_s(runs):
    run = runs["async_sgd"]
    text = page_of(run)
    table = re.search(r'<table class="sortable">.*?</table>', text, re.DOTALL)[0]
    rows = re.findall(r"<tr>(<td.*?)</tr>", table)
    assert len(rows) == 4
    names = re.findall(r"<th scope[^>]*>(.*?)</th>", table)
    for worker, row in enumerate(rows):
        cells = dict(zip(names, re.findall(r'data-value="([^"]*)"', row), strict=True))
        mine = run.trace.worker == worker
        assert float(cells["worker"]) == worker
        assert float(cells["jobs"]) == (run.trace.jobs.worker == worker).sum()
        assert float(cells["mean delay"]) == run.trace.delays.per_worker[worker]
        assert float(cells["share of the step"]) == pytest.approx(run.trace.step[mine].sum() / run.trace.step.sum())
        assert float(cells["computing"]) == pytest.approx([1.0, 1.0, 2.0, 9.0][worker])


def test_a_trace_alone_has_a_page():
    text = page_of(stormy(300))
    assert headings(text) == [name for name in SECTIONS if name != "Progress"]
    for outcome in ("dropped", "rejected", "lost", "cancelled", "in flight"):
        assert outcome in Outline(text).text


def test_targets_are_drawn(task):
    speeds = asgd.durations.fixed([1.0, 1.0, 2.0, 9.0])
    both = asgd.compare(asgd.tasks.quadratic(workers=4), [asgd.async_sgd(0.05)], speeds, iterations=900, target=1e-4)
    found = {metric["name"]: metric["target"] for metric in data_of(page_of(both))["metrics"]}
    assert found == {"loss": None, "gradient_norm": 1e-4, "distance": None}


def test_a_diverged_run_says_so(task):
    speeds = asgd.durations.fixed([1.0, 1.0, 2.0, 9.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", asgd.DivergenceWarning)
        run = asgd.simulate(task, asgd.async_sgd(2.0), speeds, iterations=2000)
    text = page_of(run)
    assert f"diverged at iteration {run.diverged:,}" in text
    assert "NaN" not in text.split('id="data">')[1].split("</script>")[0]


def test_metrics_with_holes_are_drawn_where_they_are():
    metrics = {"iteration": np.arange(3.0), "time": np.full(3, np.nan), "loss": np.array([1.0, np.nan, 0.5])}
    (metric,) = data_of(compose([RunView("holes", stormy(50), metrics)]).html())["metrics"]
    assert metric["lines"][0] == {"run": 0, "iteration": [0, 2], "time": [None] * 2, "value": [1.0, 0.5]}, "one line"


# ---------------------------------------------------------------------------------------------- text from outside


def test_text_from_outside_is_escaped():
    metrics = {"iteration": np.arange(2.0), "time": np.arange(2.0), EVIL: np.array([1.0, 0.5])}
    journal = ({"event": EVIL, "seconds": 0.0, "iteration": 0, "worker": 0, "reason": EVIL},)
    subject = RunView(
        EVIL, stormy(50), metrics, method=EVIL, recipe=EVIL, task=EVIL, config={EVIL: EVIL}, journal=journal
    )
    for subjects in ([subject], [subject, subject.named(EVIL + "2")]):
        text = compose(subjects, title=EVIL).html()
        outline = Outline(text)
        assert outline.problems == []
        assert [tag for tag, _ in outline.tags].count("script") == 2
        assert "img" not in [tag for tag, _ in outline.tags]
        assert EVIL in "".join(outline.words)
        assert data_of(text)["runs"][0]["name"] == EVIL
        assert data_of(text)["metrics"][0]["name"] == EVIL


# ---------------------------------------------------------------------------------------------- asking for it


def test_run_comparison_and_function_write_the_same(runs, task, tmp_path):
    run = runs["async_sgd"]
    one, two = run.write_report(tmp_path / "one.html", task=task), tmp_path / "deep" / "two.html"
    assert one == tmp_path / "one.html"
    assert asgd.report(run, two, task=task) == two
    assert one.read_text("utf-8") == two.read_text("utf-8")
    both = asgd.compare(
        task, [asgd.async_sgd(0.05), asgd.minibatch_sgd(0.05)], asgd.durations.fixed([1, 1, 2, 9]), iterations=100
    )
    text = both.write_report(tmp_path / "both.html", title="Both").read_text("utf-8")
    assert "<h1>Both</h1>" in text
    assert [run["name"] for run in data_of(text)["runs"]] == ["async_sgd", "minibatch_sgd"]


def test_runs_of_one_name_are_told_apart(runs):
    found = gather([runs["async_sgd"], runs["async_sgd"], {"mine": runs["async_sgd"]}, runs["async_sgd"].trace])
    assert [subject.name for subject in found] == ["async_sgd", "async_sgd (2)", "mine", "async_sgd (3)"]


@pytest.mark.parametrize(("given", "says"), [([], "is empty"), (3, "is a int"), ({}, "is empty")])
def test_what_is_no_run_is_refused(given, says, tmp_path):
    with pytest.raises(BadParameter, match=says):
        asgd.report(given, tmp_path / "page.html")
    assert list(tmp_path.iterdir()) == []


def test_a_page_that_cannot_be_written_is_one_sentence(runs, tmp_path):
    with pytest.raises(BadParameter, match="cannot be written"):
        runs["async_sgd"].write_report(tmp_path)


def test_wide_figures_are_scrolled_and_narrow_ones_fit():
    page = Page("figures")
    page.figure('<svg viewBox="0 0 374.4 244.8"></svg>', "one panel")
    page.figure('<svg viewBox="0 0 518.4 244.8"></svg>', "two panels")
    assert '<figure><svg viewBox="0 0 374.4' in page.html()
    assert '<figure class="wide"><svg viewBox="0 0 518.4' in page.html()
