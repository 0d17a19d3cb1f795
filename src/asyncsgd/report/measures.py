"""Numbers that a page draws, from a trace: when workers computed, delays in bins, steps, what each worker did."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.events import Outcome
from asyncsgd.run.view import Floats, RunView
from asyncsgd.trace import Trace
from asyncsgd.trace.spans import Spans
from asyncsgd.trace.spans import spans as spans_of

Ints = NDArray[np.int64]
POINTS = 120
"""Bins of a line that would have more points than a screen has columns."""
BARS = 28
"""Bars of a histogram of delays, about."""


# ---------------------------------------------------------------------------------------------- who worked when


def spans(subject: RunView) -> Spans:
    """When each job was waiting and when it was computed, up to the end of the run."""
    return spans_of(subject.trace, subject.elapsed if subject.timed else subject.trace.iterations + 1.0)


# ---------------------------------------------------------------------------------------------- workers


@dataclass(frozen=True)
class Worker:
    """What one worker did."""

    worker: int
    outcomes: dict[Outcome, int]
    mean_delay: float | None
    """τ^i_avg; None if it has neither arrived nor flown."""
    seconds: float | None
    """Mean computing time of the jobs that arrived."""
    busy: float | None
    """The share of the run in which it computed."""
    share: float
    """Of the total step."""

    @property
    def jobs(self) -> int:
        """All that it was given."""
        return sum(self.outcomes.values())


def workers(subject: RunView, times: Spans) -> list[Worker]:
    """One row per worker that was ever given a job, by number."""
    trace = subject.trace
    jobs = trace.jobs
    names, rank = np.unique(jobs.worker, return_inverse=True)
    size = len(names)
    counts = {outcome: np.bincount(rank[jobs.outcome == outcome], minlength=size) for outcome in Outcome}
    step = np.bincount(rank, np.where(jobs.arrived, np.nan_to_num(jobs.step), 0.0), minlength=size)
    total = step.sum()
    computing = times.end - times.begin
    arrived = np.bincount(rank[jobs.arrived], minlength=size)
    took = np.bincount(rank[jobs.arrived], computing[jobs.arrived], minlength=size)
    busy = np.bincount(rank, computing, minlength=size)
    length = times.horizon - float(times.assigned.min(initial=times.horizon))
    mean = trace.delays.per_worker
    return [
        Worker(
            worker=int(name),
            outcomes={outcome: int(counts[outcome][place]) for outcome in Outcome},
            mean_delay=mean.get(int(name)),
            seconds=float(took[place] / arrived[place]) if arrived[place] and subject.timed else None,
            busy=float(busy[place] / length) if length > 0 else None,
            share=float(step[place] / total) if total else 0.0,
        )
        for place, name in enumerate(names)
    ]


# ---------------------------------------------------------------------------------------------- over iterations


@dataclass(frozen=True, eq=False)
class Series:
    """A quantity of every arrival, in bins of consecutive iterations: the bin's mean, smallest and largest."""

    iteration: Floats
    """The middle of each bin."""
    time: Floats
    """When that iteration arrived; NaN without a clock."""
    mean: Floats
    low: Floats
    high: Floats
    width: int
    """Iterations per bin; the last one may have fewer."""


def series(trace: Trace, values: NDArray[np.generic]) -> Series:
    """Values of the arrivals 0, 1, 2, ... in at most POINTS bins."""
    size = len(values)
    width = max(1, -(-size // POINTS))
    starts = np.arange(0, size, width)
    numbers = np.asarray(values, float)
    if not size:
        empty = np.empty(0)
        return Series(empty, empty, empty, empty, empty, width)
    lengths = np.diff(np.append(starts, size))
    middle = starts + (lengths - 1) // 2
    return Series(
        iteration=middle.astype(float),
        time=trace.time[middle].astype(float),
        mean=np.add.reduceat(numbers, starts) / lengths,
        low=np.minimum.reduceat(numbers, starts),
        high=np.maximum.reduceat(numbers, starts),
        width=width,
    )


# ---------------------------------------------------------------------------------------------- histogram


def bins(delays: Ints) -> list[tuple[int, int]]:
    """Ranges of delays from 0 to the largest, ends included: one each while they are few.

    Beyond that of equal widths; wider and wider where most delays are far below the largest.

    >>> bins(np.array([0, 3, 1]))
    [(0, 0), (1, 1), (2, 2), (3, 3)]
    >>> bins(np.array([80, 90, 100]))[-2:]
    [(94, 96), (97, 100)]
    >>> bins(np.array([1, 1, 1000]))[:3], bins(np.array([1, 1, 1000]))[-1]
    ([(0, 0), (1, 1), (2, 2)], (782, 1000))
    """
    largest = int(delays.max(initial=0))
    if largest < BARS:
        return [(delay, delay) for delay in range(largest + 1)]
    if np.median(delays) > largest / 4:
        edges = np.linspace(0, largest + 1, BARS + 1)
    else:
        edges = np.geomspace(1, largest + 2, BARS + 1) - 1
    whole = np.unique(np.round(edges).astype(int))
    return [(int(first), int(after) - 1) for first, after in pairwise(whole)]


def histogram(delays: Ints, ranges: list[tuple[int, int]]) -> Ints:
    """How many delays lie in each range."""
    edges = np.array([first for first, _ in ranges] + [ranges[-1][1] + 1])
    return np.histogram(delays, edges)[0].astype(np.int64)


def thinned(columns: dict[str, Floats], most: int = 8 * POINTS) -> dict[str, Floats]:
    """Rows of metrics, all of them if they are few; else for each stretch those with its extremes, first and last."""
    size = min((len(values) for values in columns.values()), default=0)
    if size <= most:
        return columns
    kept = {0, size - 1}
    stretches = np.array_split(np.arange(size), max(1, most // (2 * len(columns))))
    for values in columns.values():
        filled = np.nan_to_num(values)
        for rows in stretches:
            kept |= {int(rows[np.argmin(filled[rows])]), int(rows[np.argmax(filled[rows])])}
    chosen = np.array(sorted(kept))
    return {name: values[chosen] for name, values in columns.items()}
