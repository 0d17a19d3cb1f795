"""The contract of `asyncsgd.engines.WorkerPool`, checked report by report against the commands that it received."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadEngine, BadUpdate
from asyncsgd.core.events import Arrived, Assign, Command, Joined, Left, Lost
from asyncsgd.core.validate import check_update
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Died, Engine, Exhausted, Failed, Note, Rejected, Replied, Report, WorkerPool
from asyncsgd.tasks.base import Task


class Ledger:
    """The present workers, the jobs of each, and how each job ended."""

    def __init__(self, x: Vector) -> None:
        self._like = x
        self.present: set[int] = set()
        self.retired: set[int] = set()
        self.queues: dict[int, list[int]] = {}  # worker -> its jobs in flight, in order
        self.worker: dict[int, int] = {}  # job -> its worker
        self.ended: dict[int, str] = {}  # job -> how it ended
        self._held: dict[int, tuple[Vector, int]] = {}  # job -> (update, checksum) that the last poll reported

    @property
    def in_flight(self) -> list[int]:
        """The jobs that the pool still has to report."""
        return [job for jobs in self.queues.values() for job in jobs]

    # ------------------------------------------------------------------------------------------ to the pool

    def executed(self, command: Command) -> None:
        """Record a command that the pool received."""
        job = command.job
        if isinstance(command, Assign):
            self.worker[job.id] = job.worker
            if job.worker in self.present:
                self.queues[job.worker].append(job.id)
            else:
                self.ended[job.id] = "assigned to an absent worker"
        elif job.id not in self.ended:
            self._end(job.id, "cancelled")

    def retire(self, worker: int) -> None:
        """Record that this worker was retired."""
        self.retired.add(worker)
        self.present.discard(worker)
        for job in self.queues.pop(worker, []):
            self.ended[job] = "of a retired worker"

    # ------------------------------------------------------------------------------------------ from the pool

    def before_poll(self) -> None:
        """Check that the updates of the last poll have not changed, except those that `used` released."""
        for job in tuple(self._held):
            self.used(job)

    def used(self, job: int) -> None:
        """Check that this update has not changed since the poll that reported it; from now on it may."""
        update, before = self._held.pop(job)
        if _sum(update) != before:
            raise BadEngine(f"the update of job {job} was overwritten before the next poll, or before it was used")

    def reported(self, reports: Sequence[Report]) -> None:
        """Check a list of reports, and record it."""
        left: set[int] = set()
        for place, report in enumerate(reports):
            match report:
                case Joined(workers=workers):
                    for worker in workers:
                        self._joined(worker, left)
                case Left(worker=worker):
                    self._left(worker)
                    left.add(worker)
                case Died(worker=worker):
                    if worker in self.present and Left(worker) not in reports[place:]:
                        raise BadEngine(f"worker {worker} died, but the list has no Left for it")
                case Arrived(job=job, update=update):
                    self._check_first(job, report.worker)
                    self._check_update(report)
                    self._end(job, "arrived")
                    self._held[job] = update, _sum(update)
                case Failed(job=job, worker=worker):
                    self._check_first(job, worker)
                    self._end(job, "failed")
                case Rejected(job=job, worker=worker):
                    self._check_first(job, worker)
                    self._end(job, "rejected")
                case Lost(job=job):
                    self._check_known(job)
                    self._end(job, "lost")
                case Note() | Replied() | Exhausted():
                    pass
                case _:
                    raise BadEngine(f"reported {report!r}, which is not a report")

    def _joined(self, worker: int, left: set[int]) -> None:
        if worker in self.retired:
            raise BadEngine(f"worker {worker} joined, but it is retired")
        if worker in self.present:
            raise BadEngine(f"worker {worker} joined twice without leaving in between")
        if worker in left:
            raise BadEngine(f"worker {worker} left and joined again in the same list")
        self.present.add(worker)
        self.queues[worker] = []

    def _left(self, worker: int) -> None:
        if worker not in self.present:
            raise BadEngine(f"worker {worker} left, but it was not present")
        self.present.remove(worker)
        for job in self.queues.pop(worker):
            self.ended[job] = "lost with its worker"

    def _check_known(self, job: int) -> None:
        if job not in self.worker:
            raise BadEngine(f"job {job} was reported, but never assigned")
        if job in self.ended:
            raise BadEngine(f"job {job} was reported, but it had already ended: {self.ended[job]}")

    def _check_first(self, job: int, worker: int | None) -> None:
        self._check_known(job)
        owner = self.worker[job]
        if worker is not None and worker != owner:
            raise BadEngine(f"job {job} was reported by worker {worker}, but assigned to worker {owner}")
        first = self.queues[owner][0]
        if job != first:
            raise BadEngine(f"job {job} of worker {owner} was reported before job {first}: not first in, first out")

    def _check_update(self, report: Arrived) -> None:
        if report.checked:
            try:
                check_update(report.update, self._like, self.worker[report.job], report.job)
            except BadUpdate as error:
                raise BadEngine(f"job {report.job} came with checked=True, but {error}") from error

    def _end(self, job: int, how: str) -> None:
        self.queues[self.worker[job]].remove(job)
        self.ended[job] = how


def _sum(update: Any) -> int:
    return zlib.crc32(np.ascontiguousarray(update).tobytes())


# ---------------------------------------------------------------------------------------------- a checked engine


class WatchedPool(WorkerPool):
    """A pool that checks every report against a ledger."""

    def __init__(self, pool: WorkerPool, x: Vector) -> None:
        self._pool, self.dtype = pool, x.dtype
        self.ledger = Ledger(x)

    def allocate(self, n: int) -> Vector:
        return self._pool.allocate(n)

    def execute(self, command: Command) -> None:
        self._pool.execute(command)
        self.ledger.executed(command)

    def poll(self, timeout: float) -> list[Report]:
        self.ledger.before_poll()
        reports = self._pool.poll(timeout)
        self.ledger.reported(reports)
        return reports

    def used(self, report: Arrived, applied: bool) -> None:
        self.ledger.used(report.job)
        self._pool.used(report, applied)

    def retire(self, worker: int) -> None:
        self._pool.retire(worker)
        self.ledger.retire(worker)

    def finish(self) -> Sequence[Note | Replied]:
        return self._pool.finish()

    def close(self) -> None:
        self._pool.close()


@dataclass(frozen=True)
class Watched(Engine):
    """An engine whose pools are checked. They raise `BadEngine` at the first report that breaks the contract."""

    inner: Engine

    @classmethod
    def of(cls, engine: Engine) -> Watched:
        """Return a checked version of this engine."""
        return cls(engine.workers, engine)

    def start(self, task: Task, work: Work, x: Vector) -> WatchedPool:
        return WatchedPool(self.inner.start(task, work, x), x)

    @property
    def threads(self) -> int | list[int] | None:
        return self.inner.threads

    @property
    def keeps_state(self) -> bool:  # type: ignore[override]
        return self.inner.keeps_state

    def describe(self) -> dict[str, Any]:
        return self.inner.describe()
