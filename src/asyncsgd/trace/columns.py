"""The columns of a trace: one row per job, in the order in which the jobs were assigned."""

from __future__ import annotations

from dataclasses import dataclass, fields
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
"""What the columns of an end hold while the job is still in flight."""


@dataclass(frozen=True, eq=False)
class Jobs:
    """Read-only columns, one row per job; ``job`` is 0, 1, 2, ... in a whole trace. No copy is made.

    ``entered`` is the first t whose active set C_t holds the job. ``ended_iteration`` is the t of an arrival,
    and otherwise the first t whose C_t no longer holds the job. While a job is in flight, its end is -1 or
    NaN.

    The last four may be left out: every job is then one mini-batch, the k-th job the k-th mini-batch, and how many
    ``examples`` it used and how many ``seconds`` its worker computed is not known (-1 and NaN).
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
        """Say which job a row is about, for messages: ``job 3 of worker 1 (lost)``."""
        code = int(self.outcome[row])
        outcome = Outcome(code).name.lower().replace("_", " ") if code < len(ARRIVED) else f"outcome {code}"
        return f"job {self.job[row]} of worker {self.worker[row]} ({outcome})"


def active(jobs: Jobs, iterations: int) -> Ints:
    """Count |C_t| for t = 0, ..., T from the rows alone.

    A job is in C_t from t = ``entered`` to ``ended_iteration`` if it arrived, to ``ended_iteration - 1`` if
    it was lost, rejected or cancelled, and to T if it is in flight.
    """
    last = iterations
    first_without = np.where(jobs.in_flight, last + 1, jobs.ended_iteration + jobs.arrived)
    # The clip changes nothing in a sound trace; in a broken one it leaves the complaint to check().
    enters = np.bincount(np.clip(jobs.entered, 0, last + 1), minlength=last + 2)
    leaves = np.bincount(np.clip(first_without, 0, last + 1), minlength=last + 2)
    return np.cumsum(enters - leaves)[: last + 1].astype(np.int64, copy=False)
