"""Schedules and the theorems: which one covers them, where its condition is checked, and what is advised."""

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.optimizers import Momentum
from asyncsgd.pages import page_data, theory_comparison
from asyncsgd.pages.sources import gather
from asyncsgd.run.diagnosis import Observed, diagnose
from asyncsgd.run.journal import Faults
from asyncsgd.theory import theorem1, theorem1_bounded, theorem2, theorem3, theorem3_bounded
from asyncsgd.theory.coverage import Covered, conditions, covering, safe_step

COSINE = asgd.schedules.cosine(0.1, warmup=50)
SPEEDS = asgd.durations.fixed([1.0, 1.0, 2.0, 9.0])
KNOWN = {"smoothness": 2.0, "gap": 1.0, "noise_variance": 0.5}
WEIGHTED = "mean ‖∇f‖², weighted by the steps"


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        (asgd.async_sgd(COSINE), Covered("Theorem 2")),
        (asgd.minibatch_sgd(COSINE), Covered("Theorem 2")),
        (asgd.federated_async_sgd(COSINE, concurrency=3), Covered("Theorem 2")),
        (asgd.delay_adaptive(COSINE), Covered("Theorem 2")),
        (asgd.async_sgd(COSINE).using(aggregation=Buffer(4)), Covered("Theorem 2", scale=4.0, late=3)),
        (asgd.async_sgd(COSINE).using(optimizer=Momentum(0.75)), Covered("Theorem 2", scale=0.25)),
        (asgd.async_sgd(asgd.schedules.constant(0.1)), Covered("Theorem 1")),  # a constant step in other words
        (asgd.async_sgd(asgd.schedules.constant(0.1, warmup=9)), Covered("Theorem 2")),
    ],
)
def test_with_data_that_are_alike_theorem_2_takes_the_place_of_the_others(method, expected):
    assert covering(method, heterogeneous=False) == expected


@pytest.mark.parametrize(
    ("method", "theorem"),
    [(asgd.minibatch_sgd(COSINE), 1), (asgd.federated_async_sgd(COSINE, concurrency=3), 3)],
)
def test_theorems_1_and_3_say_that_they_need_a_constant_step(method, theorem):
    why = covering(method, heterogeneous=True)
    assert not why
    assert str(why) == f"Theorem {theorem} needs a constant step, and cosine(0.1, warmup=50) changes it"
    changed = covering(method.using(step=asgd.steps.constant(0.1)), heterogeneous=True, changing=True)
    assert str(changed) == f"Theorem {theorem} needs a constant step, and the run changed it"


@pytest.mark.parametrize(
    "bound",
    [
        theorem1((8, 70), **KNOWN),
        theorem1_bounded(8, gradient_bound=1.0, **KNOWN),
        theorem3((8, 70), heterogeneity=0.1, worker_delays=[1.0, 2.0], **KNOWN),
        theorem3_bounded(8, heterogeneity=0.1, gradient_bound=1.0, **KNOWN),
    ],
    ids=lambda bound: bound.theorem,
)
def test_a_bound_of_a_constant_step_refuses_a_schedule(bound):
    with pytest.raises(BadParameter, match=rf"changes the step, and {bound.theorem} needs a constant step; use theor"):
        bound.at(1000, COSINE)


def test_theorem_2_takes_a_schedule_as_weights():
    with pytest.raises(BadParameter, match=r"is not one number; pass the largest step, with weights = trace.step"):
        theorem2(8, **KNOWN).at(1000, COSINE)
    task = asgd.tasks.quadratic(workers=4, noise=0.1)
    trace = asgd.simulate(task, asgd.async_sgd(COSINE), SPEEDS, iterations=500).trace
    largest = trace.step.max()
    found = theorem2(trace, weights=trace.step / largest, **KNOWN)
    reach = (trace.step / largest * np.maximum(trace.delays.concurrency, trace.delay)).max()
    assert found.max_step == pytest.approx(1 / (4 * 2.0 * reach))
    eta = found.max_step / largest * trace.step  # the same schedule at the largest peak that the theorem allows
    assert (eta <= 1 / (4 * 2.0 * np.maximum(trace.delays.concurrency, trace.delay)) * (1 + 1e-9)).all()
    expected = (2 * 1.0 + 4 * 2.0 * 0.5 * (eta**2).sum()) / eta.sum()
    assert found.at(500, found.max_step) == pytest.approx(expected)


def look(method, iterations=2000, **options):
    task = asgd.tasks.quadratic(workers=4, noise=0.1, **options)
    run = asgd.simulate(task, method, SPEEDS, iterations=iterations)
    (subject,) = gather(run, task)
    roster = page_data.workers(subject, page_data.spans(subject))
    found = theory_comparison.expected(subject, roster)
    return run, {line.quantity: line for line in theory_comparison.lines(subject, roster, found)}


@pytest.mark.parametrize(
    "schedule",
    [
        asgd.schedules.cosine(0.005, warmup=50),
        asgd.schedules.inverse_sqrt(0.005, warmup=50),
        asgd.schedules.custom(lambda t: 2.0 * 0.999**t, peak=0.0025),
    ],
    ids=lambda schedule: schedule.name,
)
@pytest.mark.parametrize("recipe", [asgd.async_sgd, asgd.delay_adaptive])
def test_the_bound_of_the_page_holds_along_the_steps_that_were_used(recipe, schedule):
    _, lines = look(recipe(schedule))
    line = lines[WEIGHTED]
    assert line.source == "at most, by Theorem 2"
    assert 0 < line.measured < line.expected


def test_the_page_names_the_update_whose_step_is_too_large():
    _, lines = look(asgd.async_sgd(asgd.schedules.cosine(0.05)))
    assert "Theorem 2 does not cover a step of 0.05: it needs at most" in lines[WEIGHTED].source
    assert "the update of iteration" in lines[WEIGHTED].source


def test_with_data_that_differ_the_page_has_no_bound_for_a_schedule():
    constant = look(asgd.federated_async_sgd(0.002, concurrency=4), heterogeneity=0.3)[1]
    assert "Theorem 3" in constant["mean ‖∇f‖²"].source
    scheduled = look(asgd.federated_async_sgd(asgd.schedules.linear(0.002), concurrency=4), heterogeneity=0.3)[1]
    assert not {"mean ‖∇f‖²", WEIGHTED} & set(scheduled)


# ------------------------------------------------------------------------------------------ advice


def test_the_safe_peak_is_that_of_theorem_2():
    task = asgd.tasks.quadratic(workers=4)
    delays = asgd.simulate(task, asgd.async_sgd(COSINE), SPEEDS, iterations=500).trace.delays
    longest, jobs = delays.maximum, delays.concurrency
    assert longest > jobs
    assert safe_step(asgd.async_sgd(COSINE), delays, 2.0) == pytest.approx(1 / (4 * 2.0 * longest))
    assert safe_step(asgd.delay_adaptive(COSINE), delays, 2.0) == pytest.approx(1 / (4 * 2.0 * jobs))
    double = asgd.schedules.custom(lambda t: 2.0)
    assert safe_step(asgd.delay_adaptive(double), delays, 2.0) == pytest.approx(1 / (4 * 2.0 * jobs) / 2)
    same = asgd.schedules.constant(0.1)
    assert safe_step(asgd.async_sgd(same), delays, 2.0) == safe_step(asgd.async_sgd(0.1), delays, 2.0)
    first, second = conditions(asgd.async_sgd(COSINE), delays, heterogeneous=False)
    assert first == "the limit is for the peak of cosine(0.1, warmup=50), by Theorem 2"
    assert second.startswith(f"updates with a delay of up to {longest} get the whole step, for which Theorem 2 asks")


def diagnosed(method, iterations=400, durations=(1.0, 1.0, 1.0, 1.0)):
    task = asgd.tasks.quadratic(dim=8, workers=len(durations))
    speeds = asgd.durations.fixed(durations)
    run = asgd.simulate(task, method, speeds, iterations=iterations, every=iterations)
    return diagnose(Observed(run.trace, run.metrics, Faults(), run.method, task, run.x))


def test_the_diagnosis_names_the_schedule_and_advises_a_peak():
    fine = diagnosed(asgd.delay_adaptive(asgd.schedules.cosine(0.02)))
    assert any(fact.startswith("step size: cosine(0.02, total=400) with the peak 0.02 is ") for fact in fine.facts)
    tiny = diagnosed(asgd.delay_adaptive(asgd.schedules.cosine(1e-7)))
    assert any("the step is smaller than necessary: try peak=" in problem for problem in tiny.problems)


def test_a_straggler_shrinks_the_peak_by_theorem_2():
    speeds = (1.0, 1.0, 50.0)
    plain = diagnosed(asgd.async_sgd(0.001), durations=speeds)
    assert any("so a constant step has to be" in problem for problem in plain.problems)
    scheduled = diagnosed(asgd.async_sgd(asgd.schedules.linear(0.001)), durations=speeds)
    assert any("so the peak of the step has to be" in problem for problem in scheduled.problems)


def test_updates_after_the_end_of_a_schedule_are_reported():
    late = diagnosed(asgd.delay_adaptive(asgd.schedules.cosine(0.02, total=300)))
    assert any("ended at iteration 300, so the 100 updates after it had a step of 0" in text for text in late.problems)
    kept = diagnosed(asgd.delay_adaptive(asgd.schedules.cosine(0.02, total=300, final=0.1)))
    assert kept.problems == ()
