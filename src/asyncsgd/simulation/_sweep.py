"""Run whole grids of step sizes and seeds at once."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter, DivergenceWarning, EdgeWarning, TargetNotReached
from asyncsgd.core.layout import layout_of
from asyncsgd.core.method import Method
from asyncsgd.core.parts import Reason
from asyncsgd.core.validate import count, nearest, positive
from asyncsgd.simulation import compiled_replay
from asyncsgd.simulation._simulate import arrivals_of, check_request, over_network, same_steps, simulate
from asyncsgd.simulation.compiled_replay import METRICS, Measure, Progress, Stop, shown
from asyncsgd.simulation.durations import Durations
from asyncsgd.simulation.lowering import lower, lower_dispatch
from asyncsgd.tasks.base import Task, batches_of
from asyncsgd.trace import Trace

Recipe = Callable[[float], Method]


@dataclass(frozen=True, eq=False)
class Sweep:
    """The results of a grid, as arrays of shape (step sizes, seeds)."""

    method: str
    stepsizes: NDArray[np.float64]
    seeds: tuple[int, ...]
    metric: str
    target: float | None
    iterations: NDArray[np.float64]
    """Iterations to the target; inf if it was not reached."""
    time: NDArray[np.float64]
    """Simulated seconds to the target; inf if it was not reached."""
    final: NDArray[np.float64]
    """The metric at the end, or when the target was reached; NaN if the run diverged."""
    diverged: NDArray[np.bool_]

    @property
    def scores(self) -> NDArray[np.float64]:
        """One number per step size, smaller is better: mean iterations to the target, or mean final metric."""
        table = self.iterations if self.target is not None else np.where(self.diverged, np.inf, self.final)
        scores: NDArray[np.float64] = table.mean(axis=1)
        return scores

    @property
    def index(self) -> int:
        """The index of the best step size."""
        return int(np.argmin(self.scores))

    @property
    def best(self) -> float:
        """The best step size."""
        return float(self.stepsizes[self.index])

    @property
    def best_iterations(self) -> float:
        """Mean iterations to the target at the best step size."""
        return float(self.iterations[self.index].mean())

    @property
    def best_time(self) -> float:
        """Mean simulated seconds to the target at the best step size."""
        return float(self.time[self.index].mean())

    @property
    def on_edge(self) -> bool:
        """Whether the best step size is the smallest or the largest of the grid."""
        return len(self.stepsizes) > 1 and self.best in (self.stepsizes.min(), self.stepsizes.max())

    def __repr__(self) -> str:
        reached = "" if self.target is None else f", {self.best_iterations:g} iterations to {self.target:g}"
        return f"<Sweep of {self.method}: best of {len(self.stepsizes)} stepsizes {self.best:.4g}{reached}>"


def grid(low: float, high: float, points: int) -> NDArray[np.float64]:
    """Return step sizes equally spaced on a logarithmic scale, both ends included.

    Args:
        low: The smallest step size.
        high: The largest step size.
        points: The number of step sizes.

    >>> [float(s) for s in grid(1e-2, 1, 3)]
    [0.01, 0.1, 1.0]

    See docs/users/researcher.md for sweeps over a grid of step sizes.
    """
    positive("low", low)
    positive("high", high)
    count("points", points)
    if high < low:
        raise BadParameter("high", high, f"lies below low = {low}", "exchange the two")
    return np.geomspace(low, high, points)


@dataclass(frozen=True)
class Goal:
    """What a sweep judges runs by: a metric at the end, or the time until it reaches a target."""

    target: float | None = None
    metric: str = "gradient_norm"
    window: int = 30
    sustained: bool = False


def sweep(
    task: Task,
    method: Recipe | Method,
    durations: Durations | Trace,
    *,
    stepsizes: Sequence[float] | NDArray[np.float64],
    seeds: Sequence[int] = (0,),
    iterations: int | None = None,
    target: float | None = None,
    metric: str = "gradient_norm",
    window: int = 30,
    sustained: bool = False,
    progress: bool = False,
) -> Sweep:
    """Simulate every step size with every seed, and find the best step size.

    All step sizes of a seed run together in compiled code where possible.

    Args:
        task: What a job computes, as for `asyncsgd.simulate`.
        method: A recipe such as ``asgd.async_sgd``, or a method whose step size is replaced. If the method has a
            schedule, the grid replaces its peak and keeps its shape.
        durations: How long jobs take, or a recorded trace whose timing is repeated.
        stepsizes: The step sizes or peaks to try, for instance ``asgd.grid(1e-3, 10, 41)``.
        seeds: The seeds to run each step size with. Scores are means over them.
        iterations: The number of gradients that arrive in a run. With a trace, the default is all of its arrivals.
        target: A value of the metric. A run that reaches it ends there, and the step size that needs the fewest
            iterations is the best one. Without a target, the best one has the smallest metric at the end.
        metric: The metric to judge by: "loss", "gradient_norm" or "distance", if the task measures it.
        window: The number of values that decide whether the target is reached: their mean is at or below it.
        sustained: Ask for ``window`` values in a row at or below the target instead, counted from the first of them.
        progress: Whether to show a progress bar on the terminal.

    >>> import asyncsgd as asgd
    >>> task, speeds = asgd.tasks.quadratic(workers=2), asgd.durations.fixed([1, 4])
    >>> steps = asgd.grid(1e-3, 1e1, 41)
    >>> found = asgd.sweep(task, asgd.async_sgd, speeds, stepsizes=steps, iterations=2000, target=1e-8)
    >>> found.on_edge, bool(found.best_iterations < 300)
    (False, True)
    >>> method = asgd.async_sgd(asgd.schedules.cosine(1.0, warmup=20))
    >>> round(asgd.sweep(task, method, speeds, stepsizes=[0.01, 0.1, 5.0], iterations=500).best, 2)
    0.1

    docs/users/researcher.md has more examples.
    """
    goal = Goal(target, metric, window, sustained)
    length = durations.iterations if iterations is None and isinstance(durations, Trace) else iterations
    with shown(progress, None if length is None else length * np.size(stepsizes) * np.size(seeds), "sweeping") as bar:
        return run_sweep(
            task, method, durations, stepsizes=stepsizes, seeds=seeds, iterations=iterations, goal=goal, progress=bar
        )


def run_sweep(
    task: Task,
    method: Recipe | Method,
    durations: Durations | Trace,
    *,
    stepsizes: Sequence[float] | NDArray[np.float64],
    seeds: Sequence[int],
    iterations: int | None,
    goal: Goal,
    progress: Progress | None,
) -> Sweep:
    """Do what `sweep` does, and call ``progress(k)`` whenever k more iterations of single runs are done."""
    sizes = check_grid(stepsizes)
    seeds = list(seeds) if isinstance(seeds, Sequence | np.ndarray) and not isinstance(seeds, str) else []
    if not seeds:
        raise BadParameter("seeds", seeds, "is not a list of seeds", "pass at least one, such as seeds=[0]")
    methods = [with_step(method, float(size)) for size in sizes]
    for seed in seeds:
        iterations, workers = check_request(task, methods[0], durations, iterations, seed)
    assert iterations is not None
    layout, counted = layout_of(task), batches_of(task)
    if isinstance(method, Method):  # bound and checked once: the grid changes only the step or the peak
        first = methods[0].bind(workers, iterations, counted).bind_layout(layout)
        methods = [with_step(first, float(size)) for size in sizes]
    else:
        methods = [each.bind(workers, iterations, counted).bind_layout(layout) for each in methods]
    stop = _stop(task, goal, iterations)
    measure = Measure(1 if stop else max(1, iterations // 100), (goal.metric,), stop, history=False)
    request = _Request(task, methods, durations, iterations, measure, progress)
    shape = (len(sizes), len(seeds))
    reached, when, final = np.full(shape, np.inf), np.full(shape, np.inf), np.full(shape, np.nan)
    diverged = np.zeros(shape, np.bool_)
    for members in _groups(durations, methods[0], seeds):
        lanes = [(row, column) for row in range(len(sizes)) for column in members]
        times, stopped, diverged_at, last = _run_lanes(request, [(row, seeds[column]) for row, column in lanes])
        for lane, cell in enumerate(lanes):
            diverged[cell] = diverged_at[lane] >= 0
            final[cell] = last[lane]
            if stopped[lane] >= 0:
                reached[cell] = stopped[lane]
                when[cell] = times[stopped[lane]]
    found = Sweep(methods[0].name, sizes, tuple(seeds), goal.metric, goal.target, reached, when, final, diverged)
    _judge(found, iterations)
    return found


def check_grid(stepsizes: Sequence[float] | NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the step sizes of a grid as an array, at least one."""
    try:
        sizes = np.asarray(stepsizes, dtype=float)
    except (TypeError, ValueError):
        sizes = np.empty((0, 0))
    if sizes.ndim != 1 or sizes.size == 0:
        fix = "pass a list of step sizes, or asgd.grid(low, high, n)"
        raise BadParameter("stepsizes", stepsizes, "is not a grid", fix)
    return sizes


def _judge(found: Sweep, iterations: int) -> None:
    if found.diverged.any(axis=1).all() and not np.isfinite(found.scores).any():
        every = "every stepsize diverged" if found.diverged.all() else "every stepsize diverged with some seed"
        raise TargetNotReached(f"{every}; pass smaller stepsizes", found)
    if found.target is not None and not np.isfinite(found.scores).any():
        row, column = np.unravel_index(np.nanargmin(found.final), found.final.shape)
        some = int(np.isfinite(found.iterations).sum())
        closest = f"{found.metric} {found.final[row, column]:.3g} at stepsize {found.stepsizes[row]:.3g}"
        which = "by any stepsize" if not some else "by any stepsize with every seed"
        seen = f"closest: {closest}" if not some else f"{some} of {found.iterations.size} runs reached it"
        raise TargetNotReached(
            f"target = {found.target:g} was not reached {which} within {iterations} iterations ({seen}); "
            "pass a larger target, more iterations or other stepsizes",
            found,
        )
    if found.on_edge:
        side = "smallest" if found.best == found.stepsizes.min() else "largest"
        warnings.warn(
            f"the best stepsize {found.best:.3g} is the {side} of the grid: extend stepsizes beyond it",
            EdgeWarning,
            stacklevel=4,
        )


def with_step(method: Recipe | Method, stepsize: float) -> Method:
    """Return the method at this step size: the called recipe, or the method with its step or its peak replaced."""
    if isinstance(method, Method):
        return method.using(step=method.step.with_peak(stepsize))
    name = getattr(method, "__name__", repr(method))
    if not callable(method):
        raise BadParameter("method", method, "is not a method", "pass a recipe such as asgd.async_sgd, or a method")
    named = "stepsize" in inspect.signature(method).parameters
    try:
        return method(stepsize=stepsize) if named else method(stepsize)  # type: ignore[call-arg]
    except TypeError as error:
        fix = f"pass a function of the stepsize: lambda stepsize: asgd.{name}(..., stepsize=stepsize)"
        raise BadParameter("method", name, f"needs more than a stepsize ({error})", fix) from None


def _stop(task: Task, goal: Goal, iterations: int) -> Stop | None:
    known = [name for name in METRICS if name in task.evaluate(task.initial())]
    if goal.metric not in known:
        raise BadParameter("metric", goal.metric, "is not measured by this task", nearest(goal.metric, known))
    target, window = goal.target, goal.window
    if target is None:
        return None
    count("window", window)
    if isinstance(target, bool) or not isinstance(target, int | float) or not (np.isfinite(target) and target > 0):
        fix = f"pass a target above 0, because {goal.metric} is never below"
        raise BadParameter("target", target, "cannot be reached", fix)
    if window > iterations:
        fix = f"pass window <= {iterations} or more iterations"
        raise BadParameter("window", window, f"is longer than the run of {iterations} iterations", fix)
    return Stop(float(target), goal.metric, window, goal.sustained)


def _groups(durations: Durations | Trace, method: Method, seeds: Sequence[int]) -> list[list[int]]:
    """Return the seeds in groups that share a schedule: all of them if nothing in the schedule is random."""
    rule = lower_dispatch(method.dispatch)
    fixed = isinstance(durations, Trace) or (
        durations.deterministic and not isinstance(rule, Reason) and not rule.random
    )
    columns = list(range(len(seeds)))
    return [columns] if fixed else [[column] for column in columns]


Lanes = tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]
"""Times of all iterations; per lane the iteration of its stop, that of its divergence, and its last metric."""


class _Request(NamedTuple):
    """The checked arguments of a sweep; ``methods`` has one bound method per step size."""

    task: Task
    methods: list[Method]
    durations: Durations | Trace
    iterations: int
    measure: Measure
    progress: Progress | None


def _run_lanes(request: _Request, lanes: list[tuple[int, int]]) -> Lanes:
    """Run lanes of (row of the method, seed) that share a schedule of arrivals."""
    task, methods, durations, iterations, measure, progress = request
    first, seed = methods[0], lanes[0][1]
    alike = all(with_step(method, 1.0) == with_step(first, 1.0) for method in methods)
    low = lower(first, task)
    if not (alike and low.numbers and (isinstance(durations, Trace) or low.schedule)):
        return _one_by_one(request, lanes)
    arrivals = arrivals_of(over_network(durations, first, task), first, iterations, seed)
    if not same_steps(arrivals, first):
        return _one_by_one(request, lanes)
    pairs = [(methods[row].step.peak, its) for row, its in lanes]
    result = compiled_replay.replay_lanes(arrivals, task, first, pairs, measure, progress=progress)
    return np.append(0.0, arrivals.time), result.stopped, result.diverged, result.final[measure.wanted[0]]


def _one_by_one(request: _Request, lanes: list[tuple[int, int]]) -> Lanes:
    """Run what has no compiled form: one run after the other to the end, judged by the same rule."""
    task, methods, durations, iterations, measure, progress = request
    stop = measure.stop
    stopped, diverged = np.full(len(lanes), -1, np.int64), np.full(len(lanes), -1, np.int64)
    last, times = np.full(len(lanes), np.nan), np.zeros(1)
    for lane, (row, seed) in enumerate(lanes):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DivergenceWarning)
            run = simulate(task, methods[row], durations, iterations=iterations, seed=seed, every=measure.every)
        seen = run.metrics[measure.wanted[0]]
        stopped[lane] = first_reached(seen, stop) if stop else -1
        if stopped[lane] >= 0:
            verdict = stopped[lane] + (stop.window - 1 if stop and stop.sustained else 0)
            last[lane] = seen[verdict]
        elif run.diverged is not None:
            diverged[lane] = run.diverged
        else:
            last[lane] = seen[-1]
        if len(run.trace.time) >= len(times):
            times = np.append(0.0, run.trace.time)
        if progress is not None:
            progress(iterations)
    return times, stopped, diverged, last


def first_reached(values: NDArray[np.float64], stop: Stop) -> int:
    """Return the iteration at which a run with these values (one per iteration, from 0) would have stopped, or -1."""
    below = 0
    for t in range(1, len(values)):
        below = below + 1 if values[t] <= stop.target else 0
        if stop.sustained and below == stop.window:
            return t - stop.window + 1
        if not stop.sustained and t + 1 >= stop.window:
            total = 0.0
            for value in values[t + 1 - stop.window : t + 1]:
                total += float(value)
            if total / stop.window <= stop.target:
                return t
    return -1
