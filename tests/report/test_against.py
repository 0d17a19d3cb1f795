"""Measured beside theory: the numbers are the functions', and where these do not speak nothing is said."""

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd import theory
from asyncsgd.report import against, measures
from asyncsgd.report.sources import gather

SPEEDS = np.array([1.0, 1.0, 2.0, 9.0])


def look(method, task=None, durations=None, iterations=2000, given=True):
    task = task or asgd.tasks.quadratic(workers=4, noise=0.1)
    run = asgd.simulate(task, method, durations or asgd.durations.fixed(SPEEDS), iterations=iterations)
    (subject,) = gather(run, task if given else None)
    roster = measures.workers(subject, measures.spans(subject))
    found = against.expected(subject, roster)
    return run, found, {line.quantity: line for line in against.lines(subject, roster, found)}


def test_always_busy():
    run, found, lines = look(asgd.async_sgd(0.004))
    assert found.seconds == pytest.approx(1 / (1 / SPEEDS).sum())
    assert lines["seconds per update"].measured == pytest.approx(found.seconds, rel=0.01)
    ratio = lines["times as fast as waiting for all"]
    assert ratio.expected == pytest.approx(9 / 4 / found.seconds)
    assert ratio.measured == pytest.approx(ratio.expected, rel=0.01)
    assert (lines["τ avg"].measured, lines["τ avg"].expected) == (run.trace.delays.average, 3.0)
    assert lines["τ max"].expected == theory.async_delays(SPEEDS).maximum
    assert found.per_worker == pytest.approx(run.trace.delays.per_worker, rel=0.02)


def test_waiting_for_all():
    run, found, lines = look(asgd.minibatch_sgd(0.05))
    assert found.seconds == pytest.approx(9 / 4)
    assert lines["times as fast as waiting for all"].measured == pytest.approx(1.0, rel=0.01)
    assert lines["τ avg"].expected == pytest.approx(run.trace.delays.average, rel=0.01)


def test_queues():
    _, found, lines = look(asgd.federated_async_sgd(0.002, concurrency=6), iterations=20_000)
    assert found.seconds == pytest.approx(theory.queues(SPEEDS, 6).seconds / 6)
    assert lines["seconds per update"].measured == pytest.approx(found.seconds, rel=0.05)


def test_where_jobs_are_cancelled_no_formula_speaks():
    _, found, lines = look(asgd.ringmaster(0.05, limit=3, stops=True))
    assert found.seconds is None
    assert "cancelled" in found.source
    assert set(lines) <= {"step", "mean ‖∇f‖²"}


@pytest.mark.parametrize(
    ("method", "theorem"),
    [
        (asgd.async_sgd(0.004), "Theorem 1"),
        (asgd.delay_adaptive(0.02), "Theorem 2"),
        (asgd.federated_async_sgd(0.002, concurrency=4), "Theorem 3"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_bound_holds(method, theorem):
    run, _, lines = look(method)
    line = lines["mean ‖∇f‖²"]
    assert theorem in line.source
    assert line.measured == pytest.approx(np.mean(run.metrics["gradient_norm"] ** 2))
    assert line.measured < line.expected
    assert lines["step"].measured <= lines["step"].expected


def test_a_step_that_no_theorem_covers():
    line = look(asgd.async_sgd(0.05))[2]["mean ‖∇f‖²"]
    assert line.expected is None
    assert "Theorem 1 promises nothing for a step of 0.05" in line.source


@pytest.mark.parametrize("given", [True, False])
def test_bounds_need_the_constants_and_a_method_they_speak_of(given):
    method = asgd.async_sgd(0.004)
    if given:
        method = method.using(optimizer=asgd.momentum())
    assert "mean ‖∇f‖²" not in look(method, given=given)[2]
