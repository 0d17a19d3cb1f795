"""What an engine is: something that takes the server's commands and reports events. `asyncsgd.run` drives any of them.

An `Engine` is a frozen value that says which workers there shall be; ``start`` gives a `WorkerPool` of live ones.
"""

from __future__ import annotations

import os
import sys
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrived, Command, Joined, Left, Lost
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.tasks.base import Task

# --------------------------------------------------------------------------------------------------------------
# How many threads the numerical libraries use. Two each for two workers on two processors cost a factor 10.


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(workers: int) -> int:
    """An equal share of the processors for each worker."""
    return max(1, processors() // max(1, workers))


@contextmanager
def limited(number: int | None) -> Iterator[None]:
    """Within the block, so many threads for every library that is loaded; None: leave them alone.

    The same number gives the same order of additions, hence the same bits.
    """
    if number is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    torch: Any = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    with threadpool_limits(number):
        if torch is not None:
            torch.set_num_threads(number)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)


# --------------------------------------------------------------------------------------------------------------
# Workers that pretend to be slower than they are, for tests and demonstrations.


def per_worker(
    name: str, given: Sequence[float] | Mapping[int, float] | None, workers: int, nothing: float
) -> tuple[float, ...]:
    """One number for each worker, none below ``nothing``; empty if nobody pretends.

    >>> per_worker("slowdown", {2: 10}, workers=3, nothing=1.0)
    (1.0, 1.0, 10.0)
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        unknown = [worker for worker in given if worker not in range(workers)]
        if unknown:
            fix = f"name workers 0..{workers - 1}"
            raise BadParameter(name, given, f"names worker {unknown[0]}, who is not there", fix)
        given = [given.get(worker, nothing) for worker in range(workers)]
    try:
        values = tuple(float(value) for value in given)
    except (TypeError, ValueError) as error:
        each = given if isinstance(given, int | float) else nothing
        raise BadParameter(
            name, given, "is no list of numbers", f"give one per worker: [{each:g}] * {workers}"
        ) from error
    if len(values) != workers:
        raise BadParameter(name, given, f"has {len(values)} values for {workers} workers", "give one per worker")
    for value in values:
        if not nothing <= value < float("inf"):
            raise BadParameter(name, value, "makes no worker slower", f"pass a number of at least {nothing:g}")
    return values


@dataclass(frozen=True, slots=True)
class Failed:
    """The user's code raised in a worker, which is fine otherwise. The job is over; ``error`` is the traceback."""

    job: int
    worker: int
    error: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The update of a job cannot be used: NaN, infinity, another length or dtype. The job is over."""

    job: int
    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Died:
    """A worker process is gone, and why. `Left` follows if it had joined, and `Joined` once it has been replaced."""

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """Something for the journal that ends no job: an event, its details, and a line for the user if he should know."""

    event: str
    details: Mapping[str, Any]
    message: str | None = None


Report: TypeAlias = Joined | Left | Arrived | Lost | Rejected | Failed | Died | Note
"""What a pool can report in ``poll``: events for the server, and what only the loop has to know."""


class WorkerPool(ABC):
    """Live workers. Every job ends once: arrived, rejected, failed, lost, cancelled, or with its worker as left.

    Use it as a context manager; nothing of it is left behind afterwards.
    """

    dtype: np.dtype[Any]

    def allocate(self, n: int) -> Vector:
        """The next buffer for points, numbered 0, 1, ... as `Assign.slot` counts, where workers can read it.

        ``dtype`` is that of the model the pool was started with. Without shared memory any buffer will do.
        """
        return np.empty(n, self.dtype)

    @abstractmethod
    def execute(self, command: Command) -> None:
        """Do what the server says. An assigned job waits behind those that its worker has not finished.

        A cancelled job is not reported any more, and is stopped if that is cheap. A job for a worker that has left,
        or is retired, is dropped: it was assigned before the server had heard of that.
        """

    @abstractmethod
    def poll(self, timeout: float) -> list[Report]:
        """What has happened since, in order; waits up to ``timeout`` seconds if that is nothing.

        The update of an `Arrived` may be overwritten from the next call of ``poll`` on, or once it is `used`. Whoever
        left does not join again within the same list: jobs assigned in between belong to the one that left.
        """

    def used(self, report: Arrived) -> None:
        """The update is not needed any more. To say so early is optional: its memory can then serve the next job."""
        return

    @abstractmethod
    def retire(self, worker: int) -> None:
        """Do without this worker from now on. Its jobs are not reported any more, and it is not replaced."""

    def finish(self) -> list[Note]:
        """The run is over, and no job is wanted any more: whatever else there is to say. It may take a while."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Stop all workers and free what they held. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Engine(ABC):
    """Which workers there shall be; a frozen value, so that a run can write down what it used."""

    workers: int

    @abstractmethod
    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        """Start the workers. ``x`` is a model like the one they will be sent: its length and dtype count."""

    @property
    def opening(self) -> str | None:
        """What to say before the workers start, where that takes many seconds; None: nothing."""
        return None

    @property
    def threads(self) -> int | list[int] | None:
        """Threads that a gradient is computed with, one number or one per worker, for the replay; None: not known."""
        return None

    def encoding(self, code: str) -> Engine:
        """Return the same engine with updates sent in this code (`asyncsgd.Method.compressed`), if it can do that."""
        kind = type(self).__name__.lower()
        fix = "leave .compressed(...) out, or use asgd.engines.ray(...)"
        raise BadParameter("compressed", code, f"is not possible with the engine {kind}", fix)

    @property
    def transport(self) -> str | None:
        """How updates are rounded on their way (`asyncsgd.engines.compression`), as in the replay; None: not at all."""
        return None

    def describe(self) -> dict[str, Any]:
        """Words and numbers for the record of the run."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"engine": type(self).__name__.lower(), **{k: v for k, v in values.items() if v is not None}}
