"""Worker state and compression in simulations: the numbers of a naive loop, and of a replay of the arrivals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from run.rows import Rows
from simulation.plain_clock import drive

import asyncsgd as asgd
from asyncsgd.core.compression import Int8
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive, output
from asyncsgd.core.server import JOB
from asyncsgd.trace import Trace
from asyncsgd.trace.replay import replay_core

TASK = asgd.tasks.quadratic(dim=5, workers=3, noise=0.2)
SPEEDS = asgd.durations.fixed([1.0, 2.0, 5.0])
HEAVY = asgd.optimizers.momentum(0.9)
METHODS = {
    "kept": asgd.async_sgd(0.7).local(3, 0.05, optimizer=HEAVY, state="kept"),
    "fresh": asgd.async_sgd(0.7).local(3, 0.05, optimizer=HEAVY),
    "int8": asgd.async_sgd(0.05).compressed("int8"),
    "both": asgd.async_sgd(0.7).local(3, 0.05, optimizer=HEAVY, state="kept").compressed("int8", down="bfloat16"),
    "dropped": asgd.delay_adaptive(0.05, rule="drop", threshold=2).compressed("int8"),
}


def naive(method: asgd.Method, trace: Trace, seed: int) -> Any:
    """Follow the arrivals with dictionaries and loops."""
    x = TASK.initial()
    models = {0: x.copy()}
    momentum: dict[int, Any] = {}
    left: dict[int, Any] = {}
    code = Int8()
    for t in range(trace.iterations):
        job, worker = int(trace.job[t]), int(trace.worker[t])
        point = models[int(trace.assigned_iteration[t])]
        if method.down is not None:
            start = np.empty_like(point)
            method.down.decode(method.down.encode(point), start)
            point = start
        own = output(derive(seed, JOB), job)
        m = momentum.get(worker, np.zeros_like(x)).copy()
        if method.work.steps == 1:
            update = TASK.update(point, worker, own)
        else:
            if method.work.state == "fresh":  # type: ignore[attr-defined]
                m = np.zeros_like(x)
            y = point.copy()
            for q in range(method.work.steps):
                m = 0.9 * m + TASK.update(y, worker, derive(own, q))
                y = y - 0.05 * m
            update = point - y
        rest = None
        if method.up is not None:
            total = update + left.get(worker, np.zeros_like(x))
            update = np.empty_like(total)
            code.decode(code.encode(total), update)
            rest = total - update
        if trace.step[t]:
            momentum[worker] = m
            if rest is not None:
                left[worker] = rest
            x = x - float(trace.step[t]) * update
        models[t + 1] = x
    return x


@pytest.mark.parametrize("name", METHODS)
def test_the_numbers_of_a_naive_loop_and_of_a_replay(name: str) -> None:
    method = METHODS[name]
    run = asgd.simulate(TASK, method, SPEEDS, iterations=60, seed=3)
    assert not run.compiled
    np.testing.assert_allclose(run.x, naive(method, run.trace, 3), rtol=1e-10)
    bound = run.method
    again = replay_core(run.trace.arrivals(), TASK, bound, seed=3)  # as a replay of a real run computes it
    assert again.update.output.tobytes() == run.x.tobytes()
    server, trace, _ = drive(TASK, bound, SPEEDS, 60, 3, metadata={"method": method.name, "seed": "3"})
    assert server.output.tobytes() == run.x.tobytes()
    assert trace == run.trace
    assert asgd.simulate(TASK, method, run.trace, seed=3).x.tobytes() == run.x.tobytes()
    if name == "dropped":
        assert (run.trace.step == 0).any()


def test_sweeps_of_such_methods_run_one_by_one() -> None:
    found = asgd.sweep(TASK, METHODS["both"], SPEEDS, stepsizes=[0.01, 0.1, 0.9], iterations=50, metric="loss")
    alone = asgd.simulate(TASK, METHODS["both"].using(step=asgd.steps.constant(0.1)), SPEEDS, iterations=50)
    assert found.final[1, 0] == alone.metrics["loss"][-1]


# ------------------------------------------------------------------------------------------- steps per worker


def test_steps_by_speed_settle_at_the_speeds_of_the_workers() -> None:
    method = asgd.async_sgd(0.1).local(20, 0.01, per_worker="speed")
    run = asgd.simulate(TASK, method, SPEEDS, iterations=60)
    assert "steps by speed" in run.slow_because
    jobs = run.trace.jobs
    last = {worker: int(jobs.steps[jobs.worker == worker][-1]) for worker in range(3)}
    assert last == {0: 20, 1: 10, 2: 4}
    arrived = run.trace.job
    expected = jobs.steps[arrived] * np.array([1.0, 2.0, 5.0])[jobs.worker[arrived]]
    assert jobs.seconds[arrived].tolist() == expected.tolist()


def test_given_steps_per_worker_have_a_compiled_schedule() -> None:
    method = asgd.async_sgd(0.1).local(5, 0.01, per_worker=[5, 2, 1])
    run = asgd.simulate(TASK, method, SPEEDS, iterations=40, seed=1)
    assert "more than plain SGD" in run.slow_because  # the numbers, not the schedule
    server, trace, _ = drive(TASK, method, SPEEDS, 40, 1, metadata={"method": method.name, "seed": "1"})
    assert run.trace == trace
    assert run.x.tobytes() == server.output.tobytes()
    assert set(zip(run.trace.jobs.worker.tolist(), run.trace.jobs.steps.tolist(), strict=True)) == {
        (0, 5),
        (1, 2),
        (2, 1),
    }


# ------------------------------------------------------------------------------------------- along a trace


def test_jobs_of_a_trace_keep_their_steps_under_a_method_with_the_same_number() -> None:
    by_speed = asgd.async_sgd(0.1).local(20, 0.01, per_worker="speed")
    recorded = asgd.simulate(TASK, by_speed, SPEEDS, iterations=60)
    again = asgd.simulate(TASK, by_speed, recorded.trace)
    assert again.x.tobytes() == recorded.x.tobytes()
    same = asgd.simulate(TASK, asgd.async_sgd(0.1).local(20, 0.01), recorded.trace)
    assert same.x.tobytes() == recorded.x.tobytes()
    assert "different numbers of steps" in same.slow_because
    fewer = asgd.simulate(TASK, asgd.async_sgd(0.1).local(3, 0.01), recorded.trace)
    assert set(fewer.trace.jobs.steps.tolist()) == {3}
    assert fewer.compiled
    given = asgd.simulate(TASK, asgd.async_sgd(0.1).local(3, 0.01, per_worker=[3, 2, 1]), recorded.trace)
    assert {(0, 3), (1, 2), (2, 1)} == set(
        zip(given.trace.jobs.worker.tolist(), given.trace.jobs.steps.tolist(), strict=True)
    )


def test_steps_by_speed_cannot_be_decided_along_another_trace() -> None:
    recorded = asgd.simulate(TASK, asgd.async_sgd(0.1), SPEEDS, iterations=20).trace
    method = asgd.async_sgd(0.1).local(20, 0.01, per_worker="speed")
    with pytest.raises(BadParameter, match="cannot be decided along a trace whose jobs have up to 1 steps"):
        asgd.simulate(TASK, method, recorded)


def test_the_batches_of_jobs_that_keep_their_steps_are_counted_anew() -> None:
    task = Rows(20, 3)
    method = asgd.async_sgd(1.0).local(4, 1.0, per_worker=[4, 2, 1])
    recorded = asgd.simulate(task, method, SPEEDS, iterations=30)
    again = asgd.simulate(task, asgd.async_sgd(1.0).local(4, 1.0), recorded.trace)
    assert again.trace.jobs.batch.tolist() == recorded.trace.jobs.batch.tolist()
    assert again.x.tolist() == recorded.x.tolist()


def test_durations_of_a_trace_are_seconds_per_step() -> None:
    method = asgd.async_sgd(0.1).local(4, 0.01, per_worker=[4, 2, 1])
    run = asgd.simulate(TASK, method, SPEEDS, iterations=60)
    assert asgd.durations.from_trace(run.trace).means.tolist() == [1.0, 2.0, 5.0]
