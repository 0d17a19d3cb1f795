"""Formulas against plain arithmetic, best steps against a fine grid, and bounds against measured runs."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.theory import Bound, theorem1, theorem1_bounded, theorem2, theorem3, theorem3_bounded

L, R0, S2, G, C, TMAX = 3.0, 0.7, 0.4, 1.3, 8, 50
ZETA, OWN = np.array([0.1, 0.5, 0.9]), np.array([2.0, 7.0, 30.0])
KNOWN = {"smoothness": L, "gap": R0, "noise_variance": S2}
T, ETA = 1000, 1e-3


@pytest.mark.parametrize(
    ("bound", "value", "largest"),
    [
        (theorem1((C, TMAX), **KNOWN), 2 * R0 / (ETA * (T + 1)) + 4 * L * ETA * S2, 1 / (2 * L * math.sqrt(C * TMAX))),
        (
            theorem1_bounded(C, **KNOWN, gradient_bound=G),
            4 * R0 / (ETA * (T + C)) + 4 * L * ETA * S2 + 2 * L**2 * C**2 * ETA**2 * G**2,
            1 / (2 * L * C),
        ),
        (
            theorem2(C, **KNOWN, weights=[1.0, 0.5], delays=[C, 2 * C]),
            (2 * R0 + 4 * L * S2 * ETA**2 * (1 + 0.25) * T / 2) / (ETA * 1.5 * T / 2),
            1 / (4 * L * C),
        ),
        (
            theorem3((C, TMAX), **KNOWN, heterogeneity=ZETA, worker_delays=OWN),
            8 * R0 / (ETA * (T + 1))
            + 6 * L * ETA * S2
            + 8 * L * ETA * 0.5
            + 8 * L**2 * ETA**2 * C * (0.1 * 3 + 0.5 * 8 + 0.9 * 31) / 3,
            1 / (4 * L * math.sqrt(C * TMAX)),
        ),
        (
            theorem3_bounded(C, **KNOWN, heterogeneity=ZETA, gradient_bound=G),
            4 * R0 / (ETA * (T + 1)) + 3 * L * ETA * S2 + 4 * L * ETA * 0.5 + 2 * L**2 * ETA**2 * C**2 * G**2,
            1 / (4 * L * C),
        ),
    ],
    ids=lambda value: value.theorem if isinstance(value, Bound) else "",
)
def test_the_formulas(bound, value, largest):
    assert bound.at(T, ETA) == pytest.approx(value, rel=1e-12)
    assert bound.max_step == pytest.approx(largest, rel=1e-12)
    with pytest.raises(BadParameter, match="too large for Theorem"):
        bound.at(T, 1.01 * largest)


numbers = st.floats(1e-3, 1e3)


@given(numbers, st.just(0.0) | numbers, st.just(0.0) | numbers, st.floats(1e-3, 10), st.integers(1, 10**6))
def test_the_best_step_is_best(start, linear, square, largest, iterations):
    bound = Bound("any", start, linear, square, largest)
    best = bound.at(iterations, bound.best_step(iterations))
    for step in largest * np.geomspace(1e-6, 1, 400):
        assert best <= bound.at(iterations, step) * (1 + 1e-9)


@given(numbers, st.just(0.0) | numbers, st.just(0.0) | numbers, st.floats(0.01, 10))
def test_the_iterations_are_the_fewest(start, linear, square, epsilon):
    bound = Bound("any", start, linear, square, max_step=0.5)
    reached, step = bound.iterations(epsilon)
    assert bound.at(reached, step) <= epsilon
    if reached > 1:
        assert bound.at(reached - 1, bound.best_step(reached - 1)) > epsilon


def test_measured_runs_stay_below_theorem_1():
    task = asgd.tasks.quadratic(dim=10, workers=3, noise=0.5)
    speeds = asgd.durations.fixed([1.0, 1.0, 9.0])
    delays = asgd.simulate(task, asgd.async_sgd(0.01), speeds, iterations=2000).trace.delays
    gap = task.evaluate(task.initial())["loss"]
    bound = theorem1(delays, smoothness=task.smoothness, gap=gap, noise_variance=task.noise_variance)
    for step in (bound.max_step, bound.max_step / 10):
        runs = [
            asgd.simulate(task, asgd.async_sgd(step), speeds, iterations=2000, every=1, seed=seed) for seed in range(5)
        ]
        measured = np.mean([(run.metrics["gradient_norm"] ** 2).mean() for run in runs])
        assert measured <= bound.at(2000, step)


def test_bad_input_is_named():
    with pytest.raises(BadParameter, match="smoothness = 0"):
        theorem1((2, 2), smoothness=0, gap=1, noise_variance=0)
    with pytest.raises(BadParameter, match="worker_delays"):
        theorem3((2, 2), **KNOWN, heterogeneity=[1.0])
    with pytest.raises(BadParameter, match="heterogeneity"):
        theorem3((2, 2), **KNOWN, heterogeneity=[1.0, 2.0], worker_delays=[1.0, 2.0, 3.0])
    for bad in ([1.0, -1.0], [1.0, math.nan]):
        with pytest.raises(BadParameter, match="worker_delays"):
            theorem3((2, 2), **KNOWN, heterogeneity=[1.0, 2.0], worker_delays=bad)
    with pytest.raises(BadParameter, match="weights"):
        theorem2(2, **KNOWN, weights=[0.0])


def test_a_trace_its_delays_and_numbers_say_the_same():
    task = asgd.tasks.quadratic(dim=2, workers=3, heterogeneity=0.5)
    speeds = asgd.durations.fixed([1.0, 1.0, 9.0])
    trace = asgd.simulate(task, asgd.federated_async_sgd(0.01, concurrency=4), speeds, iterations=300).trace
    delays = trace.delays
    numbers = (delays.concurrency, delays.maximum)
    own = [delays.per_worker[i] for i in range(3)]
    assert theorem1(trace, **KNOWN) == theorem1(delays, **KNOWN) == theorem1(numbers, **KNOWN)
    spread = {"heterogeneity": task.heterogeneity}
    by_numbers = theorem3(numbers, **KNOWN, **spread, worker_delays=own)
    assert theorem3(trace, **KNOWN, **spread) == theorem3(delays, **KNOWN, **spread) == by_numbers
    for seen in (trace, delays, numbers, delays.concurrency, np.int64(4), 4.0):
        assert theorem1_bounded(seen, **KNOWN, gradient_bound=G) == theorem1_bounded(4, **KNOWN, gradient_bound=G)
        assert theorem3_bounded(seen, **KNOWN, **spread, gradient_bound=G) == theorem3_bounded(
            4, **KNOWN, **spread, gradient_bound=G
        )
        assert theorem2(seen, **KNOWN).max_step == theorem2(4, **KNOWN).max_step


def test_no_worker_of_a_run_is_left_out():
    task = asgd.tasks.quadratic(dim=2, workers=3, heterogeneity=0.5)
    speeds = asgd.durations.fixed([1.0, 1.0, 9.0])
    trace = asgd.simulate(task, asgd.federated_async_sgd(0.01, concurrency=4), speeds, iterations=300).trace
    every = theorem3(trace, **KNOWN, heterogeneity=[0.25, 0.25, 0.25])
    assert theorem3(trace, **KNOWN, heterogeneity=0.25) == theorem3(trace, **KNOWN, heterogeneity=[0.25]) == every
    with pytest.raises(BadParameter, match="2 values' do not fit 3 delays"):
        theorem3(trace, **KNOWN, heterogeneity=[0.25, 0.25])


def test_theorem_2_reads_the_weights_of_a_run():
    task = asgd.tasks.quadratic(dim=2, workers=3)
    speeds = asgd.durations.fixed([1.0, 1.0, 20.0])
    trace = asgd.simulate(task, asgd.delay_adaptive(0.01), speeds, iterations=200).trace
    weights = [min(1.0, 3 / max(tau, 1)) for tau in trace.delay.tolist()]
    assert trace.step / 0.01 == pytest.approx(weights)
    assert theorem2(trace, **KNOWN) == theorem2(3, **KNOWN, weights=weights, delays=trace.delay)
    assert theorem2(trace.delays, **KNOWN).share == pytest.approx(np.mean(weights), abs=0.02)
    assert theorem2(3, **KNOWN).share == 0.75 + 0.25 / 3 < theorem2(trace, **KNOWN).share


def test_theorem_2_lowers_its_step_for_weights_above_its_condition_and_says_why():
    """Theorem 2 asks η w_t <= 1/(4L max(τ_C, τ_t)); a threshold of 2τ_C gives whole steps at delays up to 2τ_C."""
    task = asgd.tasks.quadratic(dim=2, workers=4)
    speeds = asgd.durations.fixed([1.0, 1.0, 1.0, 2.4])
    trace = asgd.simulate(task, asgd.delay_adaptive(0.01, rule="drop"), speeds, iterations=200).trace
    weights = trace.step / 0.01
    longest = int(trace.delay[weights > 0].max())
    assert 4 < longest <= 8
    bound = theorem2(trace, **KNOWN, weights=weights)
    assert bound.max_step == pytest.approx(1 / (4 * L * longest))
    assert f"weight 1 at a delay of {longest}, above τ_C/τ = {4 / longest:.3g}" in bound.condition
    with pytest.raises(BadParameter, match=r"too large for Theorem 2 \(the update of iteration \d+ has weight 1 .*\)"):
        bound.at(T, 1 / (4 * L * 4))
    halved = theorem2(4, **KNOWN, weights=[1.0, 1.0, 0.0], delays=[0, 8, 9])
    assert halved.max_step == theorem2(4, **KNOWN).max_step / 2
    small = theorem2(4, **KNOWN, weights=[1.0, 0.1], delays=[0, 8])
    assert (small.max_step, small.condition) == (theorem2(4, **KNOWN).max_step, "")


def test_weights_that_cannot_be_checked_are_refused():
    task = asgd.tasks.quadratic(dim=2, workers=3)
    delays = asgd.simulate(task, asgd.async_sgd(0.01), asgd.durations.fixed([1.0] * 3), iterations=9).trace.delays
    for run in (3, (3, 20), delays):
        with pytest.raises(BadParameter, match="weights = '2 of them' cannot be checked without the delays"):
            theorem2(run, **KNOWN, weights=[1.0, 0.5])
    with pytest.raises(BadParameter, match="do not fit 3 delays"):
        theorem2(3, **KNOWN, weights=[1.0, 0.5], delays=[1, 2, 3])


@pytest.mark.parametrize("weights", [None, [1.0, 0.5]])
@pytest.mark.parametrize(
    ("delays", "said"),
    [
        ([0, float("nan")], r"delays\[1\] = nan is not a delay"),
        ([0, float("inf")], r"delays\[1\] = inf is not a delay"),
        ([0, -3], r"delays\[1\] = -3.0 is not a delay"),
        (3, r"delays = 3 is not a list of numbers"),
        ([[0, 1]], r"delays = \[\[0, 1\]\] is not a list of numbers"),
        (["a", "b"], r"delays = .* is not made of numbers"),
    ],
)
def test_delays_of_theorem2_that_are_not_delays(weights, delays, said):
    with pytest.raises(BadParameter, match=said):
        theorem2(4, **KNOWN, weights=weights, delays=delays)


def test_weights_of_theorem2_are_a_list():
    for weights, delays in ((1.0, [3]), ([[1.0, 0.5]], [1, 2])):
        with pytest.raises(BadParameter, match=r"weights = .* are not weights of steps; pass a list"):
            theorem2(4, **KNOWN, weights=weights, delays=delays)


def test_theorem_2_holds_for_a_threshold_at_its_own_largest_step():
    task = asgd.tasks.quadratic(dim=10, workers=4, noise=0.5)
    speeds = asgd.durations.exponential([1.0, 1.0, 1.0, 3.0])
    gap = task.evaluate(task.initial())["loss"]
    known = {"smoothness": task.smoothness, "gap": gap, "noise_variance": task.noise_variance}
    trace = asgd.simulate(task, asgd.delay_adaptive(0.001, rule="drop"), speeds, iterations=2000).trace
    bound = theorem2(trace, **known, weights=trace.step / 0.001)
    assert bound.max_step < theorem2(trace, **known).max_step
    method = asgd.delay_adaptive(bound.max_step, rule="drop")
    runs = [asgd.simulate(task, method, speeds, iterations=2000, every=1, seed=seed) for seed in range(5)]
    means = [np.average(run.metrics["gradient_norm"][:-1] ** 2, weights=run.trace.step) for run in runs]
    assert np.mean(means) <= bound.at(2000, bound.max_step)
