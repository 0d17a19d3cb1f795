"""What the update rules may know about an arrival."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from operator import index
from typing import Any, TypeAlias

import numpy as np

from asyncsgd.core.errors import BadEvent
from asyncsgd.core.vectors import Vector, norm

# --------------------------------------------------------------------------------------------------------------
# What goes into the server and what comes out: plain values, no behaviour.
# The values that are made for every arrival (`Job`, `Arrived`, `Assign`, `Ended`, `Reply`) are not frozen, because it
# takes several times as long to make a frozen dataclass. Treat them as if they were.


class Outcome(IntEnum):
    """How a job ended. Applied and dropped jobs have *arrived*: they count as an iteration."""

    IN_FLIGHT = 0
    APPLIED = 1
    """The update arrived and was used (at once, or through a buffer or memory)."""
    DROPPED = 2
    """The update arrived and the step rule gave it no weight."""
    REJECTED = 3
    """The update could not be used (NaN, wrong length, ...): no arrival."""
    LOST = 4
    """The worker died, left, or timed out: no arrival."""
    CANCELLED = 5
    """The server no longer wanted it: no arrival."""

    @property
    def arrived(self) -> bool:
        """Whether the job counts as an iteration."""
        return self is Outcome.APPLIED or self is Outcome.DROPPED


@dataclass(slots=True)
class Job:
    """One assignment: a worker is to compute an update at one point.

    ``iteration`` is the s of x^(s), so that an arrival at iteration t has delay t - s. ``entered`` is the first t
    whose active set C_t holds the job; it equals ``iteration``, except under early re-sampling, where the job
    leaves with x^(t) while iteration t is being handled and so enters C_{t+1}.
    """

    id: int
    worker: int
    iteration: int
    version: int
    entered: int
    seed: int
    """Belongs to the job: derived from the run's seed and ``id``, the same on every engine and in every replay."""
    steps: int = 1
    """How many mini-batches the job computes."""
    batch: int = 0
    """How many mini-batches were handed out before it."""


# ---------------------------------------------------------------------------------------------- in


@dataclass(frozen=True, slots=True)
class Joined:
    """Workers are there and may be given jobs. The first one is line 1 of the paper's algorithms."""

    workers: tuple[int, ...]

    def __init__(self, workers: int | Iterable[int]) -> None:
        try:
            if isinstance(workers, Iterable) and not isinstance(workers, bytes | bytearray | memoryview):
                ids = tuple(map(_whole, workers))
            else:
                ids = (_whole(workers),)
        except TypeError:
            raise BadEvent(f"workers {workers!r} joined; pass a whole number, or several") from None
        object.__setattr__(self, "workers", ids)


def _whole(worker: Any) -> int:
    """The id as a Python integer; Python takes True for 1, and we do not."""
    if isinstance(worker, bool | np.bool_):
        raise TypeError
    return index(worker)


@dataclass(frozen=True, slots=True)
class Left:
    """A worker is gone; all of its jobs are lost."""

    worker: int


@dataclass(slots=True)
class Arrived:
    """A worker sends the update of a job. Say ``worker`` where the engine knows who it was, and it is checked.

    ``examples`` is how many rows of data the job used and ``seconds`` how long the worker computed; None where that is
    not known. The server checks both and passes them on to the trace.

    ``checked`` says that `check_update` has passed where the update was computed, by code that the
    engine itself runs there; the server then saves that pass over the vector. Never say so of what a stranger sent.
    """

    job: int
    update: Vector
    worker: int | None = None
    examples: int | None = None
    seconds: float | None = None
    checked: bool = False


@dataclass(frozen=True, slots=True)
class Lost:
    """A job will never arrive: its worker died or hung (LOST), or its update was unusable (REJECTED)."""

    job: int
    outcome: Outcome = Outcome.LOST


Event: TypeAlias = Joined | Left | Arrived | Lost

# ---------------------------------------------------------------------------------------------- out


@dataclass(slots=True)
class Assign:
    """Give the job to its worker, behind whatever it has not finished yet (first in, first out).

    ``point`` is a read-only view that stays valid until the job ends; ``slot`` numbers the buffer behind it, so
    that an engine with shared memory sends one small integer.
    """

    job: Job
    point: Vector
    slot: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """The job is no longer wanted: stop it if that is cheap, and do not report it."""

    job: Job


Command: TypeAlias = Assign | Cancel

# ---------------------------------------------------------------------------------------------- the record


@dataclass(slots=True)
class Ended:
    """What became of a job, as the trace wants it.

    ``iteration`` is the t of an arrival, otherwise the first t whose C_t no longer holds the job. ``version`` is
    the model's version just before. ``concurrency`` is |C_t| with the job still in it, ``workers`` the number of
    workers present. ``examples`` and ``seconds`` are those of the arrival, None where they are not known.
    """

    job: Job
    outcome: Outcome
    iteration: int
    version: int
    step: float
    concurrency: int
    workers: int
    examples: int | None = None
    seconds: float | None = None


@dataclass(slots=True)
class Reply:
    """The server's answer to one event: what the engine must do, in this order, and which jobs the event ended.

    After an `Arrived`, ``ended[0]`` is the job that arrived; jobs that the server cancelled follow.
    """

    commands: tuple[Command, ...]
    ended: tuple[Ended, ...]


@dataclass(slots=True)
class Arrival:
    """One gradient as it arrives at iteration t, before anything is changed.

    A step rule sees all of it. ``delay`` τ_t = t - s counts iterations, ``staleness`` counts versions.
    """

    worker: int
    job: int
    iteration: int
    """t: how many gradients arrived before this one."""
    delay: int
    """τ_t = t - s, for a gradient computed at x^(s)."""
    staleness: int
    """How many times the model has changed since x^(s)."""
    version: int
    concurrency: int
    """|C_t|, this job included."""
    max_concurrency: int
    """τ_C: the largest |C_t| so far."""
    workers: int
    """n: workers present."""
    x: Vector
    """The model as it is now (read-only)."""
    point: Vector
    """The point this gradient was computed at (read-only)."""
    present: Collection[int] | None = None
    """Who is there, where that is known: a recorded trace tells only how many."""
    slot: int | None = None
    """Where the point lies among the server's own buffers."""

    @property
    def drift(self) -> float:
        """``‖x - point‖``: how far the model has moved since the job was handed out."""
        return norm(self.x - self.point)
