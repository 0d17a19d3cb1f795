"""The interface of engines: a pool of workers takes the server's commands and reports what happened.

An `Engine` is a frozen value that describes the workers; ``start`` returns a `WorkerPool` of live ones. `asyncsgd.run`
drives any engine. One thread calls all methods of a pool: the thread that runs the training loop.
"""

from __future__ import annotations

import os
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, ClassVar, Self, TypeAlias

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrived, Command, Job, Joined, Left, Lost
from asyncsgd.core.validate import positive
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace

# Threads of the numerical libraries. Too many are expensive: two workers with two threads each on two processors are
# ten times slower than with one thread each.


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(workers: int) -> int:
    """Return each worker's equal share of the processors, at least 1."""
    return max(1, processors() // max(1, workers))


@contextmanager
def limited(number: int | None) -> Iterator[None]:
    """Limit every loaded numerical library to this many threads within the block. None changes nothing.

    The same number of threads gives the same order of additions, and so the same bits.
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


# Artificial delays, which make workers slower than they are for tests and demonstrations.


def per_worker(
    name: str, given: Sequence[float] | Mapping[int, float] | None, workers: int, nothing: float
) -> tuple[float, ...]:
    """Return one number per worker, each at least ``nothing``; an empty tuple if no delays were given.

    >>> per_worker("slowdown", {2: 10}, workers=3, nothing=1.0)
    (1.0, 1.0, 10.0)
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        unknown = [worker for worker in given if worker not in range(workers)]
        if unknown:
            fix = f"name workers 0..{workers - 1}"
            raise BadParameter(name, given, f"names worker {unknown[0]}, which does not exist", fix)
        given = [given.get(worker, nothing) for worker in range(workers)]
    try:
        values = tuple(float(value) for value in given)
    except (TypeError, ValueError) as error:
        each = given if isinstance(given, int | float) else nothing
        raise BadParameter(
            name, given, "is not a list of numbers", f"give one per worker: [{each:g}] * {workers}"
        ) from error
    if len(values) != workers:
        raise BadParameter(name, given, f"has {len(values)} values for {workers} workers", "give one per worker")
    for value in values:
        if not nothing <= value < float("inf"):
            raise BadParameter(name, value, "makes no worker slower", f"pass a number of at least {nothing:g}")
    return values


def checked(
    workers: int,
    job_timeout: float | None,
    start_timeout: float,
    slowdown: Sequence[float] | Mapping[int, float] | None,
    min_seconds: Sequence[float] | Mapping[int, float] | None,
) -> dict[str, Any]:
    """Return the options that every engine for this many workers has, by name. Raise if one cannot work.

    >>> checked(2, None, 120.0, {1: 10}, None)
    {'job_timeout': None, 'start_timeout': 120.0, 'slowdown': (1.0, 10.0), 'min_seconds': ()}
    """
    if job_timeout is not None:
        positive("job_timeout", job_timeout)
    positive("start_timeout", start_timeout)
    return {
        "job_timeout": job_timeout,
        "start_timeout": start_timeout,
        "slowdown": per_worker("slowdown", slowdown, workers, nothing=1.0),
        "min_seconds": per_worker("min_seconds", min_seconds, workers, nothing=0.0),
    }


# The rows of data that a job uses, for the trace.


def example_counter(task: Any, work: Work) -> Callable[[Job], int | None] | None:
    """Return a function that counts the rows of a job; None if the task has no method ``examples``.

    The task's ``examples(worker, seed, batch)`` is the number of rows of one mini-batch, or None if it is unknown. It
    depends on its arguments alone, so the server asks it, and no message has to carry the answer.

    >>> class Rows:
    ...     def examples(self, worker, seed, batch):
    ...         return 32
    >>> from asyncsgd.core.work import Gradient
    >>> counted = example_counter(Rows(), Gradient())
    >>> counted(Job(0, 0, 0, 0, 0, seed=1))
    32
    """
    rows = getattr(task, "examples", None)
    if not callable(rows):
        return None

    def counted(job: Job) -> int | None:
        total = 0
        for step in range(job.steps):
            found = rows(job.worker, work.seed_of(job.seed, step), job.batch + step)
            if found is None:
                return None
            total += found
        return total

    return counted


@dataclass(frozen=True, slots=True)
class Failed:
    """The user's code raised an exception, and the worker still works. The job is over; ``error`` is the traceback."""

    job: int
    worker: int
    error: str


@dataclass(frozen=True, slots=True)
class Rejected:
    """The update of a job cannot be used: it has NaN, infinity, a wrong length or a wrong dtype. The job is over."""

    job: int
    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Died:
    """A worker process died, with the reason. `Left` follows if it had joined, and `Joined` once it is replaced."""

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Note:
    """An entry for the journal that does not end a job: event, details, and a line to show the user, if any."""

    event: str
    details: Mapping[str, Any]
    message: str | None = None


@dataclass(frozen=True, slots=True)
class Exhausted:
    """No worker may get another job, for this reason. The run ends as after its last iteration."""

    reason: str


@dataclass(frozen=True, slots=True)
class Replied:
    """What an answer contained beside the update, for ``Callback.on_reply``. `Arrived` follows if it was a job's."""

    worker: int
    kind: str
    """What the worker was asked to do: ``"train"`` or ``"evaluate"``."""
    records: Callable[[], Any]
    """Builds the records. It is called only if there is such a callback."""


Report: TypeAlias = Joined | Left | Arrived | Lost | Rejected | Failed | Died | Note | Replied | Exhausted
"""What a pool can report in ``poll``: events for the server, and facts that only the training loop needs."""


LATE = (Note, Replied)
"""What counts even after the last update. It changes nothing of the model, and is reported only once."""


class WorkerPool(ABC):
    """Live workers. Every job ends exactly once: arrived, rejected, failed, lost, cancelled, or lost with its worker.

    Use the pool as a context manager: it leaves no process, thread or memory behind.

    See docs/howto/engine.md for the promises of a pool.
    """

    dtype: np.dtype[Any]
    clock: Callable[[], float] = time.monotonic
    """Seconds on the clock of the run, which the training loop sets before its first poll."""

    def label(self, worker: int) -> str:
        """Return the worker's name for texts that users read."""
        return f"worker {worker}"

    def allocate(self, n: int) -> Vector:
        """Return the next buffer for a point, in memory that workers can read.

        Buffers are numbered 0, 1, ... like `Assign.slot`. They have the dtype of the model that the pool was started
        with. An engine without shared memory may return any array.
        """
        return np.empty(n, self.dtype)

    @abstractmethod
    def execute(self, command: Command) -> None:
        """Execute a command of the server. An assigned job waits behind the unfinished jobs of its worker.

        A cancelled job is never reported, and is stopped if that is cheap. A job for a worker that has left or is
        retired is dropped: the server assigned it before it read that report.
        """

    @abstractmethod
    def poll(self, timeout: float) -> list[Report]:
        """Return what happened since the last call, in order; wait up to ``timeout`` seconds for the first report.

        The update of an `Arrived` stays valid until the next call of ``poll``, or until `used` releases it. A worker
        that left does not join again within the same list: jobs assigned in between belong to the process that left.
        """

    def used(self, report: Arrived, applied: bool) -> None:
        """Release an update early, so that its memory can serve the next job, and take note of the server's verdict.

        A pool of an engine that `keeps_state` passes the verdict on with the worker's next job. Calling this for an
        update that the server did not take is optional.
        """
        return

    def resumed(self, trace: Trace) -> None:
        """Learn what happened before a resume: the trace up to the checkpoint. Called before the first command."""
        return

    @abstractmethod
    def retire(self, worker: int) -> None:
        """Remove this worker for good. Its jobs are never reported, and it is not replaced."""

    def finish(self) -> Sequence[Note | Replied]:
        """Return the last notes and replies, once the run is over and no job is wanted. This may take a while."""
        return []

    @abstractmethod
    def close(self) -> None:
        """Stop all workers and free their memory and descriptors. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Engine(ABC):
    """A description of the workers to start. It is a frozen value, so that a run can record what it used.

    See docs/howto/engine.md for an engine of your own.
    """

    workers: int

    @abstractmethod
    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        """Start the workers. ``x`` only shows the length and the dtype of the model that they will be sent."""

    @property
    def opening(self) -> str | None:
        """A line to show before the workers start, if starting takes many seconds; None otherwise."""
        return None

    @property
    def threads(self) -> int | list[int] | None:
        """Threads used for one gradient, one number or one per worker; the replay uses them too. None: unknown."""
        return None

    noun: ClassVar[str] = "worker"
    """What users call its workers."""
    keeps_state: ClassVar[bool] = False
    """Whether its workers use `asyncsgd.core.worker.WorkerState`, so that they can keep state from job to job and
    encode what they send. An engine of your own that calls `compute_job` does not."""

    on_this_machine: ClassVar[bool] = False
    """Whether its workers use the memory of the server's machine, so that a run counts it before it starts."""

    def describe(self) -> dict[str, Any]:
        """Return the engine's settings as JSON values, for the record of the run."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"engine": type(self).__name__.lower(), **{k: v for k, v in values.items() if v is not None}}
