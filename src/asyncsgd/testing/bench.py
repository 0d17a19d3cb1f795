"""A pool on the bench: jobs are handed out by the test itself, and every report is held against the contract."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from asyncsgd.core.errors import BadEngine
from asyncsgd.core.events import Arrived, Assign, Cancel, Job, Joined, Left
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Gradient
from asyncsgd.engines.base import Died, Engine, Note, Report
from asyncsgd.testing.engine_contract import Watched, WatchedPool
from asyncsgd.testing.faults import AtJobs, Fault, FaultyTask, Gate, job_seed


@dataclass(frozen=True)
class Abilities:
    """What an engine can do in the time that a test has; what it cannot is not asked of it."""

    replaces: bool = True
    """A worker that is killed is noticed and replaced."""
    times_out: bool = True
    """``make_engine(workers, job_timeout=seconds)`` gives up a job that hangs, and replaces its worker."""
    stops: bool = True
    """A running job that is cancelled is stopped; else it runs on, and is not reported."""
    cleans_up: bool = True
    """After ``close`` every process, thread and file descriptor is gone; else a cluster may live on."""
    other_processes: bool = True
    """Jobs are computed in other processes than the server's."""


class Bowl:
    """½‖x‖² with noise: a task that starts fast."""

    def __init__(self, dim: int = 100, dtype: DTypeLike = np.float64) -> None:
        self._dim, self._dtype = dim, np.dtype(dtype)

    def initial(self) -> Vector:
        """Ones."""
        return np.ones(self._dim, self._dtype)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """X + noise."""
        noise = np.random.default_rng(seed).standard_normal(self._dim)
        g: Vector = (x + 0.1 * noise).astype(self._dtype)
        return g

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """The loss; infinity where it is too large for a number."""
        with np.errstate(over="ignore"):
            return {"loss": 0.5 * float(x @ x)}


class WritingBowl(Bowl):
    """The same, written where it is wanted."""

    def update_into(self, x: Vector, worker: int, seed: int, out: Vector) -> None:
        """X + noise."""
        out[:] = self.update(x, worker, seed)


@dataclass(frozen=True)
class Setting:
    """What a scenario is played with."""

    make: Callable[..., Engine]
    abilities: Abilities
    patience: float
    folder: Path

    def task(self, faults: Mapping[int, Fault], task: Any = None) -> FaultyTask:
        """A task with these faults, by job."""
        home = os.getpid() if self.abilities.other_processes else None
        return FaultyTask(Bowl() if task is None else task, AtJobs(faults), self.folder, home)

    @contextmanager
    def bench(
        self, workers: int, faults: Mapping[int, Fault] | None = None, task: Any = None, **options: Any
    ) -> Iterator[Bench]:
        """A pool of these workers, armed; closed afterwards."""
        faulty = self.task(faults or {}, task)
        gates = {job: Gate(self.folder, job_seed(0, job)) for job, f in (faults or {}).items() if f is Fault.WAIT}
        engine = Watched.of(self.make(workers, **options))
        try:
            with faulty.armed(), engine.start(faulty, Gradient(), faulty.initial()) as pool:
                yield Bench(pool, workers, faulty, gates, self.patience)
        finally:
            for gate in gates.values():
                gate.open()


class Bench:
    """Gives jobs numbered 0, 1, ... and waits for what becomes of them."""

    def __init__(
        self, pool: WatchedPool, workers: int, task: FaultyTask, gates: dict[int, Gate], patience: float
    ) -> None:
        self.pool, self.task, self.ledger = pool, task, pool.ledger
        self._workers = workers
        self.reports: list[Report] = []
        self._gates, self._patience = gates, patience
        self._jobs: dict[int, Job] = {}
        start = task.initial()
        self._points = [pool.allocate(start.shape[0]) for _ in range(2)]
        for slot, point in enumerate(self._points):
            point[:] = start + slot

    # ------------------------------------------------------------------------------------------ commands

    def give(self, worker: int, count: int = 1) -> list[int]:
        """Hand out jobs, at one point and the other in turn; their numbers."""
        given = []
        for _ in range(count):
            number = len(self._jobs)
            job = self._jobs[number] = Job(number, worker, 0, 0, 0, job_seed(0, number))
            self.pool.execute(Assign(job, self._points[number % 2], number % 2))
            given.append(number)
        return given

    def cancel(self, job: int) -> None:
        """Take a job back."""
        self.pool.execute(Cancel(self._jobs[job]))

    def open(self, job: int) -> None:
        """Let a waiting job go on."""
        self._gates[job].open()

    # ------------------------------------------------------------------------------------------ reports

    def poll(self, timeout: float = 0.05) -> list[Report]:
        """What has happened, held against the contract; the bits of every update are compared."""
        reports = self.pool.poll(timeout)
        for report in reports:
            if isinstance(report, Arrived):
                self._check_bits(report)
        self.reports += reports
        return reports

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Poll until it is so."""
        deadline = time.monotonic() + self._patience
        while not done():
            if time.monotonic() > deadline:
                said = ", ".join(map(_short, self.reports[-8:])) or "nothing"
                raise BadEngine(f"waited {self._patience:g} s in vain for {what}; its last reports are {said}")
            self.poll()

    def until_all_there(self) -> None:
        """Everybody has joined."""
        workers = set(range(self._workers))
        self.until(lambda: self.ledger.present >= workers, f"workers {sorted(workers)} to join")

    def until_ended(self, jobs: Sequence[int]) -> None:
        """All of these have been reported."""
        self.until(lambda: all(job in self.ledger.ended for job in jobs), f"jobs {list(jobs)} to be reported")

    def until_begun(self, job: int) -> None:
        """A job with `Fault.WAIT` waits at its gate."""
        self.until(self._gates[job].has_begun, f"job {job} to begin")

    def until_left(self, worker: int) -> None:
        """The worker is gone."""
        self.until(lambda: Left(worker) in self.reports, f"worker {worker} to leave")

    def expect(self, job: int, *outcomes: str) -> None:
        """How a job must have ended."""
        found = self.ledger.ended.get(job, "in flight")
        if found not in outcomes:
            raise BadEngine(f"job {job} ended as {found!r}, not as {' or '.join(map(repr, outcomes))}")

    def _check_bits(self, report: Arrived) -> None:
        job = self._jobs[report.job]
        if not report.checked and self.task.plan(job.worker, job.seed) not in (None, Fault.WAIT):
            return  # rubbish, which the server is to refuse
        expected = self.task.task.update(self._points[job.id % 2].copy(), job.worker, job.seed)
        if np.asarray(report.update).tobytes() != expected.tobytes():
            raise BadEngine(f"the update of job {job.id} is not what the task computes at its point")


def _short(report: Report) -> str:
    match report:
        case Joined(workers=workers):
            return f"Joined({list(workers)})"
        case Left(worker=worker) | Died(worker=worker):
            return f"{type(report).__name__}(worker {worker})"
        case Note(event=event):
            return f"Note({event!r})"
    return f"{type(report).__name__}(job {report.job})"
