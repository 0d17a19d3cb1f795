"""Who is given up and why, with a clock and a Ray that do what the test says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from engines.fake_ray import FakeRay, Gone

import asyncsgd as asgd
from asyncsgd.core.events import Arrived, Assign, Job, Joined, Left
from asyncsgd.core.work import Gradient
from asyncsgd.engines import Died, EngineError
from asyncsgd.engines._ray import call_queue as desk_module
from asyncsgd.engines._ray import pool as crew_module
from asyncsgd.engines._ray.pool import RayPool
from asyncsgd.engines._ray.worker import Loaded
from asyncsgd.engines.job import Kind
from asyncsgd.testing.bench import Bowl

LOADED = Loaded()


@dataclass(eq=False)
class Stage(FakeRay):
    """Places a worker at once, lets it load the task at once, and computes nothing unless told to. It is the clock."""

    now: float = 1000.0
    calls: list[str] = field(default_factory=list)
    hello: Any = "a node"
    load: Any = LOADED
    far: set[str] = field(default_factory=set)
    """Answers that lie on another node."""

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def remote(self, *_: Any) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._place))

    def _place(self) -> Any:
        names = ("hello", "load", "ping", "compute")
        return SimpleNamespace(**{name: SimpleNamespace(remote=self._method(name)) for name in names})

    def _method(self, name: str) -> Callable[..., str]:
        def call(*_: Any) -> str:
            self.calls.append(name)
            reference = f"{name} {self.calls.count(name) - 1}"
            if name in ("hello", "load"):
                self.answers[reference] = getattr(self, name)
            return reference

        return call

    def wait(
        self, references: list[Any], num_returns: int, timeout: float, fetch_local: bool = True
    ) -> tuple[list[Any], list[Any]]:
        near = [reference for reference in references if not (fetch_local and reference in self.far)]
        found, _ = super().wait(near, num_returns, timeout)
        if not found:
            self.now += timeout
        return found, []

    def kill(self, actor: Any) -> None:
        self.calls.append("kill")

    def finish(self, *numbers: int) -> None:
        for number in numbers:
            self.answers[f"compute {number}"] = (int(Kind.DONE), np.ones(100), 0.5)


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> Stage:
    here = Stage()
    cluster = SimpleNamespace(ray=here, store=float("inf"), environment=None, close=lambda: None)
    cluster.describe = lambda: "1 nodes with nothing free"
    monkeypatch.setattr(crew_module, "Cluster", lambda engine, vectors: cluster)
    for module in (crew_module, desk_module):
        monkeypatch.setattr(module, "time", here)
    return here


def started(workers: int, **options: Any) -> RayPool:
    task = Bowl()
    pool = asgd.engines.ray(workers, **options).start(task, Gradient(), task.initial())
    assert isinstance(pool, RayPool)
    return pool


def give(pool: RayPool, job: int, worker: int) -> None:
    pool.execute(Assign(Job(job, worker, 0, 0, 0, seed=job), np.ones(100), 0))


def arrived(reports: list[Any]) -> list[int]:
    return [report.job for report in reports if isinstance(report, Arrived)]


def lost(reports: list[Any]) -> list[Any]:
    return [report for report in reports if isinstance(report, Died | Left)]


def test_whoever_has_answered_while_nobody_listened_is_not_late(stage: Stage) -> None:
    """An evaluation in the loop takes longer than a job may; more have answered meanwhile than one poll reads."""
    workers = desk_module.AT_ONCE + 4
    with started(workers, job_timeout=2.0) as pool:
        pool.poll(0.1)
        for worker in range(workers):
            give(pool, worker, worker)
        stage.finish(*range(workers))
        stage.far = {"compute 3"}  # it has not been fetched yet
        stage.now += 100.0
        found: list[Any] = pool.poll(0.1) + pool.poll(0.1)
        stage.far = set()
        found += pool.poll(0.1)
        assert not lost(found)
        assert sorted(arrived(found)) == list(range(workers))


def test_whoever_has_not_is_replaced(stage: Stage) -> None:
    with started(2, job_timeout=2.0) as pool:
        pool.poll(0.1)
        give(pool, 0, 0)
        give(pool, 1, 1)
        stage.finish(1)
        stage.now += 100.0
        found = pool.poll(0.1)
        assert arrived(found) == [1]
        assert lost(found) == [Died(0, "was killed, because its job 0 took more than 2 s"), Left(0)]
        assert Joined(0) in pool.poll(0.1)


def test_a_job_begins_when_it_is_sent_also_behind_a_question(stage: Stage) -> None:
    """A worker without a job is asked whether it is alive, and gets a job before it answers."""
    with started(1, job_timeout=2.0) as pool:
        pool.poll(0.1)
        stage.now += 100.0
        pool.poll(0.1)
        assert stage.calls[-1] == "ping"
        give(pool, 0, 0)
        stage.now += 1.0
        assert pool.poll(0.1) == []


def test_a_failed_start_says_why_and_after_how_long(stage: Stage) -> None:
    stage.hello = Gone("The actor died because of an error in its runtime environment.")
    with pytest.raises(EngineError) as error:
        started(2, start_timeout=500.0)
    assert stage.now < 1500.0
    assert str(error.value) == (
        "no worker is left; the last one, worker 1, is gone: an error in its runtime environment"
    )


def test_a_start_without_some_says_why_they_are_not_there(stage: Stage) -> None:
    places = stage._place

    def place() -> Any:
        stage.hello = "a node" if stage.calls.count("hello") == 0 else Gone("The actor died because its node has died.")
        return places()

    stage._place = place  # type: ignore[method-assign]
    with pytest.raises(EngineError) as error:
        started(2, start_timeout=500.0)
    seconds = stage.now - 1000.0
    assert seconds < 500.0
    assert str(error.value).startswith(
        f"1 of the 2 workers that the run needs were ready after {seconds:.0f} s: worker 1 died too often. Worker 1 is "
        "gone: its node has died. The cluster has 1 nodes with nothing free. Ask for less"
    )


def test_whoever_dies_during_a_long_evaluation_was_there_until_then(stage: Stage) -> None:
    """The server was busy for longer than the run may be without a worker; the replacements need a moment."""
    with started(2) as pool:
        pool.poll(0.1)
        for worker in (0, 1):
            give(pool, worker, worker)
        pool.poll(0.1)
        stage.now += pool._engine.start_timeout + 10.0
        for worker in (0, 1):
            stage.answers[f"compute {worker}"] = Gone("The actor died because its node has died.")
        stage.far = {"hello 2", "hello 3"}
        assert len(lost(pool.poll(0.1))) == 4
        stage.far = set()
        joined = [report for report in pool.poll(0.1) + pool.poll(0.1) if isinstance(report, Joined)]
        assert sorted(worker for report in joined for worker in report.workers) == [0, 1]


def test_what_cannot_be_closed_keeps_nothing_else_open(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(actor: Any) -> None:
        raise Gone("not connected")

    pool = started(2)
    closed: list[str] = []
    assert pool._cluster is not None
    monkeypatch.setattr(pool._cluster, "close", lambda: closed.append("cluster"))
    stage.kill = refuse  # type: ignore[method-assign]
    with pytest.raises(Gone, match="not connected"):
        pool.close()
    assert closed == ["cluster"]
    assert pool._store.points.descriptor == -1
