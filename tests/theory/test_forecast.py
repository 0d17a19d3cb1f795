"""Expected delays against the delays of simulated runs."""

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.theory import async_delays, federated_delays


def measured(method, durations, iterations=40_000, seed=0):
    task = asgd.tasks.quadratic(dim=1, workers=durations.workers)
    return asgd.simulate(task, method, durations, iterations=iterations, seed=seed).trace.delays


@pytest.mark.parametrize("tau", [[1.0, 1.0, 10.0], [0.25, 0.75, 0.75], [1.0, 2.7, 3.1, 8.9], [5.0]])
def test_always_busy_workers_fixed(tau):
    expected, found = async_delays(tau), measured(asgd.async_sgd(1e-3), asgd.durations.fixed(tau))
    assert [found.per_worker[i] for i in range(len(tau))] == pytest.approx(expected.per_worker, rel=5e-3, abs=5e-3)
    assert found.average == pytest.approx(expected.average, rel=1e-3)
    assert found.concurrency == expected.concurrency
    # The bound is attained unless phases never meet; with rational durations it is within one per other worker.
    assert expected.maximum - (len(tau) - 1) <= found.maximum <= expected.maximum


def test_the_bound_on_the_maximum_holds_for_random_workers():
    random = np.random.default_rng(0)
    for seed in range(10):
        tau = random.choice([0.125, 0.25, 0.375, 0.875, 1.25, 2.0], random.integers(2, 8))
        found = measured(asgd.async_sgd(1e-3), asgd.durations.fixed(tau), iterations=3000, seed=seed)
        assert found.maximum <= async_delays(tau).maximum


def test_always_busy_workers_at_random():
    means = [1.0, 2.0, 8.0]
    found = measured(asgd.async_sgd(1e-3), asgd.durations.exponential(means), iterations=200_000)
    expected = async_delays(means).per_worker
    assert [found.per_worker[i] for i in range(3)] == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize("concurrency", [1, 2, 6, 20])
@pytest.mark.parametrize(
    ("make", "variability", "allowed"), [(asgd.durations.exponential, 1.0, 0.03), (asgd.durations.fixed, 0.0, 0.2)]
)
def test_sampled_workers(concurrency, make, variability, allowed):
    tau = [1.0] * 24 + [5.0] * 6
    method = asgd.federated_async_sgd(1e-3, concurrency=concurrency)
    found = measured(method, make(tau), iterations=400_000)
    expected = federated_delays(tau, concurrency, variability=variability)
    assert found.average == pytest.approx(expected.average, rel=1e-3)
    assert expected.per_worker.mean() == pytest.approx(expected.average)
    fast, slow = (np.mean([found.per_worker[i] for i in part]) for part in (range(24), range(24, 30)))
    assert fast == pytest.approx(expected.per_worker[0], rel=allowed, abs=1e-12)
    assert slow == pytest.approx(expected.per_worker[-1], rel=allowed, abs=1e-12)
    assert expected.maximum is None
