"""Figures for papers: what is drawn is what the run says, and nothing of matplotlib's is changed."""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.trace import Trace
from asyncsgd.trace.timeline import spans

matplotlib = pytest.importorskip("matplotlib", reason="pip install 'asyncsgd[report]'")

TASK = asgd.tasks.quadratic(workers=3, noise=0.1)
SPEEDS = asgd.durations.fixed([1.0, 2.0, 5.0])
DURATIONS = [10.0] * 90 + [60.0] * 10


@pytest.fixture(scope="module")
def runs() -> dict[str, asgd.Run]:
    methods = {"async": asgd.async_sgd(0.05), "sync": asgd.minibatch_sgd(0.2)}
    return {name: asgd.simulate(TASK, method, SPEEDS, iterations=120) for name, method in methods.items()}


@pytest.fixture(autouse=True)
def _nothing_is_changed() -> Any:
    before = dict(matplotlib.rcParams)
    yield
    assert dict(matplotlib.rcParams) == before


def own() -> Any:
    """Axes of a user, with a style of their own."""
    from matplotlib.figure import Figure

    return Figure().subplots()


def corners(axes: Any) -> np.ndarray:
    """Left, right and row of each bar, the arrived ones first."""
    paths = [path for collection in axes.collections for path in collection.get_paths()]
    boxes = [path.vertices[:4] for path in paths]
    return np.array([(box[:, 0].min(), box[:, 0].max(), round(box[:, 1].mean())) for box in boxes])


# ---------------------------------------------------------------------------------------------- timeline


def test_bars_are_the_jobs(runs: dict[str, asgd.Run]) -> None:
    trace = runs["async"].trace
    axes = asgd.plot.timeline(trace)
    found = spans(trace)
    arrived = trace.jobs.arrived & (found.begin < found.end)
    expected = np.stack([found.begin, found.end, trace.jobs.worker], 1)[arrived]
    assert np.array_equal(corners(axes)[: arrived.sum()], expected)
    assert [text.get_text() for text in axes.get_yticklabels()] == ["worker 0", "worker 1", "worker 2"]
    assert axes.get_xlim() == (0.0, found.horizon)
    low, high = axes.get_ylim()
    assert low > high  # worker 0 is on top
    colours = axes.collections[0].get_facecolors()
    delays = (trace.jobs.ended_iteration - trace.jobs.assigned_iteration)[arrived]
    for delay in np.unique(delays):
        assert len(np.unique(colours[delays == delay], axis=0)) == 1
    assert len(np.unique(colours, axis=0)) == len(np.unique(delays))


def test_a_stretch_of_it(runs: dict[str, asgd.Run]) -> None:
    trace = runs["async"].trace
    axes = asgd.plot.timeline(runs["async"], start=10.5, until=21.0)
    found = spans(trace)
    seen = (found.begin < 21.0) & (found.end > 10.5)
    bars = corners(axes)
    assert len(bars) == np.count_nonzero(seen)
    assert bars[:, 0].min() == 10.5
    assert bars[:, 1].max() == 21.0
    done, undone = (len(collection.get_paths()) for collection in axes.collections)
    assert done == np.count_nonzero(seen & (found.end <= 21.0))
    assert undone == np.count_nonzero(seen & (found.end > 21.0)) > 0


def test_a_trace_without_a_clock() -> None:
    trace = Trace.from_history(workers=[0, 1, 1], assigned=[0, 0, 1], arrived=[1, 0, -1])
    axes = asgd.plot.timeline(trace, until=3)
    assert axes.get_xlabel() == "iterations"
    assert corners(axes).tolist() == [[0, 2, 0], [0, 1, 1], [1, 3, 1]]


def test_of_many_workers_some_are_named() -> None:
    trace = Trace.from_history(workers=list(range(100)), assigned=[0] * 100, arrived=list(range(100)))
    labels = [text.get_text() for text in asgd.plot.timeline(trace).get_yticklabels()]
    assert labels[:2] == ["worker 0", "worker 3"]
    assert len(labels) == 34


def test_a_stretch_that_is_none(runs: dict[str, asgd.Run]) -> None:
    with pytest.raises(BadParameter, match=r"until = 3 is not after start = 5; the trace ends at "):
        asgd.plot.timeline(runs["async"], start=5, until=3)


def test_one_timeline_at_a_time(runs: dict[str, asgd.Run]) -> None:
    with pytest.raises(BadParameter, match="holds 2 runs; pass one"):
        asgd.plot.timeline(runs)


# ---------------------------------------------------------------------------------------------- lines


def test_delays(runs: dict[str, asgd.Run]) -> None:
    axes = asgd.plot.delays(runs)
    delays = runs["async"].trace.delays
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels[0] == f"async: τ avg {delays.average:.3g}, max {delays.maximum}"
    x, share = axes.get_lines()[0].get_data()
    assert np.array_equal(x - 1, np.sort(runs["async"].trace.delay))
    assert share[-1] == 1.0


@pytest.mark.parametrize("over", ["time", "iteration"])
def test_convergence(runs: dict[str, asgd.Run], over: str) -> None:
    axes = asgd.plot.convergence(runs, "gradient_norm", over=over)
    assert [line.get_label() for line in axes.get_lines()] == ["async", "sync"]
    for line, run in zip(axes.get_lines(), runs.values(), strict=True):
        assert np.array_equal(line.get_xdata(), run.metrics[over])
        assert np.array_equal(line.get_ydata(), run.metrics["gradient_norm"])
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("seconds" if over == "time" else "iterations", "gradient_norm")
    assert axes.get_yscale() == "log"


def test_the_loss_is_what_is_meant(runs: dict[str, asgd.Run]) -> None:
    assert asgd.plot.convergence(runs["async"]).get_ylabel() == "loss"


@pytest.mark.slow
@pytest.mark.processes
def test_a_target_is_drawn(tmp_path: Path) -> None:
    run = asgd.train(
        asgd.tasks.quadratic(workers=2),
        asgd.async_sgd(0.1),
        engine=asgd.engines.processes(2),
        iterations=500,
        until="loss <= 0.5",
        directory=tmp_path,
        progress=False,
    )
    line, target = asgd.plot.convergence(tmp_path).get_lines()
    assert np.array_equal(line.get_ydata(), run.metrics["loss"])
    assert set(target.get_ydata()) == {0.5}


def test_metrics_that_are_not_there(runs: dict[str, asgd.Run]) -> None:
    with pytest.raises(BadParameter, match=r"metric = 'accuracy' is not among those of async; pass one of: loss, "):
        asgd.plot.convergence(runs, "accuracy")
    with pytest.raises(BadParameter, match="has no metrics; pass runs, not traces"):
        asgd.plot.convergence(runs["async"].trace)
    with pytest.raises(BadParameter, match="over = 'epochs' is unknown; pass one of iteration, time"):
        asgd.plot.convergence(runs, over="epochs")


# ---------------------------------------------------------------------------------------------- theory


@pytest.mark.parametrize("ratio", [False, True])
def test_speedup_is_the_theory(ratio: bool) -> None:
    axes = asgd.plot.speedup(DURATIONS, [20, 1, 5], ratio=ratio)
    found = [asgd.theory.speedup(DURATIONS, concurrency) for concurrency in (1, 5, 20)]
    names = ("minibatch", "asynchronous", "queued", "queued_fixed", "floor")
    for name, line in zip(names, axes.get_lines(), strict=True):
        expected = [one.minibatch / getattr(one, name) if ratio else getattr(one, name) for one in found]
        assert line.get_xdata().tolist() == [1, 5, 20]
        assert line.get_ydata().tolist() == expected
    low, high = axes.get_ylim()
    for line in axes.get_lines()[:-1]:
        assert low <= min(line.get_ydata())
        assert max(line.get_ydata()) <= high


def test_concurrencies_if_nobody_says() -> None:
    concurrencies = asgd.plot.speedup(DURATIONS).get_lines()[0].get_xdata().tolist()
    assert (concurrencies[0], concurrencies[-1]) == (1, 100)
    assert concurrencies == sorted(set(concurrencies))


@pytest.mark.parametrize(("given", "words"), [([], "is empty"), ([0], "concurrency = 0")])
def test_concurrencies_that_make_no_sense(given: list[int], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        asgd.plot.speedup(DURATIONS, given)


# ---------------------------------------------------------------------------------------------- all of them

DRAWINGS = {
    "timeline": lambda runs, **more: asgd.plot.timeline(runs["async"], **more),
    "delays": lambda runs, **more: asgd.plot.delays(runs, **more),
    "convergence": lambda runs, **more: asgd.plot.convergence(runs, **more),
    "speedup": lambda runs, **more: asgd.plot.speedup(DURATIONS, **more),
}


@pytest.mark.parametrize("name", DRAWINGS)
def test_your_axes_are_used(runs: dict[str, asgd.Run], name: str) -> None:
    axes = own()
    assert DRAWINGS[name](runs, axes=axes) is axes
    assert axes.has_data() or axes.collections


@pytest.mark.parametrize("name", DRAWINGS)
def test_vector_files(runs: dict[str, asgd.Run], name: str, tmp_path: Path) -> None:
    figure = DRAWINGS[name](runs).figure
    figure.savefig(tmp_path / "out.pdf")
    assert (tmp_path / "out.pdf").read_bytes().startswith(b"%PDF")
    text = io.StringIO()
    figure.savefig(text, format="svg")
    # Lines and bars are lines and bars: the only picture is the colour bar.
    assert len(re.findall("<image", text.getvalue())) == (name == "timeline")


@pytest.mark.slow
def test_no_pyplot(tmp_path: Path) -> None:
    """It would open windows, and keep every figure alive."""
    import subprocess
    import sys

    script = (
        "import sys, asyncsgd as asgd; asgd.plot.speedup([1.0, 2.0]).figure.savefig(sys.argv[1]); "
        "sys.exit('matplotlib.pyplot' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "a.pdf")], check=True)
