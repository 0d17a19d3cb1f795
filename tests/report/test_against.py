"""Measured beside theory: the numbers are the functions', and where these do not speak nothing is said."""

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd import theory
from asyncsgd.pages import page_data, theory_comparison
from asyncsgd.pages.sources import gather

SPEEDS = np.array([1.0, 1.0, 2.0, 9.0])


def look(method, task=None, durations=None, iterations=2000, given=True):
    task = task or asgd.tasks.quadratic(workers=4, noise=0.1)
    run = asgd.simulate(task, method, durations or asgd.durations.fixed(SPEEDS), iterations=iterations)
    (subject,) = gather(run, task if given else None)
    roster = page_data.workers(subject, page_data.spans(subject))
    found = theory_comparison.expected(subject, roster)
    return run, found, {line.quantity: line for line in theory_comparison.lines(subject, roster, found)}


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


MEAN, WEIGHTED = "mean ‖∇f‖²", "mean ‖∇f‖², weighted by the steps"


@pytest.mark.parametrize(
    ("method", "theorem", "mean"),
    [
        (asgd.async_sgd(0.004), "Theorem 1", MEAN),
        (asgd.delay_adaptive(0.02), "Theorem 2", WEIGHTED),
        (asgd.federated_async_sgd(0.002, concurrency=4), "Theorem 3", MEAN),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_the_bound_holds(method, theorem, mean):
    _, _, lines = look(method)
    line = lines[mean]
    assert line.source == f"at most, by {theorem}"
    assert line.measured < line.expected
    assert lines["step"].measured <= lines["step"].expected


@pytest.mark.parametrize("every", [1, 20], ids=["every iterate", "some"])
@pytest.mark.parametrize(
    ("method", "mean"), [(asgd.async_sgd(0.01), MEAN), (asgd.delay_adaptive(0.01), WEIGHTED)], ids=[1, 2]
)
def test_the_mean_is_over_all_iterates_and_in_theorem_2_weighted_by_the_steps(method, mean, every):
    task, speeds = asgd.tasks.quadratic(workers=4), asgd.durations.fixed([1, 1, 1, 60])
    whole = asgd.simulate(task, method, speeds, iterations=1000, every=1)
    run = asgd.simulate(task, method, speeds, iterations=1000, every=every)
    (subject,) = gather(run, task)
    (line,) = [line for line in theory_comparison.lines(subject, [], None) if line.quantity == mean]
    squares = whole.metrics["gradient_norm"][:1000] ** 2
    weights = run.trace.step if mean == WEIGHTED else np.ones(1000)
    assert line.measured == pytest.approx(np.average(squares, weights=weights), rel=0.03)


class Mine:
    """Half the squared distance from 1, and three more: a task of a user."""

    smoothness, noise_variance, heterogeneity = 1.0, 0.0, 0.0

    def __init__(self, minimum):
        self.minimum = minimum

    def initial(self):
        return np.zeros(1)

    def update(self, x, worker, seed):
        return x - 1

    def evaluate(self, x):
        return {"loss": float(3 + 0.5 * (x[0] - 1) ** 2), "gradient_norm": float(abs(x[0] - 1))}


@pytest.mark.parametrize(
    ("minimum", "gap", "says"), [(3.0, 0.5, ""), (None, 3.5, ", taking 0 as the smallest loss")], ids=["known", "not"]
)
def test_the_gap_of_a_users_task_begins_at_its_smallest_loss(minimum, gap, says):
    run, _, lines = look(asgd.async_sgd(0.004), task=Mine(minimum), iterations=100)
    bound = theory.theorem1(run.trace, smoothness=1.0, gap=gap, noise_variance=0.0)
    assert lines[MEAN].expected == pytest.approx(bound.at(100, 0.004))
    assert lines[MEAN].source == f"at most, by Theorem 1{says}"


def test_a_step_that_no_theorem_covers():
    line = look(asgd.async_sgd(0.05))[2]["mean ‖∇f‖²"]
    assert line.expected is None
    assert "Theorem 1 does not cover a step of 0.05" in line.source


@pytest.mark.parametrize("given", [True, False])
def test_bounds_need_the_constants_and_a_method_they_speak_of(given):
    method = asgd.async_sgd(0.004)
    if given:
        method = method.using(optimizer=asgd.optimizers.momentum())
    assert "mean ‖∇f‖²" not in look(method, given=given)[2]


def test_a_threshold_above_the_concurrency_asks_for_a_smaller_step_and_says_so():
    """At 1/(4Lτ_C) η·min(1, τ_C/τ) meets Theorem 2; a threshold of 2τ_C gives late updates the whole step."""
    step = 1 / (4 * 2.0 * 4)
    assert look(asgd.delay_adaptive(step))[2][WEIGHTED].expected is not None
    run, _, lines = look(asgd.delay_adaptive(step, rule="drop"))
    longest = int(run.trace.delay[run.trace.step > 0].max())
    assert 4 < longest <= 8
    assert lines[WEIGHTED].expected is None
    asked = f"it needs at most {1 / (4 * 2.0 * longest):.3g}, as the update of iteration"
    assert asked in lines[WEIGHTED].source
    assert f"has weight 1 at a delay of {longest}, above τ_C/τ" in lines[WEIGHTED].source
    assert "updates with a delay of up to 8 get the whole step" in lines["step"].source
    assert lines["step"].expected == pytest.approx(1 / (4 * 2.0 * 8), rel=0.01)


def test_no_theorem_for_like_data_is_asked_where_the_constants_say_that_they_differ():
    task = Mine(3.0)
    task.heterogeneity = 0.5
    assert MEAN not in look(asgd.async_sgd(0.004), task=task, iterations=100)[2]
