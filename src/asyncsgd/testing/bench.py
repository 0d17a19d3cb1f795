"""A test bench for a pool: the test assigns jobs itself, and every report is checked against the contract."""

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
from asyncsgd.core.work import Gradient, Work
from asyncsgd.core.worker import Workers
from asyncsgd.engines.base import Died, Engine, Exhausted, Note, Replied, Report
from asyncsgd.tasks.epochs import batches_per_epoch, rows_of_batch
from asyncsgd.testing.engine_contract import Watched, WatchedPool
from asyncsgd.testing.faults import AtJobs, Fault, FaultyTask, Gate, job_seed

GRADIENT = Gradient()
VERDICTS = (True, True, False, None)
"""Whether the server applies the updates of jobs 0, 1, ..., in turn. None: it gives no verdict, as after a cancel."""


@dataclass(frozen=True)
class Abilities:
    """What an engine can do within the time of a test. Scenarios that need more are skipped."""

    replaces: bool = True
    """Whether the engine notices and replaces a worker that is killed."""
    times_out: bool = True
    """Whether ``make_engine(workers, job_timeout=seconds)`` gives up a job that hangs, and replaces its worker."""
    stops: bool = True
    """Whether cancelling stops a running job. If not, the job runs to its end and is not reported."""
    cleans_up: bool = True
    """Whether ``close`` ends every process, thread and file descriptor. If not, a cluster may live on."""
    other_processes: bool = True
    """Whether jobs are computed in other processes than the server's."""
    batches: bool = True
    """Whether a job gets the numbers of its mini-batches, ``job.steps`` and ``job.batch``, which epochs need."""


class Bowl:
    """The task of minimising ½‖x‖² with noise. It starts fast."""

    def __init__(self, dim: int = 100, dtype: DTypeLike = np.float64) -> None:
        self._dim, self._dtype = dim, np.dtype(dtype)

    def initial(self) -> Vector:
        """Return a vector of ones."""
        return np.ones(self._dim, self._dtype)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """Return x plus noise."""
        noise = np.random.default_rng(seed).standard_normal(self._dim)
        g: Vector = (x + 0.1 * noise).astype(self._dtype)
        return g

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return the loss; infinity if it overflows."""
        with np.errstate(over="ignore"):
            return {"loss": 0.5 * float(x @ x)}


class WritingBowl(Bowl):
    """The same task, which writes updates in place."""

    def update_into(self, x: Vector, worker: int, seed: int, out: Vector) -> None:
        """Write x plus noise to ``out``."""
        out[:] = self.update(x, worker, seed)


class Walk:
    """A task that walks 40 rows in epochs, 3 at a time; with step 1 the model counts how often each row was used."""

    uses_batch = True
    epoch_rows = 40
    batches_per_epoch = batches_per_epoch(40, 3)

    def initial(self) -> Vector:
        """Return zeros."""
        return np.zeros(self.epoch_rows)

    def update(self, x: Vector, worker: int, seed: int, batch: int) -> Vector:
        """Return -1 for every row of the mini-batch."""
        g = np.zeros_like(x)
        g[rows_of_batch(batch, 3, self.epoch_rows, 0)] = -1.0
        return g

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return how often the rows were used, at least and at most."""
        return {"least": float(x.min()), "most": float(x.max())}


@dataclass(frozen=True)
class Setting:
    """What a scenario runs with."""

    make: Callable[..., Engine]
    abilities: Abilities
    patience: float
    folder: Path

    def task(self, faults: Mapping[int, Fault], task: Any = None, steps: int = 1) -> FaultyTask:
        """Return a task with these faults, by job; of several local steps the second one has the fault."""
        home = os.getpid() if self.abilities.other_processes else None
        plan = AtJobs(faults, step=1 if steps > 1 else None)
        return FaultyTask(Bowl() if task is None else task, plan, self.folder, home)

    @contextmanager
    def bench(
        self,
        workers: int,
        faults: Mapping[int, Fault] | None = None,
        task: Any = None,
        work: Work = GRADIENT,
        **options: Any,
    ) -> Iterator[Bench]:
        """Start a pool with the faults armed, and close it after the block."""
        faulty = self.task(faults or {}, task, work.steps)
        step = 1 if work.steps > 1 else None
        gates = {job: Gate(self.folder, job_seed(0, job, step)) for job, f in (faults or {}).items() if f is Fault.WAIT}
        engine = Watched.of(self.make(workers, **options))
        try:
            with faulty.armed(), engine.start(faulty, work, faulty.initial()) as pool:
                yield Bench(pool, workers, faulty, gates, self.patience, work)
        finally:
            for gate in gates.values():
                gate.open()


class Bench:
    """Assigns jobs numbered 0, 1, ... and waits for their reports. If workers keep state, it judges every update."""

    def __init__(
        self,
        pool: WatchedPool,
        workers: int,
        task: FaultyTask,
        gates: dict[int, Gate],
        patience: float,
        work: Work = GRADIENT,
    ) -> None:
        self.pool, self.task, self.ledger = pool, task, pool.ledger
        self._workers, self._work = workers, work
        self._twins = Workers(work, task.initial())
        self.reports: list[Report] = []
        self._gates, self._patience = gates, patience
        self._jobs: dict[int, Job] = {}
        start = task.initial()
        self._points = [pool.allocate(start.shape[0]) for _ in range(2)]
        for slot, point in enumerate(self._points):
            point[:] = start + slot

    # ------------------------------------------------------------------------------------------ commands

    def give(self, worker: int, count: int = 1) -> list[int]:
        """Assign jobs, at two points in turn. Return their numbers."""
        given = []
        for _ in range(count):
            number = len(self._jobs)
            job = self._jobs[number] = Job(number, worker, 0, 0, 0, job_seed(0, number), self._work.steps)
            self.pool.execute(Assign(job, self._points[number % 2], number % 2))
            given.append(number)
        return given

    def cancel(self, job: int) -> None:
        """Cancel a job."""
        self.pool.execute(Cancel(self._jobs[job]))

    def open(self, job: int) -> None:
        """Open the gate of a job with `Fault.WAIT`."""
        self._gates[job].open()

    # ------------------------------------------------------------------------------------------ reports

    def poll(self, timeout: float = 0.05) -> list[Report]:
        """Poll, check the reports against the contract, and compare every update bit for bit."""
        reports = self.pool.poll(timeout)
        for report in reports:
            if isinstance(report, Arrived):
                self._check_bits(report)
            elif isinstance(report, Left):
                self._twins.forget(report.worker)
        self.reports += reports
        return reports

    def until(self, done: Callable[[], bool], what: str) -> None:
        """Poll until ``done`` returns true."""
        deadline = time.monotonic() + self._patience
        while not done():
            if time.monotonic() > deadline:
                last = ", ".join(map(_short, self.reports[-8:])) or "nothing"
                raise BadEngine(f"waited {self._patience:g} s in vain for {what}; its last reports are {last}")
            self.poll()

    def until_all_there(self) -> None:
        """Poll until every worker has joined."""
        workers = set(range(self._workers))
        self.until(lambda: self.ledger.present >= workers, f"workers {sorted(workers)} to join")

    def until_ended(self, jobs: Sequence[int]) -> None:
        """Poll until all of these jobs have ended."""
        self.until(lambda: all(job in self.ledger.ended for job in jobs), f"jobs {list(jobs)} to be reported")

    def until_begun(self, job: int) -> None:
        """Poll until a job with `Fault.WAIT` waits at its gate."""
        self.until(self._gates[job].has_begun, f"job {job} to begin")

    def until_left(self, worker: int) -> None:
        """Poll until the worker has left."""
        self.until(lambda: Left(worker) in self.reports, f"worker {worker} to leave")

    def expect(self, job: int, *outcomes: str) -> None:
        """Raise `BadEngine` unless the job ended in one of these ways."""
        found = self.ledger.ended.get(job, "in flight")
        if found not in outcomes:
            raise BadEngine(f"job {job} ended as {found!r}, not as {' or '.join(map(repr, outcomes))}")

    def _check_bits(self, report: Arrived) -> None:
        job = self._jobs[report.job]
        if not report.checked and self.task.plan(job.worker, job.seed) not in (None, Fault.WAIT):
            return  # an invalid update, which the server refuses
        point = self._points[job.id % 2].copy()
        expected = self._twins.compute(self.task.task, point, job.worker, job.seed, job.steps, job.batch)
        if np.asarray(report.update).tobytes() != expected.tobytes():
            raise BadEngine(f"the update of job {job.id} is not what the task computes at its point")
        if self._work.keeps:
            verdict = VERDICTS[job.id % len(VERDICTS)]
            self._twins.settle(job.worker, bool(verdict))
            if verdict is not None:
                self.pool.used(report, verdict)


def _short(report: Report) -> str:
    match report:
        case Joined(workers=workers):
            return f"Joined({list(workers)})"
        case Left(worker=worker) | Died(worker=worker) | Replied(worker=worker):
            return f"{type(report).__name__}(worker {worker})"
        case Note(event=event):
            return f"Note({event!r})"
        case Exhausted():
            return repr(report)
    return f"{type(report).__name__}(job {report.job})"
