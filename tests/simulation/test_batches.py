"""Simulated jobs carry the number of their mini-batch: the same on the compiled schedule and on the core server."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from run.rows import Rows
from simulation.plain_clock import drive

import asyncsgd as asgd
from asyncsgd.core.dispatch import AlwaysBusy
from asyncsgd.trace.columns import batches_before


class OwnRule(AlwaysBusy):
    """The same rule, without a compiled form."""


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("steps", [1, 3])
def test_both_paths_number_the_batches_alike(own: bool, steps: int) -> None:
    task = Rows(20, 3, workers=3 if own else None)
    method = asgd.federated_async_sgd(1.0, concurrency=3) if own else asgd.async_sgd(1.0)
    if steps > 1:
        method = method.local(steps, 1.0)
    times = asgd.durations.fixed([1.0, 2.0, 5.0])
    run = asgd.simulate(task, method, times, iterations=30)
    _, slow, _ = drive(task, method, times, 30, batches="worker" if own else "all")
    for name in ("worker", "steps", "batch"):
        assert getattr(run.trace.jobs, name).tolist() == getattr(slow.jobs, name).tolist()
    counts = np.zeros(task.epoch_rows)
    for job in run.trace.job.tolist():
        for q in range(steps):
            counts[task.of(int(run.trace.jobs.worker[job]), int(run.trace.jobs.batch[job]) + q)] += 1
    assert run.x.tolist() == counts.tolist()
    assert "uses" not in run.slow_because
    assert not run.compiled


def test_a_rule_without_a_schedule_gives_the_same_run() -> None:
    task, times = Rows(20, 3), asgd.durations.fixed([1.0, 2.0, 5.0])
    fast = asgd.simulate(task, asgd.async_sgd(1.0), times, iterations=30)
    slow = asgd.simulate(task, asgd.async_sgd(1.0).using(dispatch=OwnRule()), times, iterations=30)
    assert fast.x.tolist() == slow.x.tolist()
    assert fast.trace.jobs.batch.tolist() == slow.trace.jobs.batch.tolist()


def test_a_recorded_timing_numbers_the_batches_of_the_new_method() -> None:
    task, times = Rows(20, 3), asgd.durations.fixed([1.0, 2.0, 5.0])
    recorded = asgd.simulate(task, asgd.async_sgd(1.0), times, iterations=30).trace
    run = asgd.simulate(task, asgd.async_sgd(1.0).local(2, 1.0), recorded)
    assert run.trace.jobs.batch.tolist() == [2 * job for job in range(len(recorded))]
    assert set(run.trace.jobs.steps.tolist()) == {2}


def test_a_compiled_gradient_does_not_replace_rows_that_follow_a_count() -> None:
    class Compiled(Rows):
        compiled: Any = (None, None)

    run = asgd.simulate(Compiled(20, 3), asgd.async_sgd(1.0), asgd.durations.fixed([1.0, 1.0]), iterations=14)
    assert run.x.tolist() == [2.0] * 20
    assert "needs the number of its mini-batch" in run.slow_because


@pytest.mark.parametrize("workers", [[], [4], [0, 1, 0, 2, 2, 0], [70_000, 3, 70_000], [-1, -1, 2]])
def test_batches_before_counts_jobs_of_the_same_worker(workers: list[int]) -> None:
    slow = [2 * workers[:place].count(worker) for place, worker in enumerate(workers)]
    assert batches_before(np.array(workers, np.int64), 2, "worker").tolist() == slow
    assert batches_before(np.array(workers, np.int64), 2, "all").tolist() == [2 * k for k in range(len(workers))]
