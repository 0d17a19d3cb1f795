"""Figures for papers, with matplotlib: timelines, delays, convergence and expected speed-up.

Every function draws into the ``axes`` that it is given, or into a figure of its own, and returns the axes::

    asgd.plot.timeline(run).figure.savefig("timeline.pdf")

No global setting of matplotlib is changed, and pyplot is not used. A "run" may be a run, a trace, a comparison, or a
run directory; pass several in a list, or in a dict that names them. Needs the extra ``report``. docs/api/showing.md
lists all functions.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, nearest
from asyncsgd.pages import figures
from asyncsgd.pages.figures import COLOURS, figure
from asyncsgd.pages.sources import gather
from asyncsgd.run.view import AXES, RunView
from asyncsgd.theory import Speedup
from asyncsgd.theory import speedup as predict
from asyncsgd.trace.columns import WHEN
from asyncsgd.trace.timeline import spans

__all__ = ["convergence", "delays", "overview", "speedup", "timeline"]

WIDE = 50.0
"""Positive values that differ by more than this factor are drawn on a logarithmic axis."""
POINTS = 16
"""The approximate number of concurrencies if none are given."""


def timeline(
    run: Any,
    *,
    start: float = 0.0,
    until: float | None = None,
    largest: int | None = None,
    bar: bool = True,
    axes: Any = None,
) -> Any:
    """Draw one row per worker with a bar per job, coloured by delay; jobs that did not arrive are hatched.

    Args:
        run: One run.
        start: The left end of the figure in seconds, or in iterations if the trace has no clock.
        until: The right end of the figure; by default the end of the trace.
        largest: The delay of the darkest colour; by default the largest delay. Pass it to compare several figures.
        bar: Whether to draw the colour bar.
        axes: The axes to draw into; by default those of a new figure.

    >>> import asyncsgd as asgd
    >>> speeds = asgd.durations.fixed([1, 1, 5])
    >>> run = asgd.simulate(asgd.tasks.quadratic(workers=3), asgd.async_sgd(0.1), speeds, iterations=30)
    >>> timeline(run, until=10).get_xlabel()
    'seconds'

    See docs/users/engineer.md for other ways to look at a run.
    """
    subject = _one(run)
    found = spans(subject.trace)
    until = found.horizon if until is None else until
    if not start < until:
        raise BadParameter("until", until, f"is not after start = {start:g}", f"the trace ends at {found.horizon:g}")
    workers = len(np.unique(subject.trace.jobs.worker))
    with _canvas(axes, height=min(9.0, max(1.6, 0.9 + 0.22 * workers))) as axes:
        colours = figures.timeline(axes, subject.trace, until, start, largest, subject.label)
        axes.set_xlabel("seconds" if found.timed else "iterations")
        if bar:
            figures.delay_bar(axes.figure, colours, axes)
        return axes


def delays(runs: Any, *, axes: Any = None) -> Any:
    """Draw the share of updates with at most each delay, one line per run.

    Args:
        runs: One or several runs.
        axes: The axes to draw into; by default those of a new figure.

    >>> import asyncsgd as asgd
    >>> speeds = asgd.durations.fixed([1, 1, 5])
    >>> run = asgd.simulate(asgd.tasks.quadratic(workers=3), asgd.async_sgd(0.1), speeds, iterations=30)
    >>> delays(run).get_ylabel()
    'share of updates'

    See docs/users/engineer.md for other ways to look at a run.
    """
    subjects = gather(runs)
    named = {f"{s.name}: τ avg {s.trace.delays.average:.3g}, max {s.trace.delays.maximum}": s.trace for s in subjects}
    with _canvas(axes) as axes:
        figures.delays(axes, named)
        return axes


def convergence(runs: Any, metric: str | None = None, *, over: str = "time", axes: Any = None) -> Any:
    """Draw a metric over seconds or iterations, one line per run; a dotted line marks the target.

    Args:
        runs: One or several runs.
        metric: The name of a metric of the task; by default the loss, or else the first metric.
        over: ``"time"`` or ``"iteration"``.
        axes: The axes to draw into; by default those of a new figure.

    >>> import asyncsgd as asgd
    >>> task, speeds = asgd.tasks.quadratic(workers=2), asgd.durations.fixed([1, 4])
    >>> run = asgd.simulate(task, asgd.async_sgd(0.1), speeds, iterations=100)
    >>> convergence(run, over="iteration").get_xlabel()
    'iterations'

    See docs/users/engineer.md for other ways to look at a run.
    """
    if over not in AXES:
        raise BadParameter("over", over, "is unknown", f"pass one of {', '.join(AXES)}")
    subjects = gather(runs)
    metric = _metric(subjects, metric)
    with _canvas(axes) as axes:
        figures.convergence(axes, {subject.name: subject for subject in subjects}, metric, over)
        for target in sorted({subject.targets[metric] for subject in subjects if metric in subject.targets}):
            axes.axhline(target, color=COLOURS[-1], linewidth=0.8, linestyle=":", marker="")
        values = np.concatenate([subject.metrics[metric] for subject in subjects])
        values = values[np.isfinite(values)]
        if len(values) and values.min() > 0 and values.max() > WIDE * values.min():
            axes.set_yscale("log")
        return axes


def speedup(
    durations: Sequence[float], concurrencies: Sequence[int] | None = None, *, ratio: bool = False, axes: Any = None
) -> Any:
    """Draw what asynchrony saves by theory: seconds for c gradients with c jobs in flight, over c.

    The lines are mini-batch SGD, the speed-up lemma, the lemma with queues (exact for exponential durations,
    approximate for fixed ones), and the floor under them that the slowest worker sets; see `asyncsgd.theory.speedup`.

    Args:
        durations: Seconds per gradient, one per worker.
        concurrencies: The numbers of jobs in flight; by default from 1 to the number of workers.
        ratio: Draw how many times faster than mini-batch SGD each is, instead of seconds.
        axes: The axes to draw into; by default those of a new figure.

    >>> axes = speedup([10.0] * 9 + [60.0], [1, 2, 5, 10])
    >>> [line.get_label() for line in axes.get_lines()][:2]
    ['mini-batch SGD', 'asynchronous, by the lemma']

    See docs/theory.md for the formulas behind the curves.
    """
    chosen = _concurrencies(len(durations)) if concurrencies is None else [int(value) for value in concurrencies]
    for value in chosen:
        count("concurrency", value)
    if not chosen:
        raise BadParameter("concurrencies", concurrencies, "is empty", "pass some, such as [1, 10, 100]")
    found = [predict(durations, value) for value in sorted(chosen)]
    with _canvas(axes) as axes:
        curves = {name: [_value(one, name, ratio) for one in found] for name in _CURVES}
        for name, (label, style) in _CURVES.items():
            axes.plot(sorted(chosen), curves[name], label=label, markersize=4, **style)
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(lambda value, _: f"{value:,g}")
            axis.set_minor_formatter(lambda value, _: f"{value:,g}" if f"{value:e}"[0] in "25" else "")
        # With few jobs in flight the floor is far below all other lines, so it may leave the picture.
        reached = [value for name, values in curves.items() if name != "floor" for value in values]
        axes.set_ylim(min(reached) / 1.6, max(reached) * 1.6)
        axes.set_xlabel("jobs in flight")
        axes.set_ylabel("times faster than mini-batch SGD" if ratio else "seconds for this many gradients")
        axes.legend()
        return axes


def overview(run: Any, metric: str | None = None) -> Any:
    """Draw one run and return the figure: a metric, the delays, and the timeline of the workers, below each other.

    Args:
        run: One run.
        metric: The name of a metric of the task; by default the loss, or else the first metric.

    >>> import asyncsgd as asgd
    >>> speeds = asgd.durations.fixed([1, 1, 5])
    >>> run = asgd.simulate(asgd.tasks.quadratic(workers=3), asgd.async_sgd(0.1), speeds, iterations=30)
    >>> [axes.get_ylabel() for axes in overview(run).axes[:2]]
    ['loss', 'share of updates']

    See docs/users/engineer.md for other ways to look at a run.
    """
    subject = _one(run)
    workers = len(np.unique(subject.trace.jobs.worker))
    rows = min(6.0, max(1.6, 0.9 + 0.22 * workers))
    with figure(rows=3, height=5.6 + rows, height_ratios=[2.8, 2.8, rows]) as (fig, (top, middle, bottom)):
        fig.set_facecolor("white")
        convergence(subject, metric, over="time" if subject.timed else "iteration", axes=top)
        delays(subject, axes=middle)
        timeline(subject, axes=bottom)
        return fig


_CURVES: dict[str, tuple[str, dict[str, Any]]] = {
    "minibatch": ("mini-batch SGD", {"color": COLOURS[1], "marker": "s"}),
    "asynchronous": ("asynchronous, by the lemma", {"color": COLOURS[0], "marker": "o", "linestyle": "--"}),
    "queued": ("with queues, exponential", {"color": COLOURS[2], "marker": "^"}),
    "queued_fixed": ("with queues, fixed", {"color": COLOURS[0], "marker": "v"}),
    "floor": ("limit set by the slowest", {"color": COLOURS[-1], "marker": "", "linestyle": ":"}),
}


def _value(found: Speedup, name: str, ratio: bool) -> float:
    value = float(getattr(found, name))
    return found.minibatch / value if ratio else value


def _concurrencies(workers: int) -> list[int]:
    return sorted({int(value) for value in np.round(np.geomspace(1, max(1, workers), POINTS))})


def _one(run: Any) -> RunView:
    found = gather(run)
    if len(found) > 1:
        raise BadParameter("run", run, f"holds {len(found)} runs", "pass one, and draw the others into other axes")
    return found[0]


def _metric(subjects: Sequence[RunView], metric: str | None) -> str:
    known = [name for name in subjects[0].metrics if name not in WHEN]
    if metric is None:
        if not known:
            raise BadParameter("runs", subjects[0].name, "has no metrics", "pass runs, not traces")
        return "loss" if "loss" in known else known[0]
    for subject in subjects:
        if metric not in subject.metrics or metric in WHEN:
            names = [name for name in subject.metrics if name not in WHEN]
            fix = nearest(metric, names) if names else "it has none: pass runs, not traces"
            raise BadParameter("metric", metric, f"is not among those of {subject.name}", fix)
    return metric


@contextmanager
def _canvas(axes: Any, **size: float) -> Iterator[Any]:
    """Yield the user's axes, or new ones in the style of asyncsgd."""
    if axes is not None:
        yield axes
        return
    with figure(**size) as (fig, made):  # type: ignore[arg-type]
        fig.set_facecolor("white")
        yield made
