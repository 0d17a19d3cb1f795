"""The values that go into the server (events) and come out of it (commands, ended jobs)."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from enum import IntEnum
from operator import index
from typing import Any, TypeAlias

import numpy as np

from asyncsgd.core.errors import BadEvent
from asyncsgd.core.validate import is_id, is_number
from asyncsgd.core.vectors import Vector, norm

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
    """The server cancelled the job: no arrival."""

    @property
    def arrived(self) -> bool:
        """Whether the job counts as an iteration."""
        return self is Outcome.APPLIED or self is Outcome.DROPPED


@dataclass(slots=True)
class Job:
    """One assignment: a worker computes an update at one point.

    ``iteration`` is the s of x^(s), so that an arrival at iteration t has delay t - s. ``entered`` is the first t
    whose active set C_t holds the job; it equals ``iteration``, except under early re-sampling, where the job
    leaves with x^(t) while the server handles iteration t and so enters C_{t+1}.
    """

    id: int
    worker: int
    iteration: int
    version: int
    entered: int
    seed: int
    """The seed of the job, derived from the run's seed and ``id``: the same on every engine and in every replay."""
    steps: int = 1
    """The number of mini-batches that the job computes."""
    batch: int = 0
    """The number of mini-batches handed out before this job: to all workers if they share their data, else to its own.

    It gives the rows of an epoch (`asyncsgd.tasks.epochs`) and the place in a stream. Step q of the job is mini-batch
    ``batch + q``.
    """


# ---------------------------------------------------------------------------------------------- in


@dataclass(frozen=True, slots=True)
class Joined:
    """Workers are present and may get jobs. The first such event is line 1 of the paper's algorithms."""

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
    """Return the id as a Python integer. Refuse True, which Python treats as 1."""
    if isinstance(worker, bool | np.bool_):
        raise TypeError
    return index(worker)


@dataclass(frozen=True, slots=True)
class Left:
    """A worker left; all of its jobs are lost."""

    worker: int


@dataclass(slots=True)
class Arrived:
    """A worker sends the update of a job. The server checks ``worker`` if the engine passes it.

    ``examples`` is the number of rows of data that the job used, and ``seconds`` how long the worker computed; both are
    None if unknown. The server checks them and passes them on to the trace.

    ``checked`` means that the engine's own code ran `check_update` where the update was computed, so the server skips
    that pass over the vector. Never set it for an update from an untrusted sender.
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


@dataclass(frozen=True, slots=True)
class Changed:
    """Multiply the step of every later arrival by ``step_factor``; the factors of several such events multiply."""

    step_factor: float

    def __post_init__(self) -> None:
        if not is_number(self.step_factor) or self.step_factor <= 0:
            raise BadEvent(f"step_factor = {self.step_factor!r} is not a factor; pass a positive finite number")
        object.__setattr__(self, "step_factor", float(self.step_factor))


@dataclass(frozen=True, slots=True)
class Drain:
    """Hand out ``after`` more mini-batches (by default none), then no more jobs, and wait for those in flight.

    A later `Drain` replaces an earlier one; ``after=None`` lifts the limit.
    """

    after: int | None = 0

    def __post_init__(self) -> None:
        if self.after is None:
            return
        if not is_id(self.after) or self.after < 0:
            raise BadEvent(f"after = {self.after!r} is not a number of mini-batches; pass 0 or more, or None")
        object.__setattr__(self, "after", int(self.after))


Event: TypeAlias = Joined | Left | Arrived | Lost | Changed | Drain

# ---------------------------------------------------------------------------------------------- out


@dataclass(slots=True)
class Assign:
    """Give the job to its worker, after the jobs that the worker has not finished yet (first in, first out).

    ``point`` is a read-only view that stays valid until the job ends; ``slot`` numbers the buffer behind it, so
    that an engine with shared memory sends one small integer.
    """

    job: Job
    point: Vector
    slot: int


@dataclass(frozen=True, slots=True)
class Cancel:
    """Stop the job if that is cheap, and do not report it: the server no longer needs its update."""

    job: Job


Command: TypeAlias = Assign | Cancel

# ---------------------------------------------------------------------------------------------- the record


@dataclass(slots=True)
class Ended:
    """How a job ended, with the columns that the trace records.

    ``iteration`` is the t of an arrival, otherwise the first t whose C_t no longer holds the job. ``version`` is
    the model's version just before. ``concurrency`` is |C_t| with the job still in it, ``workers`` the number of
    workers present. ``examples`` and ``seconds`` are those of the arrival, None if unknown.
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
    """What the update rules may know about the gradient that arrives at iteration t, before the model changes.

    A step rule sees all of it. ``delay`` τ_t = t - s counts iterations, ``staleness`` counts versions.
    """

    worker: int
    job: int
    iteration: int
    """t: the number of gradients that arrived before this one."""
    delay: int
    """τ_t = t - s, for a gradient computed at x^(s)."""
    staleness: int
    """The number of changes of the model since x^(s)."""
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
    """The workers present, if known: a recorded trace holds only their number."""
    slot: int | None = None
    """The number of the server's buffer that holds the point."""
    steps: int = 1
    """The number of mini-batches of the job."""
    examples: int | None = None
    """The number of rows of data that the job used, if known."""

    @property
    def drift(self) -> float:
        """``‖x - point‖``: how far the model has moved since the job was handed out."""
        return norm(self.x - self.point)
