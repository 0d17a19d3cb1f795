"""Pools with one deliberate bug each: the smallest change that makes a correct pool wrong."""

from __future__ import annotations

import os
import re
import signal
import time
from dataclasses import dataclass, replace
from typing import Any

from engines.inline import ABILITIES, Inline, InlinePool

from asyncsgd.core.events import Arrived, Assign, Cancel, Command, Joined, Left
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines import Processes
from asyncsgd.engines._processes.pool import AHEAD, ProcessPool, WorkerHandle
from asyncsgd.engines._processes.shared_memory import JOB
from asyncsgd.engines.base import Engine, Failed, Report, WorkerPool
from asyncsgd.tasks.base import Task
from asyncsgd.testing import Abilities, BadEngine, check_engine

# ---------------------------------------------------------------------------------------------- without processes


class ReportsTwice(InlinePool):
    def poll(self, timeout: float) -> list[Report]:
        reports = super().poll(timeout)
        return [*reports, *(report for report in reports if isinstance(report, Arrived) and report.job == 3)]


class CountsBatchesItself(InlinePool):
    """Numbers the mini-batches of each worker, though the workers share the data."""

    def compute(self, assign: Assign) -> Report:
        job = assign.job
        return super().compute(replace(assign, job=replace(job, batch=job.batch // 2)))


class ForgetsTheLastSteps(InlinePool):
    """Always computes as many local steps as the method says."""

    def compute(self, assign: Assign) -> Report:
        return super().compute(replace(assign, job=replace(assign.job, steps=self.work.steps)))


class Reorders(InlinePool):
    def poll(self, timeout: float) -> list[Report]:
        return super().poll(timeout)[::-1]


class LosesAJob(InlinePool):
    def poll(self, timeout: float) -> list[Report]:
        return [report for report in super().poll(timeout) if getattr(report, "job", 0) != 2]


class LosesTheLastJob(InlinePool):
    def poll(self, timeout: float) -> list[Report]:
        return [report for report in super().poll(timeout) if getattr(report, "job", 0) != 19]


class OverwritesAnUpdate(InlinePool):
    """A worker that is given a job begins at once, and writes where the server has not read yet."""

    reported: tuple[Vector, ...] = ()

    def poll(self, timeout: float) -> list[Report]:
        reports = super().poll(timeout)
        self.reported = tuple(report.update for report in reports if isinstance(report, Arrived))
        return reports

    def execute(self, command: Command) -> None:
        super().execute(command)
        for update in self.reported:
            update[:] = 7


class NamesAnotherWorker(InlinePool):
    def compute(self, assign: Assign) -> Report:
        report = super().compute(assign)
        return replace(report, worker=0) if isinstance(report, Arrived) else report


class ComputesAtTheNewestPoint(InlinePool):
    newest: Vector

    def execute(self, command: Command) -> None:
        if isinstance(command, Assign):
            self.newest = command.point
        super().execute(command)

    def compute(self, assign: Assign) -> Report:
        return super().compute(replace(assign, point=self.newest))


class DrawsAnotherSeed(InlinePool):
    def compute(self, assign: Assign) -> Report:
        return super().compute(replace(assign, job=replace(assign.job, seed=assign.job.seed ^ 1)))


class ChecksNothing(InlinePool):
    def compute(self, assign: Assign) -> Report:
        job = assign.job
        try:
            return Arrived(job.id, self.task.update(assign.point, job.worker, job.seed), job.worker, checked=True)
        except RuntimeError:
            return super().compute(assign)


class TellsNoTraceback(InlinePool):
    def compute(self, assign: Assign) -> Report:
        report = super().compute(assign)
        return replace(report, error="it failed") if isinstance(report, Failed) else report


class ReportsRetired(InlinePool):
    def retire(self, worker: int) -> None:
        pass


class TakesJobsForTheAbsent(InlinePool):
    def execute(self, command: Command) -> None:
        self.here.add(command.job.worker)
        super().execute(command)


class JoinsTwice(InlinePool):
    said = False

    def poll(self, timeout: float) -> list[Report]:
        reports = super().poll(timeout)
        if not reports and not self.said:
            self.said = True
            return [Joined(0)]
        return reports


class IgnoresCancel(InlinePool):
    def execute(self, command: Command) -> None:
        if isinstance(command, Assign):
            super().execute(command)


# ---------------------------------------------------------------------------------------------- with processes


class PlacesInTurn(ProcessPool):
    """A worker's two places for updates are used in turn, whether or not the next one is free."""

    def _send(self, handle: WorkerHandle) -> None:
        while handle.free and (assign := self._life.peek(handle.number)) is not None:
            handle.free.pop()
            turn = getattr(handle, "turn", 0)
            place = handle.places[turn]
            handle.turn = (turn + 1) % AHEAD  # type: ignore[attr-defined]
            self._life.sent(handle.number, place, time.monotonic())
            job = assign.job
            os.write(handle.inbox, JOB.pack(job.id, job.seed, 1, job.batch, assign.slot, place, False))


class ForgetsLeft(ProcessPool):
    def poll(self, timeout: float) -> list[Report]:
        return [report for report in super().poll(timeout) if not isinstance(report, Left)]


class ReplacesNobody(ProcessPool):
    def _fork(self, handle: WorkerHandle) -> None:
        if not self._life.workers[handle.number].deaths:
            super()._fork(handle)


class KeepsJobsOfTheDead(ProcessPool):
    """The replacement computes a job that the server assigned before it read of the death."""

    def execute(self, command: Command) -> None:
        present = self._life.present.copy()
        self._life.present.add(command.job.worker)
        super().execute(command)
        self._life.present = present


class LeavesAndJoinsAtOnce(ProcessPool):
    """The pool confuses jobs lost with a worker and jobs assigned to its replacement."""

    held: tuple[Report, ...] = ()

    def poll(self, timeout: float) -> list[Report]:
        reports = [*self.held, *super().poll(timeout)]
        gone = {report.worker for report in reports if isinstance(report, Left)}
        back = {worker for report in reports if isinstance(report, Joined) for worker in report.workers}
        self.held = tuple(reports) if gone - back else ()
        return [] if self.held else reports


class StopsNothing(ProcessPool):
    def execute(self, command: Command) -> None:
        if isinstance(command, Cancel):
            self._life.cancel(command)
        else:
            super().execute(command)


class LeavesProcesses(ProcessPool):
    left: list[ProcessPool] = []  # noqa: RUF012 - for the test to clean up

    def close(self) -> None:
        self.left.append(self)


class ClosesOnce(ProcessPool):
    closed = False

    def close(self) -> None:
        if self.closed:
            raise OSError("closed already")
        self.closed = True
        super().close()


class NeverGivesUp(ProcessPool):
    def _check_times(self, now: float) -> None:
        self._check_at = now + 1


class EveryUpdateIsApplied(ProcessPool):
    """The verdict that goes out with the next job is always the same."""

    def used(self, report: Arrived, applied: bool) -> None:
        super().used(report, True)


class AsksForNoVerdict(ProcessPool):
    """A worker that keeps state holds two jobs, and begins the second before the verdict on the first."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._life.rules = replace(self._life.rules, ahead=2)


class GivesUpEverybody(ProcessPool):
    def _check_times(self, now: float) -> None:
        super()._check_times(now)
        for worker in self._life.workers if any(other.condemned for other in self._life.workers) else ():
            self._forks.signal(worker.number, signal.SIGKILL)


@dataclass(frozen=True)
class BrokenProcesses(Processes):
    kind: type[ProcessPool] = ProcessPool

    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        return self.kind(self, task, work, x)


# ---------------------------------------------------------------------------------------------- by name


@dataclass(frozen=True)
class Bug:
    """``scenario`` is one that detects the bug, ``words`` a pattern of its error.

    ``tries``: how often it may be played until it is seen. Whether a race is lost is up to the machine.
    """

    kind: type[WorkerPool]
    scenario: str
    words: str
    tries: int = 1

    def play(self) -> None:
        for _ in range(self.tries):
            try:
                self._check(patience=3)
            except BadEngine as error:
                if "in vain" not in str(error) or re.search(self.words, str(error)):
                    raise
                self._check(patience=30)  # perhaps it was the machine that took so long

    def _check(self, patience: float) -> None:
        check_engine(self.make, abilities=self.abilities, only=self.scenario, patience=patience)

    @property
    def abilities(self) -> Abilities:
        return ABILITIES if issubclass(self.kind, InlinePool) else Abilities()

    def make(self, workers: int, **options: Any) -> Engine:
        if issubclass(self.kind, InlinePool):
            return Inline(workers, self.kind)
        assert issubclass(self.kind, ProcessPool)
        return BrokenProcesses(workers, threads_each=1, kind=self.kind, **options)


BUGS: dict[str, Bug] = {
    bug.kind.__name__: bug
    for bug in (
        Bug(ReportsTwice, "order", "job 3 was reported, but it had already ended: arrived"),
        Bug(CountsBatchesItself, "train for epochs", "ReplayDiffers: job 1 of worker 1"),
        Bug(ForgetsTheLastSteps, "train for epochs with local steps", "ReplayDiffers: job 5"),
        Bug(Reorders, "order", "not first in, first out"),
        Bug(LosesAJob, "order", "job 3 of worker 0 was reported before job 2"),
        Bug(LosesTheLastJob, "order", r"waited \d+ s in vain for jobs .* to be reported"),
        Bug(OverwritesAnUpdate, "train with async_sgd", "was overwritten before the next poll"),
        Bug(NamesAnotherWorker, "order", "was reported by worker 0, but assigned to worker 1"),
        Bug(ComputesAtTheNewestPoint, "order", "is not what the task computes at its point"),
        Bug(DrawsAnotherSeed, "train with mifa", "ReplayDiffers: job 0 of worker 0"),
        Bug(ChecksNothing, "rejection", "job 0 came with checked=True, but"),
        Bug(TellsNoTraceback, "exceptions", "its traceback is not in 'it failed'"),
        Bug(ReportsRetired, "retiring", "it had already ended: of a retired worker"),
        Bug(TakesJobsForTheAbsent, "joining", "assigned to an absent worker"),
        Bug(JoinsTwice, "joining", "worker 0 joined twice"),
        Bug(IgnoresCancel, "train with over_selection", "it had already ended: cancelled"),
        Bug(PlacesInTurn, "updates stay", "was overwritten before|is not what the task computes", tries=10),
        Bug(ForgetsLeft, "killed", "the list has no Left for it"),
        Bug(ReplacesNobody, "killed", r"waited \d+ s in vain for worker 0 to be replaced"),
        Bug(KeepsJobsOfTheDead, "killed", "assigned to an absent worker"),
        Bug(LeavesAndJoinsAtOnce, "killed", "worker 0 left and joined again in the same list"),
        Bug(StopsNothing, "cancelling", r"waited \d+ s in vain for jobs"),
        Bug(LeavesProcesses, "closing", "is still alive after close"),
        Bug(ClosesOnce, "closing", "OSError: closed already"),
        Bug(NeverGivesUp, "hung", r"waited \d+ s in vain for worker 0 to leave"),
        Bug(EveryUpdateIsApplied, "kept state", "is not what the task computes at its point"),
        Bug(AsksForNoVerdict, "kept state", "is not what the task computes at its point"),
        Bug(GivesUpEverybody, "hung", "one died idle", tries=3),
    )
}
