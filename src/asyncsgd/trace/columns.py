"""The columns of a trace, one row per job in order of assignment, and the delays that follow from them.

Delays follow the paper's definitions with τ = t - s (docs/decisions/0001-one-convention-for-delays.md).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import TraceError
from asyncsgd.core.events import Outcome

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Codes: TypeAlias = NDArray[np.uint8]
Mask: TypeAlias = NDArray[np.bool_]

WHEN = ("iteration", "time", "epoch")
"""The columns of a table of metrics that say when an evaluation was; every other column is a metric."""

ARRIVED = tuple(bool(outcome.arrived) for outcome in Outcome)
"""Whether a job with this outcome code counts as an iteration."""

DTYPES: dict[str, np.dtype[Any]] = {
    "job": np.dtype(np.int64),
    "worker": np.dtype(np.int64),
    "assigned_iteration": np.dtype(np.int64),
    "assigned_version": np.dtype(np.int64),
    "entered": np.dtype(np.int64),
    "assigned_time": np.dtype(np.float64),
    "outcome": np.dtype(np.uint8),
    "ended_iteration": np.dtype(np.int64),
    "ended_version": np.dtype(np.int64),
    "ended_time": np.dtype(np.float64),
    "step": np.dtype(np.float64),
    "concurrency": np.dtype(np.int64),
    "workers": np.dtype(np.int64),
    "steps": np.dtype(np.int64),
    "batch": np.dtype(np.int64),
    "examples": np.dtype(np.int64),
    "seconds": np.dtype(np.float64),
}
"""Every column and its type, in the order of the file."""

IN_FLIGHT: dict[str, float] = {
    "outcome": Outcome.IN_FLIGHT,
    "ended_iteration": -1,
    "ended_version": -1,
    "ended_time": np.nan,
    "step": np.nan,
    "concurrency": -1,
    "workers": -1,
    "examples": -1,
    "seconds": np.nan,
}
"""The values of the columns about the end of a job that is still in flight."""


@dataclass(frozen=True, eq=False)
class Jobs:
    """Read-only columns, one row per job; ``job`` is 0, 1, 2, ... in a whole trace. No copy is made.

    ``entered`` is the first t whose active set C_t holds the job. ``ended_iteration`` is the t of an arrival,
    and otherwise the first t whose C_t no longer holds the job. While a job is in flight, its end is -1 or
    NaN.

    The last four may be left out. Every job is then one mini-batch, the k-th job the k-th mini-batch, and the number of
    ``examples`` and the ``seconds`` of computing are unknown (-1 and NaN).

    >>> from asyncsgd.trace import Trace
    >>> jobs = Trace.from_history(workers=[0, 1, 1], assigned=[0, 0, 1], arrived=[1, 0, -1]).jobs
    >>> jobs.worker, jobs.take([0]).ended_iteration
    (array([0, 1, 1]), array([1]))

    See docs/users/researcher.md for the columns of a trace.
    """

    job: Ints
    worker: Ints
    assigned_iteration: Ints
    assigned_version: Ints
    entered: Ints
    assigned_time: Floats
    outcome: Codes
    ended_iteration: Ints
    ended_version: Ints
    ended_time: Floats
    step: Floats
    concurrency: Ints
    workers: Ints
    steps: Ints = None  # type: ignore[assignment]
    batch: Ints = None  # type: ignore[assignment]
    examples: Ints = None  # type: ignore[assignment]
    seconds: Floats = None  # type: ignore[assignment]

    def __post_init__(self) -> None:
        unsaid: dict[str, Any] = {"steps": 1, "batch": self.job, "examples": -1, "seconds": np.nan}
        for name, value in unsaid.items():
            if getattr(self, name) is None:
                object.__setattr__(self, name, np.broadcast_to(value, np.shape(self.job)))
        for name, dtype in DTYPES.items():
            column = np.asarray(getattr(self, name))
            if column.ndim != 1:
                raise TraceError(f"column {name!r} has shape {column.shape}; pass one number per job")
            if column.size and (column.dtype == bool or not np.can_cast(column.dtype, dtype, "safe")):
                raise TraceError(f"column {name!r} is {column.dtype}, which does not fit {dtype}; convert it first")
            column = column.astype(dtype, copy=False).view()
            column.flags.writeable = False
            object.__setattr__(self, name, column)
        lengths = {name: len(getattr(self, name)) for name in DTYPES}
        if len(set(lengths.values())) > 1:
            raise TraceError(f"the columns differ in length: {lengths}; every column has one row per job")

    def __len__(self) -> int:
        return len(self.job)

    def __reduce__(
        self,
    ) -> tuple[Any, ...]:  # through __init__, because a pickled array forgets it is read-only
        return Jobs, tuple(getattr(self, field.name) for field in fields(self))

    @cached_property
    def arrived(self) -> Mask:
        """Whether the job has arrived (applied or dropped)."""
        mask: Mask = (self.outcome == Outcome.APPLIED) | (self.outcome == Outcome.DROPPED)
        return mask

    @cached_property
    def in_flight(self) -> Mask:
        """Whether the job has not ended yet."""
        mask: Mask = self.outcome == Outcome.IN_FLIGHT
        return mask

    def take(self, rows: Ints | Mask) -> Jobs:
        """Return the chosen rows, as a copy."""
        return Jobs(**{name: getattr(self, name)[rows] for name in DTYPES})

    def name(self, row: int) -> str:
        """Return the name of a row's job for messages: ``job 3 of worker 1 (lost)``."""
        code = int(self.outcome[row])
        outcome = Outcome(code).name.lower().replace("_", " ") if code < len(ARRIVED) else f"outcome {code}"
        return f"job {self.job[row]} of worker {self.worker[row]} ({outcome})"


def batches_before(workers: NDArray[Any], steps: int | Ints, counted: str) -> Ints:
    """Return ``batch`` of jobs, given their workers in order of assignment, and their steps: one number, or one each.

    ``counted`` is "all" or "worker", as for `asyncsgd.core.server.Server`.

    >>> batches_before(np.array([0, 1, 0, 0, 1]), 2, "all"), batches_before(np.array([0, 1, 0, 0, 1]), 2, "worker")
    (array([0, 2, 4, 6, 8]), array([0, 0, 2, 4, 2]))
    >>> batches_before(np.array([0, 1, 0, 0, 1]), np.array([5, 2, 5, 5, 2]), "worker")
    array([ 0,  0,  5, 10,  2])
    """
    each: Ints = np.broadcast_to(np.asarray(steps, np.int64), workers.shape)
    if counted != "worker":
        return np.cumsum(each) - each
    small = len(workers) > 0 and workers.min() >= 0 and workers.max() < 1 << 16
    # NumPy sorts 16-bit numbers by their digits, ten times as fast as longer ones.
    order = np.argsort(workers.astype(np.uint16) if small else workers, kind="stable")
    ordered, own = workers[order], each[order]
    first = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]][: len(ordered)])
    total = np.cumsum(own) - own
    before: Ints = np.empty(len(workers), np.int64)
    before[order] = total - np.repeat(total[first], np.diff(np.r_[first, len(ordered)]))
    return before


def active(jobs: Jobs, iterations: int) -> Ints:
    """Count |C_t| for t = 0, ..., T from the rows alone.

    A job is in C_t from t = ``entered`` to ``ended_iteration`` if it arrived, to ``ended_iteration - 1`` if
    it was lost, rejected or cancelled, and to T if it is in flight.
    """
    last = iterations
    first_without = np.where(jobs.in_flight, last + 1, jobs.ended_iteration + jobs.arrived)
    # The clip changes nothing in a sound trace. With a broken one it avoids an error here, and check() reports it.
    enters = np.bincount(np.clip(jobs.entered, 0, last + 1), minlength=last + 2)
    leaves = np.bincount(np.clip(first_without, 0, last + 1), minlength=last + 2)
    return np.cumsum(enters - leaves)[: last + 1].astype(np.int64, copy=False)


@dataclass(frozen=True, eq=False)
class Delays:
    """The figures about delays that the theorems need.

    The average and the maximum run over the T arrivals and the jobs in flight at T except j_T, the one that
    would arrive next. A trace cannot know which that is, so the job assigned *last* is left out: that never
    hides a straggler. In-flight job i has τ_i = T - s_i. If nothing is in flight, the divisor is T.

    >>> from asyncsgd.trace import Trace
    >>> trace = Trace.from_history(workers=[0, 1, 1, 1], assigned=[0, 0, 1, 2], arrived=[-1, 0, 1, -1])
    >>> trace.delays.average, trace.delays.maximum, trace.delays.per_worker
    (0.6666666666666666, 2, {0: 2.0, 1: 0.0})
    >>> trace.delays.concurrency, trace.delays.mean_concurrency
    (2, 2.0)
    """

    average: float
    """τ_avg = (Σ_{t<T} τ_t + Σ_{i in C_T, i ≠ j_T} τ_i) / (T + |C_T| - 1); NaN if there is no such job."""
    maximum: int
    """τ_max over the same jobs; 0 if there are none."""
    concurrency: int
    """τ_C = max_t |C_t| over t = 0, ..., T."""
    mean_concurrency: float
    """τ̄_C = Σ_{t=0..T} |C_t| / (T + 1)."""
    per_worker: dict[int, float]
    """τ^i_avg: the mean over the arrived and in-flight jobs of worker i, all of these included."""
    values: Ints = field(repr=False)
    """The delays behind ``average`` and ``maximum``: one per job, in the order of assignment."""

    def histogram(self) -> Ints:
        """Count the jobs with each delay: entry d is the number of jobs with τ = d.

        >>> from asyncsgd.trace import Trace
        >>> Trace.from_history(workers=[0, 1, 1], assigned=[0, 0, 1], arrived=[1, 0, -1]).delays.histogram()
        array([1, 1])
        """
        return np.bincount(self.values)


def summarise(jobs: Jobs, iterations: int, active: Ints) -> Delays:
    """Compute every figure of ``Delays`` from the rows and |C_0|, ..., |C_T|."""
    in_flight = jobs.in_flight
    counted = jobs.arrived | in_flight
    delay = np.where(in_flight, iterations, jobs.ended_iteration) - jobs.assigned_iteration

    workers, rank = np.unique(jobs.worker[counted], return_inverse=True)
    totals = np.bincount(rank, weights=delay[counted], minlength=len(workers))  # exact below 2^53
    means = totals / np.bincount(rank, minlength=len(workers))

    flying = np.flatnonzero(in_flight)
    if len(flying):
        counted[flying[-1]] = False
    values = delay[counted]
    return Delays(
        average=int(values.sum()) / len(values) if len(values) else float("nan"),
        maximum=int(values.max(initial=0)),
        concurrency=int(active.max(initial=0)),
        mean_concurrency=int(active.sum()) / len(active),
        per_worker=dict(zip(workers.tolist(), means.tolist(), strict=True)),
        values=values,
    )


@dataclass(frozen=True)
class Remark5:
    """The paper's Remark 5 beside the exact figure.

    The remark counts every delay from 1, so on a plain run ``difference`` is
    (T + |C_T| + τ_{j_T}) / (T + |C_T| - 1), close to 1, and not 0.
    """

    paper: float
    """(T + 1) / (T + |C_T| - 1) · τ̄_C."""
    exact: float
    """τ_avg with τ = t - s."""

    @property
    def difference(self) -> float:
        """The paper's form minus the exact figure."""
        return self.paper - self.exact


def remark5(delays: Delays, iterations: int, last: int) -> Remark5:
    """Compute both sides of Remark 5; ``last`` is |C_T|."""
    jobs = iterations + last - 1
    paper = (iterations + 1) * delays.mean_concurrency / jobs if jobs > 0 else float("nan")
    return Remark5(paper, delays.average)
