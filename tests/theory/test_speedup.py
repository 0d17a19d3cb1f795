from fractions import Fraction

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.dispatch import Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.simulation.schedule import schedule
from asyncsgd.theory import speedup


def test_the_papers_example():
    found = speedup([10.0] * 900 + [60.0] * 100, concurrency=10)
    assert found.asynchronous == 15.0
    assert found.minibatch == pytest.approx(60 - 50 * 0.9**10, rel=1e-12)
    assert found.ratio == pytest.approx(2.8377, abs=1e-4)
    assert found.floor == pytest.approx(0.6)


def test_the_lemma_in_exact_arithmetic_ties_included():
    random = np.random.default_rng(1)
    for _ in range(30):
        tau = sorted(float(t) for t in random.integers(1, 6, random.integers(1, 12)))
        n, c = len(tau), int(random.integers(1, 40))
        exact = sum(Fraction(i**c - (i - 1) ** c, n**c) * Fraction(tau[i - 1]) for i in range(1, n + 1))
        assert speedup(tau, c).minibatch == pytest.approx(float(exact), rel=1e-12)


def test_the_lemma_against_drawing_batches():
    random = np.random.default_rng(2)
    tau = random.uniform(1, 9, 50)
    drawn = tau[random.integers(0, 50, (200_000, 7))].max(axis=1)
    assert abs(speedup(tau, 7).minibatch - drawn.mean()) < 5 * drawn.std() / np.sqrt(len(drawn))


def test_a_million_workers_and_ten_thousand_jobs_in_flight():
    tau = np.repeat([1.0, 2.0, 60.0], [600_000, 399_999, 1])
    found = speedup(tau, 10_000)
    assert found.asynchronous == pytest.approx((600_000 + 799_998 + 60) / 1e6)
    share = 1 - (1 - 1e-6) ** 10_000  # that the one slow worker is in a batch
    assert found.minibatch == pytest.approx(2 + 58 * share, rel=1e-6)
    assert found.asynchronous <= found.minibatch
    assert found.queued > found.asynchronous


def test_a_million_distinct_durations_and_ten_thousand_jobs_in_flight():
    """Δ_i = i: Σ α_i i = n - Σ_{i<n} (i/n)^C, and the sum of powers is known (Faulhaber)."""
    n, c = 10**6, 10**4
    tau = np.random.default_rng(0).permutation(np.arange(1.0, n + 1))
    found = speedup(tau, c)
    powers = n / (c + 1) - 0.5 + c / (12 * n) - c * (c - 1) * (c - 2) / (720 * n**3)
    assert found.minibatch == pytest.approx(n - powers, rel=1e-13)
    assert found.asynchronous == (n + 1) / 2
    assert found.floor == c
    assert found.asynchronous < found.queued_fixed < found.queued < found.minibatch


@pytest.mark.parametrize("concurrency", [1, 4, 12])
def test_the_queues_against_a_simulation(concurrency):
    means = [1.0] * 6 + [4.0] * 2
    plan = schedule(Uniform(concurrency), asgd.durations.exponential(means), iterations=400_000)
    rates = 20_000 / np.diff(plan.arrival_time[20_000::20_000])
    predicted = concurrency / speedup(means, concurrency).queued
    assert abs(rates.mean() - predicted) < 5 * rates.std(ddof=1) / np.sqrt(len(rates))


def test_one_job_in_flight_waits_for_nobody():
    found = speedup([1.0, 5.0], 1)
    assert (
        found.asynchronous == found.minibatch == pytest.approx(found.queued) == pytest.approx(found.queued_fixed) == 3.0
    )


def test_bad_input_is_named():
    with pytest.raises(BadParameter, match="concurrency = 0"):
        speedup([1.0], 0)
    with pytest.raises(BadParameter, match="durations"):
        speedup([1.0, float("nan")], 2)
