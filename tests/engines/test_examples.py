"""The rows of data that a job used reach the trace, if the task counts them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from engines.fake_ray import fake_server

import asyncsgd as asgd
from asyncsgd.core.events import Arrived, Job
from asyncsgd.core.random import derive
from asyncsgd.core.work import Gradient, LocalSteps
from asyncsgd.engines.base import example_counter
from asyncsgd.engines.job import Kind
from asyncsgd.run.view import RunView
from asyncsgd.testing.bench import Bowl


class Counting(Bowl):
    """Worker 1 does not know how many rows it uses."""

    def examples(self, worker: int, seed: int, batch: int) -> int | None:
        return None if worker == 1 else 10 * worker + 5


def test_a_job_of_several_steps_adds_up_its_mini_batches() -> None:
    asked: list[tuple[int, int, int]] = []

    def examples(worker: int, seed: int, batch: int) -> int:
        asked.append((worker, seed, batch))
        return batch

    task = SimpleNamespace(examples=examples)
    job = Job(4, 2, 0, 0, 0, seed=99, steps=3, batch=7)
    count = example_counter(task, LocalSteps(3, 0.1))
    assert count is not None
    assert count(job) == 7 + 8 + 9
    assert asked == [(2, derive(99, step), 7 + step) for step in range(3)]  # the seeds of its gradients
    asked.clear()
    count = example_counter(task, Gradient())
    assert count is not None
    assert count(Job(4, 2, 0, 0, 0, seed=99, batch=7)) == 7
    assert asked == [(2, 99, 7)]


@pytest.mark.parametrize("task", [Bowl(), SimpleNamespace(examples=100)])
def test_most_tasks_do_not_count(task: Any) -> None:
    assert example_counter(task, Gradient()) is None


@pytest.mark.processes
@pytest.mark.slow
def test_the_trace_of_a_run(tmp_path: Path) -> None:
    engine = asgd.engines.processes(3)
    options: dict[str, Any] = {"engine": engine, "iterations": 40, "directory": tmp_path / "run", "progress": False}
    run = asgd.train(Counting(), asgd.async_sgd(0.01), **options)
    jobs = run.trace.jobs
    arrived = jobs.outcome == asgd.Outcome.APPLIED
    assert set(zip(jobs.worker[arrived], jobs.examples[arrived], strict=True)) <= {(0, 5), (1, -1), (2, 25)}
    assert (jobs.examples[arrived] > 0).any()
    assert asgd.replay(tmp_path / "run").model_compared


class AllCounting(Bowl):
    def examples(self, worker: int, seed: int, batch: int) -> int:
        return 5


@pytest.mark.processes
@pytest.mark.parametrize("task", [AllCounting(), Counting()])
@pytest.mark.slow
def test_examples_per_second_are_shown_if_every_job_counted_them(task: Any) -> None:
    method, engine = asgd.minibatch_sgd(0.01).local(3, 0.1), asgd.engines.processes(3)  # every worker takes part
    run = asgd.train(task, method, engine=engine, iterations=30, progress=False)
    view = RunView.of(run)
    found = view.headline()["examples_per_second"]
    if isinstance(task, AllCounting):
        assert found == pytest.approx(30 * 15 / view.elapsed)
        assert " examples/s)" in view.text()
    else:
        assert found is None
        assert "examples" not in view.text()


def test_a_call_of_ray_carries_the_count() -> None:
    server = fake_server(workers=3)
    server.queue._count = example_counter(Counting(), Gradient())
    for worker in range(3):
        server.give(worker, slot=0)
    server.give(2, slot=0)
    for call in range(3):
        server.finish(call)
    server.finish(3, Kind.FAILED, "Traceback")
    found = {report.worker: report.examples for report in server.reports() if isinstance(report, Arrived)}
    assert found == {0: 5, 1: None, 2: 25}
