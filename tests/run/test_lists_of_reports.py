"""Several reports come in one list, and what is done about an early one changes what a later one means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from engines.inline import Inline, InlinePool, UncheckedPool
from run.common import METHOD, sound, train

import asyncsgd as asgd
from asyncsgd.core.errors import UnknownJob
from asyncsgd.core.events import Arrived, Assign, Left, Lost, Outcome
from asyncsgd.engines import Died, Failed, Rejected
from asyncsgd.engines.base import Report
from asyncsgd.testing import AtJobs, Fault, FaultyTask
from asyncsgd.testing.bench import Bowl
from asyncsgd.testing.engine_contract import Watched


def faulty(folder: Path, faults: dict[int, Fault]) -> FaultyTask:
    return FaultyTask(Bowl(), AtJobs(faults), folder, home=None)


@pytest.mark.parametrize("fault", [Fault.RAISE, Fault.NAN])
def test_cancelled_by_the_report_before_its_own(tmp_path: Path, fault: Fault) -> None:
    """Of every round of two, the first is enough: the other one is cancelled, though it has failed already."""
    task = faulty(tmp_path, dict.fromkeys(range(1, 200, 2), fault))
    with task.armed():
        run = train(
            tmp_path / "run",
            task=task,
            method=asgd.fedavg(0.05, clients=1, ask=2),
            engine=Watched.of(Inline(2)),
            limits=asgd.Limits(10**9),
        )
    assert (run.trace.jobs.outcome[1:100:2] == Outcome.CANCELLED).all()
    assert (run.faults.exceptions, run.faults.rejected) == (0, 0)
    sound(run, 60)


class Together(InlinePool):
    """All jobs of a worker come in one list; those of worker 0 are rubbish, then ``second``."""

    second: Fault | None = None

    def poll(self, timeout: float) -> list[Report]:
        if self.newcomers or not self.jobs:
            return super().poll(timeout)
        worker = self.jobs[0].job.worker
        mine = [assign for assign in self.jobs if assign.job.worker == worker]
        for assign in mine:
            self.jobs.remove(assign)
        reports = [self.compute(assign) for assign in mine]
        return reports if worker else [self.spoil(place, assign.job.id) for place, assign in enumerate(mine)]

    def spoil(self, place: int, job: int) -> Report:
        if place and self.second is Fault.RAISE:
            return Failed(job, 0, "RuntimeError: on purpose")
        if place and self.second is Fault.KILL:
            return Lost(job)
        return Rejected(job, 0, "on purpose")


@pytest.mark.parametrize("second", [Fault.RAISE, Fault.NAN, Fault.KILL])
def test_retired_by_the_report_before(tmp_path: Path, second: Fault) -> None:
    """A worker is retired for its first job, while the others are in the same list."""
    kind = type("Kind", (Together,), {"second": second})
    method = asgd.federated_async_sgd(0.05, concurrency=12)
    run = train(tmp_path, method=method, engine=Watched.of(Inline(2, kind)), limits=asgd.Limits(1))
    assert run.faults.retired == (0,)
    assert (run.faults.rejected, run.faults.exceptions) == (1, 0)
    assert set(run.trace.worker.tolist()) == {1}
    sound(run, 60)


class DiesOfShame(InlinePool):
    """Whoever sends rubbish dies right after."""

    def poll(self, timeout: float) -> list[Report]:
        reports = super().poll(timeout)
        for place, report in enumerate(reports):
            if isinstance(report, Rejected):
                self.retire(report.worker)
                behind = [other for other in reports[place + 1 :] if getattr(other, "worker", -1) != report.worker]
                return [*reports[: place + 1], Died(report.worker, "of shame"), Left(report.worker), *behind]
        return reports


def test_a_worker_that_leaves_in_the_list_that_retires_it(tmp_path: Path) -> None:
    task = faulty(tmp_path, {4: Fault.NAN})
    with task.armed():
        run = train(tmp_path / "run", task=task, engine=Watched.of(Inline(3, DiesOfShame)), limits=asgd.Limits(1))
    assert len(run.faults.retired) == 1
    assert run.faults.deaths == 1
    sound(run, 60)


def test_the_server_checks_what_the_engine_does_not(tmp_path: Path) -> None:
    bad = {3: Fault.NAN, 7: Fault.SHORT, 12: Fault.DTYPE, 20: Fault.NOTHING}
    task = faulty(tmp_path, bad)
    with task.armed():
        run = train(tmp_path / "run", task=task, engine=Inline(2, UncheckedPool), limits=asgd.Limits(10**9))
    assert run.faults.rejected == 4
    assert (run.trace.jobs.outcome[list(bad)] == Outcome.REJECTED).all()
    sound(run, 60)


class Repeats(InlinePool):
    """Reports every job twice."""

    def poll(self, timeout: float) -> list[Report]:
        return [twice for report in super().poll(timeout) for twice in [report] * (1 + isinstance(report, Arrived))]


def test_a_job_that_is_reported_twice_is_used_once(tmp_path: Path) -> None:
    run = train(tmp_path, engine=Inline(2, Repeats))
    sound(run, 60)
    assert run.trace.counts[Outcome.APPLIED] == 60


def test_a_job_that_was_never_given_is_the_engines_fault() -> None:
    class Invents(InlinePool):
        def compute(self, assign: Assign) -> Report:
            report = super().compute(assign)
            return replace(report, job=report.job + 1000) if isinstance(report, Arrived) else report

    with pytest.raises(UnknownJob, match="job 1000 was never assigned"):
        train(None, method=METHOD, engine=Inline(2, Invents))
