"""The numbers that a page draws from a trace, and columns as compact base64 for its scripts.

Columns are little-endian binary, each in the narrowest type that holds it.
"""

from __future__ import annotations

import base64
import json
import math
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.events import Outcome
from asyncsgd.run.view import Floats, RunView
from asyncsgd.trace import Trace
from asyncsgd.trace.timeline import Spans
from asyncsgd.trace.timeline import spans as spans_of

Ints = NDArray[np.int64]
POINTS = 120
"""The number of bins of a line that would have more points than a screen has columns."""
BARS = 28
"""The approximate number of bars of a histogram of delays."""


# ---------------------------------------------------------------------------------------------- who worked when


def spans(subject: RunView) -> Spans:
    """Return when each job waited and when it was computed, up to the end of the run."""
    return spans_of(subject.trace, subject.elapsed if subject.timed else subject.trace.iterations + 1.0)


# ---------------------------------------------------------------------------------------------- workers


@dataclass(frozen=True)
class Worker:
    """What one worker did."""

    worker: int
    outcomes: dict[Outcome, int]
    mean_delay: float | None
    """τ^i_avg; None if no job of the worker arrived or is in flight."""
    seconds: float | None
    """Mean computing time of the jobs that arrived."""
    busy: float | None
    """The share of the run in which the worker computed."""
    share: float
    """The worker's share of the total step."""

    @property
    def jobs(self) -> int:
        """The number of jobs that the worker got."""
        return sum(self.outcomes.values())


def workers(subject: RunView, times: Spans) -> list[Worker]:
    """Return one row per worker that ever got a job, by number."""
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
    """The time of that iteration's arrival; NaN without a clock."""
    mean: Floats
    low: Floats
    high: Floats
    width: int
    """Iterations per bin; the last one may have fewer."""


def series(trace: Trace, values: NDArray[np.generic]) -> Series:
    """Return the values of the arrivals 0, 1, 2, ... in at most POINTS bins."""
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
    """Return ranges of delays from 0 to the largest, ends included: one range per delay if there are few.

    Otherwise the ranges have equal widths, or growing widths if most delays are far below the largest.

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
    """Return the number of delays in each range."""
    edges = np.array([first for first, _ in ranges] + [ranges[-1][1] + 1])
    return np.histogram(delays, edges)[0].astype(np.int64)


def thinned(columns: dict[str, Floats], most: int = 8 * POINTS) -> dict[str, Floats]:
    """Return all rows of metrics if there are few; else the first, last and extreme rows of each stretch."""
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


MOST = 400_000
"""The largest number of jobs in a timeline; for a longer run it shows the end, with a note."""
FEW = 4096
"""Up to this many different values are stored as a list, and every row stores a place in the list."""

Column = dict[str, Any]


def whole(values: NDArray[Any]) -> Column:
    """Return integers as a column: one value if all are the same, differences if they rise, else as they are.

    >>> whole(np.array([7, 7, 7]))
    {'same': 7}
    >>> whole(np.array([1000, 1001, 3]))
    {'type': 'u2', 'data': '6APpAwMA'}
    >>> whole(np.array([10**6, 10**6, 10**6 + 2]))
    {'type': 'u1', 'data': 'AAAC', 'rises': 1000000}
    """
    if len(values) and (values == values[0]).all():
        return {"same": int(values[0])}
    plain = _packed(values)
    steps = np.diff(values, prepend=values[:1])
    if len(values) and (steps >= 0).all() and _width(steps) < _width(values):
        even = len(values) > 1 and (steps[1:] == steps[1]).all()
        differences = {"same": int(steps[1])} if even else _packed(steps)
        return {**differences, "rises": int(values[0])}
    return plain


def number(values: Floats) -> Column:
    """Return any numbers as a column: exact if there are few different ones, else to seven digits. NaN becomes null.

    >>> number(np.array([0.1, 0.1, 0.05]))
    {'type': 'u1', 'data': 'AQEA', 'of': [0.05, 0.1]}
    """
    different, place = np.unique(values, return_inverse=True)
    if len(different) == 1:
        return {"same": plain(float(different[0]))}
    if len(different) <= FEW:
        return {**_packed(place), "of": [plain(float(value)) for value in different]}
    return {"type": "f4", "data": _base64(values.astype("<f4"))}


def plain(value: float | None) -> float | None:
    """Return the value, or None for NaN and infinity, which JSON does not have."""
    return value if value is not None and math.isfinite(value) else None


def numbers(values: Any) -> list[float | None]:
    """Return a list for JSON, with None for NaN."""
    return [plain(float(value)) for value in values]


def as_script(data: Any) -> str:
    """Return JSON that is safe inside a script element: no text in it can end that element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _width(values: NDArray[Any]) -> int:
    top = int(values.max(initial=0))
    return 1 if top < 1 << 8 else 2 if top < 1 << 16 else 4 if top < 1 << 32 else 8


def _packed(values: NDArray[Any]) -> Column:
    width = _width(values)
    kind = "f8" if width == 8 else f"u{width}"  # JavaScript's numbers are exact up to 2^53
    return {"type": kind, "data": _base64(values.astype(f"<{kind}"))}


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


# ---------------------------------------------------------------------------------------------- the jobs of a run


def tick(length: float) -> float:
    """Return the power of ten that divides ``length`` seconds into at least 2^28 and less than 2^32 ticks.

    >>> tick(9.0), tick(0.0)
    (1e-08, 1.0)
    """
    return float(f"1e{math.ceil(math.log10(length / 2**31.6))}") if length > 0 else 1.0


def shown(subject: RunView, times: Spans, most: int = MOST) -> tuple[Ints, float]:
    """Return the jobs of the timeline (all, or the last ones and those computed at the same time) and its start."""
    size = len(subject.trace)
    if size <= most:
        return np.arange(size), float(times.assigned.min(initial=times.horizon))
    since = float(times.assigned[size - most])
    return np.flatnonzero((np.arange(size) >= size - most) | (times.end > since)), since


def jobs(subject: RunView, times: Spans, most: int = MOST) -> dict[str, Any]:
    """Return the columns of the timeline. Times count ticks from ``start``; workers are places in ``workers``."""
    rows, label = subject.trace.jobs, subject.label
    chosen, since = shown(subject, times, most)
    names, rank = np.unique(rows.worker[chosen], return_inverse=True)
    start = float(times.assigned[chosen].min(initial=times.horizon))
    unit = tick(times.horizon - start)
    assigned, begin, end = (
        np.round((column[chosen] - start) / unit).astype(np.int64)
        for column in (times.assigned, times.begin, times.end)
    )
    ended = np.where(rows.in_flight, subject.trace.iterations, rows.ended_iteration)[chosen]
    version = rows.assigned_version[chosen]
    until = np.where(rows.in_flight, rows.assigned_version, rows.ended_version)[chosen]
    delay, staleness = ended - rows.assigned_iteration[chosen], until - version
    return {
        "count": len(chosen),
        "total": len(rows),
        "workers": [label.short(name) for name in names.tolist()],
        "labels": [label(name) for name in names.tolist()] if label.clients else None,
        "start": start,
        "since": since,
        "tick": unit,
        "horizon": times.horizon,
        "clock": subject.timed,
        "iterations": subject.trace.iterations,
        "columns": {
            "job": whole(rows.job[chosen]),
            "worker": whole(rank),
            "outcome": whole(rows.outcome[chosen]),
            "assigned": whole(assigned),
            "waited": whole(begin - assigned),
            "computed": whole(end - begin),
            "read": whole(rows.assigned_iteration[chosen]),
            "version": whole(version),
            "delay": whole(delay),
            "staleness": "delay" if np.array_equal(delay, staleness) else whole(staleness),
            "step": number(rows.step[chosen]),
        },
    }
