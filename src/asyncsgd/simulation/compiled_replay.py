"""Compute the numbers along given arrivals in compiled lanes, for methods and tasks that have a compiled form."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.random import derive
from asyncsgd.core.server import JOB
from asyncsgd.core.vectors import Vector
from asyncsgd.simulation.lowering import Numbers, Rule, lower_numbers, weigh
from asyncsgd.trace.columns import Floats
from asyncsgd.trace.replay import Arrivals, Weighed

METRICS = ("loss", "gradient_norm", "distance")
WIDTH = 16
"""The number of lanes that one call advances together, chosen by measurement (benchmarks/simulate)."""
HUGE = 1e30
"""A metric this many times its first value (or 1) counts as divergence."""

Progress = Callable[[int], None]


class Bar:
    """A progress bar on the terminal; shows nothing where standard error is not a terminal."""

    def __init__(self, total: int | None, what: str) -> None:
        from rich import progress
        from rich.console import Console

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(),
        )
        console = Console(stderr=True)
        self._bar = progress.Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._what = what
        self._task = self._bar.add_task(f"{what} (the first run compiles for half a minute)", total=total)

    def __enter__(self) -> Progress:
        self._bar.start()
        return lambda done: self._bar.update(self._task, advance=done, description=self._what)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


@contextmanager
def shown(progress: bool, total: int | None, what: str) -> Iterator[Progress | None]:
    """Give the function that advances a progress bar, or None if ``progress`` is False."""
    if not isinstance(progress, bool):
        raise BadParameter("progress", progress, "is not True or False", "pass progress=True to see a progress bar")
    if not progress:
        yield None
        return
    with Bar(total, what) as advance:
        yield advance


@dataclass(frozen=True)
class Stop:
    """When a lane stops: its metric averages (or stays) at or below the target over a window of iterations."""

    target: float
    metric: str = "gradient_norm"
    window: int = 30
    sustained: bool = False
    """False: the mean of the last ``window`` values; True: every one of them, counted from the first."""


@dataclass(frozen=True)
class Measure:
    """What is measured along a replay, and when a lane stops."""

    every: int
    """The number of iterations between two measurements."""
    wanted: tuple[str, ...] = METRICS
    stop: Stop | None = None
    history: bool = True
    """False: keep only the last metrics, so that memory does not grow with the iterations."""
    others: bool = False
    """Also keep every further metric of the task; needs a single lane."""


Lane = tuple[float, int]
"""The step size of a run, or the peak of its schedule, and its seed."""


@dataclass(frozen=True, eq=False)
class Result:
    """The results of one or several lanes; the last axis is lanes."""

    x: Floats
    """(dimension, lanes): the last model; NaN where the lane diverged."""
    iteration: NDArray[np.int64]
    """(records,): the iterations at which metrics were taken."""
    metrics: dict[str, Floats]
    """(records, lanes) each; NaN from divergence on."""
    stopped: NDArray[np.int64]
    """(lanes,): iteration at which the target was reached, -1 if it was not."""
    diverged: NDArray[np.int64]
    """(lanes,): iteration at which the lane was found to diverge, -1 if it did not."""
    reached: int
    """The number of iterations that were run."""
    final: dict[str, Floats]
    """(lanes,) each: the metrics when the lane stopped, or the last ones taken; NaN where it diverged."""
    others: dict[str, NDArray[Any]]
    """(records,) each: the task's further metrics, if there was only one lane."""
    weighed: Weighed | None = None


def replay_lanes(
    arrivals: Arrivals,
    task: Any,
    method: Method,
    lanes: Sequence[Lane],
    measure: Measure,
    *,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Result:
    """Run the method along the arrivals once per lane. Lanes are independent of each other.

    Args:
        arrivals: The arrivals in order, each with its worker and the point that its job read.
        task: A task with a compiled gradient.
        method: A bound method with a compiled form. The lanes replace its step size, or the peak of its schedule.
        lanes: One (step size, seed) pair per run.
        measure: What is measured, and when a lane stops.
        threads: The number of threads; by default one per core.
        progress: A function that is called with k when k more lane-iterations are done.
    """
    from asyncsgd.simulation import replay_kernel as kernel

    numbers = lower_numbers(method, task)
    if not isinstance(numbers, Numbers):
        raise BadParameter("method", method.name, f"cannot run in lanes: {numbers}", "use asgd.simulate")
    _announce()
    every, stop, count = measure.every, measure.stop, len(lanes)
    weighed = weigh(arrivals, method)
    path, slots, first = _path(arrivals, weighed, method.step.shares(len(arrivals)))
    code, rule = numbers.task, numbers.rule
    width = 1 if code.own or count == 1 else WIDTH
    advance = _own_advance(task) if code.own else kernel.advance_built_in
    data, stochastic = code.data, code.stochastic
    total, x0 = len(arrivals), task.initial()
    records = -(-total // every) + 1  # the start, every `every` iterations, and the end
    everything = task.evaluate(x0)
    start = {name: float(everything[name]) for name in METRICS if name in measure.wanted and name in everything}
    # The task itself evaluates, between two calls, what the kernels do not measure.
    more = [name for name in everything if name not in METRICS] if measure.others and count == 1 else []
    outside = not code.measured or bool(more)
    if outside:
        width = 1
    rows = [everything]
    taken = tuple(start)
    first_values = np.array([start[name] for name in taken])
    optimum = getattr(task, "optimum", None) if "distance" in start else None
    watch = kernel.Watch(
        every=every,
        column=np.array([taken.index(name) if name in taken else -1 for name in METRICS]),
        optimum=np.zeros(len(x0)) if optimum is None else np.array(optimum, dtype=float),
        stop=kernel.NO_STOP if stop is None else kernel.ALL_BELOW if stop.sustained else kernel.MEAN_BELOW,
        metric=METRICS.index(stop.metric) if stop else 0,
        target=float(stop.target) if stop else 0.0,
        window=stop.window if stop else 1,
        huge=HUGE * max(1.0, float(np.abs(first_values).max(initial=0.0))),
    )
    blocks = range(0, count, width)
    metrics = {name: np.empty((records, count)) for name in taken} if measure.history else {}
    final = np.empty((len(taken), count))
    x = np.empty((len(x0), count))
    stopped, diverged = np.full(count, -1, np.int64), np.full(count, -1, np.int64)
    furthest = np.zeros(count, np.int64)

    def run_block(begin: int) -> None:
        members = range(begin, min(begin + width, count))
        values = np.empty((records if measure.history else 1, len(taken), width))
        values[0] = first_values[:, None]
        block = Block(x0, slots, first, members, width, lanes, values)
        state = _make_lanes(block, watch, rule, getattr(task, "scratch_rows", 1))
        if stop is not None:
            state.ring[0] = start[stop.metric]
        t, chunk = 0, max(every, total // 50 // every * every)
        while t < total:
            goal, finished = min(t + (every if outside else chunk), total), False
            reached = advance(data, stochastic, not outside, path, rule, watch, state, t, goal, (0,) * width)
            if outside:
                found = task.evaluate(state.x[:, 0].copy())
                if more:
                    rows.append(found)
                record = -(-reached // every)
                state.metrics[record % len(state.metrics), :, 0] = [float(found[name]) for name in taken]
                finished = kernel.judge(state, watch, reached, record, (0,))
            if progress is not None:
                progress((reached - t) * len(members))
            t = reached
            if finished or reached < goal:
                break
        if progress is not None:
            progress((total - t) * len(members))
        last = state.metrics[-(-t // every) % len(state.metrics)]
        for column, lane in enumerate(members):
            ended = state.ended[column]
            x[:, lane] = state.x[:, column] if ended < 0 else state.final[:, column]
            final[:, lane] = last[:, column] if ended < 0 else state.final_metrics[:, column]
            stopped[lane], diverged[lane] = state.stopped[column], state.diverged[column]
            furthest[lane] = t if ended < 0 else ended
        for k, table in enumerate(metrics.values()):
            table[:, members.start : members.stop] = values[:, k, : len(members)]

    threads = min(len(blocks), threads or os.cpu_count() or 1)
    if threads == 1:
        for block in blocks:
            run_block(block)
    else:
        from concurrent.futures import ThreadPoolExecutor  # takes a while to import

        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run_block, blocks))
    diverged = np.where((diverged < 0) & ~np.isfinite(x).all(axis=0), furthest, diverged)
    lost = diverged >= 0
    x[:, lost], final[:, lost] = np.nan, np.nan
    for lane in range(count):
        # There are no numbers after divergence, nor after the lane has stopped.
        known = -(-furthest[lane] // every) + 1 if diverged[lane] < 0 else -(-diverged[lane] // every)
        for table in metrics.values():
            table[known:, lane] = np.nan
    return Result(
        x=x,
        iteration=np.minimum(np.arange(records, dtype=np.int64) * every, total),
        metrics=metrics,
        stopped=stopped,
        diverged=diverged,
        reached=int(furthest.max(initial=0)),
        final={name: final[k] for k, name in enumerate(taken)},
        others={name: np.array([row[name] for row in rows]) for name in more},
        weighed=weighed,
    )


def _announce() -> None:
    """Print on a terminal that the first run takes a while."""
    from asyncsgd.simulation.replay_kernel import advance_built_in

    place = advance_built_in.stats.cache_path  # None if numba has no place for a cache
    kept = place is not None and any(Path(place).glob("replay_kernel.advance*.nbi"))
    if sys.stderr.isatty() and not advance_built_in.signatures and not kept:
        sys.stderr.write("asyncsgd: compiling the simulator, about half a minute, once on this machine\n")


def _path(arrivals: Arrivals, weighed: Weighed, shares: Floats) -> tuple[Any, int, int]:
    """Return (what happens at each iteration, the number of points kept at once, the slot of x^(0))."""
    from asyncsgd.simulation.replay_kernel import Path
    from asyncsgd.simulation.replay_kernel import slots as find_slots

    total, versions = len(arrivals), int(weighed.version[-1]) + 1
    read, write, free = (np.empty(max(total, 1), np.int32) for _ in range(3))
    readers, place = np.zeros(versions, np.int32), np.empty(versions, np.int32)
    slots, first = find_slots(arrivals.iteration, weighed.weight, weighed.version, read, write, readers, place, free)
    path = Path(
        job=np.ascontiguousarray(arrivals.job),
        worker=np.ascontiguousarray(arrivals.worker, dtype=np.int32),
        read=read,
        write=write,
        weight=weighed.weight,
        share=shares,
        flush=weighed.flush,
    )
    return path, int(slots), int(first)


class Block(NamedTuple):
    """A block of lanes that advance together."""

    x0: Vector
    slots: int
    """The number of points kept at once."""
    first: int
    """The slot of x^(0), or -1."""
    members: range
    width: int
    """The number of lanes of a block. The last block has fewer members and is filled up with copies."""
    lanes: Sequence[Lane]
    metrics: Floats


def _make_lanes(block: Block, watch: Any, rule: Rule, scratch: int) -> Any:
    """Return the arrays that change in a block, as they are at its start."""
    from asyncsgd.simulation.replay_kernel import Lanes

    x0, slots, first, members, width, lanes, metrics = block
    dimension = len(x0)
    chosen = [*members, *[members[-1]] * (width - len(members))]  # the last block is filled up with copies
    fold = min(1024, 1 << max(dimension - 1, 0).bit_length())
    column: Floats = np.repeat(x0[:, None].astype(np.float64), width, axis=1)
    points = np.empty((slots + 1, dimension, width))  # the extra slot takes points that no job will read
    if first >= 0:
        points[first] = column
    diverged = np.full(width, -1, np.int64)
    diverged[len(members) :] = 0  # the copies count as done
    starts = np.zeros((3, width), np.uint64)
    starts[0] = [derive(int(lanes[lane][1]), JOB) for lane in chosen]
    return Lanes(
        x=column.copy(),
        points=points,
        total=np.zeros((dimension if rule.buffer else 1, width)),
        m=np.zeros((dimension if rule.momentum else 1, width)),
        g=np.zeros((dimension, width)),
        y=np.zeros((dimension if rule.local_steps else 1, width)),
        scratch=np.zeros((max(1, scratch), width)),
        small=np.zeros((2, width)),
        fold=np.zeros((fold, width)),
        ring=np.zeros((watch.window, width)),
        seeds=starts,
        stepsize=np.array([float(lanes[lane][0]) for lane in chosen]),
        held=np.zeros(1, np.int64),
        below=np.zeros(width, np.int64),
        stopped=np.full(width, -1, np.int64),
        diverged=diverged,
        metrics=metrics,
        final=np.zeros((dimension, width)),
        final_metrics=np.zeros(metrics.shape[1:]),
        ended=diverged.copy(),
    )


def _own_advance(task: Any) -> Any:
    """Return the replay compiled with the user's own gradient in place of the built-in ones."""
    from types import FunctionType

    from numba import carray, njit  # type: ignore[attr-defined]

    from asyncsgd.compiled.lanes import at, pointer
    from asyncsgd.simulation import replay_kernel as kernel

    users_gradient = task.compiled[0]
    known = getattr(users_gradient, "_asyncsgd_advance", None)
    if known is not None:
        return known

    @njit(nogil=True)
    def gradient(data: Any, x: Any, worker: Any, seeds: Any, out: Any, scratch: Any, width: Any) -> None:
        d = out.shape[0]
        point, result = carray(pointer(x, 0), (d,)), carray(pointer(out, 0), (d,))
        users_gradient(point, worker, at(seeds, 0), result, data)

    @njit(nogil=True)
    def not_measured(data: Any, x: Any, out: Any, scratch: Any, width: Any) -> None:
        return

    names = {**vars(kernel), "gradient": gradient, "full_gradient": not_measured, "loss": not_measured}
    names["_local_steps"] = njit(nogil=True)(FunctionType(kernel._local_steps.py_func.__code__, names, "local"))
    function = FunctionType(kernel.advance.__code__, names, "advance")
    users_gradient._asyncsgd_advance = njit(nogil=True)(function)
    return users_gradient._asyncsgd_advance
