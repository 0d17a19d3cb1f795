"""Hundreds of kills, hangs, exceptions and rubbish in one run: it ends, and its record is sound to the bit."""

from __future__ import annotations

import os
import random
import secrets
import signal
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run.common import sound

import asyncsgd as asgd
from asyncsgd.core.events import Arrived, Left, Outcome
from asyncsgd.engines._processes.pool import ProcessPool
from asyncsgd.engines.base import Engine, Report
from asyncsgd.testing import AtRandom, Fault, FaultyTask
from asyncsgd.testing.bench import Bowl, WritingBowl
from asyncsgd.testing.engine_contract import Watched, WatchedPool
from asyncsgd.testing.faults import job_seed

pytestmark = pytest.mark.processes

LONGER = int(os.environ.get("ASYNCSGD_CHAOS", "1"))
"""ASYNCSGD_CHAOS=20 makes the runs twenty times as long."""

CHANCES = {
    Fault.KILL: 0.03,
    Fault.HANG: 0.002,
    Fault.RAISE: 0.04,
    Fault.EXIT: 0.01,
    Fault.NAN: 0.03,
    Fault.INFINITE: 0.01,
}


def bears(mark: str, process: int) -> bool:
    """Whether the process descends from this test; its number may have gone to somebody else."""
    try:
        return mark.encode() in Path(f"/proc/{process}/environ").read_bytes()
    except OSError:
        return False


class KillingPool(WatchedPool):
    """Now and then a worker is killed from outside, whatever it does; but only after it has done some work."""

    def prepare(self, folder: Path, mark: str) -> None:
        self._folder, self._mark = folder, mark
        self._random = random.Random(0)
        self._worked: set[int] = set()
        self._arrivals = self.killed = 0

    def poll(self, timeout: float) -> list[Report]:
        reports = super().poll(timeout)
        for report in reports:
            if isinstance(report, Left):
                self._worked.discard(report.worker)
            elif isinstance(report, Arrived) and report.worker is not None:
                self._worked.add(report.worker)
                self._arrivals += 1
                if self._arrivals % 40 == 0:
                    self._kill(self._random.choice(sorted(self._worked)))
        return reports

    def _kill(self, worker: int) -> None:
        for mark in self._folder.glob(f"process-{worker}-*"):
            process = int(mark.name.rpartition("-")[2])
            if bears(self._mark, process):
                os.kill(process, signal.SIGKILL)
                self.killed += 1


@dataclass(frozen=True)
class Killing(Watched):
    mark: str = ""

    def start(self, task: Any, work: Any, x: Any) -> WatchedPool:
        pool = self.inner.start(task, work, x)
        assert isinstance(pool, ProcessPool)
        # A machine that lets a worker wait for seconds makes it miss one time-out after another: no reason to end.
        pool._life.rules = replace(pool._life.rules, deaths_in_a_row=10**9)
        killing = KillingPool(pool, x)
        killing.prepare(Path(task.folder), self.mark)
        pools.append(killing)
        return killing


pools: list[KillingPool] = []


@pytest.mark.slow
@pytest.mark.timeout(300 * LONGER)
@pytest.mark.parametrize(
    ("method", "task", "iterations"),
    [
        (asgd.async_sgd(0.02), WritingBowl(2_000, np.float32), 3000),
        (asgd.federated_async_sgd(0.02, concurrency=12, early=True), Bowl(200), 800),
        (asgd.ringmaster(0.02, limit=3, stops=True), WritingBowl(200), 800),
        (asgd.fedavg(0.05, clients=2, ask=4), Bowl(200, np.float32), 800),
        (asgd.minibatch_sgd(0.02), Bowl(200), 400),
        (
            asgd.federated_async_sgd(0.3, concurrency=12)
            .local(2, 0.02, optimizer=asgd.optimizers.adamw(), state="kept")
            .compressed("int4", down="bfloat16"),
            Bowl(200, np.float32),
            800,
        ),
        (asgd.ringmaster(0.02, limit=3, stops=True).compressed("top_k"), WritingBowl(200), 800),
    ],
    ids=lambda value: getattr(value, "name", None) or (value if isinstance(value, int) else type(value).__name__),
)
def test_chaos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: Any, task: Any, iterations: int) -> None:
    mark = secrets.token_hex(12)
    monkeypatch.setenv("ASYNCSGD_TEST_MARK", mark)
    pools.clear()
    iterations *= LONGER
    faulty = FaultyTask(task, AtRandom(CHANCES), tmp_path)
    inner: Engine = asgd.engines.processes(4, job_timeout=1.0)
    with faulty.armed():
        run = asgd.train(
            faulty,
            method,
            engine=Killing(4, inner, mark),
            iterations=iterations,
            directory=tmp_path / "run",
            checkpoints=asgd.Checkpoints(every=500),
            limits=asgd.Limits(10**9),
            progress=False,
        )
    sound(run, iterations)
    assert run.diverged is None
    assert run.metrics["loss"][-1] < run.metrics["loss"][0]
    # Every fault that a job came to is in the record, and none of these jobs was used.
    [killing] = pools
    faults, outcomes = run.faults, run.trace.jobs.outcome
    steps: Any = range(method.work.steps) if method.work.steps > 1 else (None,)
    for job in range(len(run.trace)):
        planned = [faulty.plan(0, job_seed(0, job, step)) for step in steps]
        assert not any(planned) or not Outcome(outcomes[job]).arrived, (job, planned)
    assert faults.deaths >= 0.01 * iterations
    assert killing.killed >= iterations // 200
    assert faults.exceptions >= 0.02 * iterations
    assert faults.rejected >= 0.02 * iterations
    assert faults.retired == ()
    assert not any(bears(mark, process) for process in faulty.processes)
