"""Prior rates: by plain arithmetic, against measured runs, and beside the paper's."""

import math

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.theory import fedbuff_order, maximum_delay_only, minibatch_bound, rates, theorem1

L, R0, S2, G, C, TMAX = 3.0, 0.7, 0.4, 1.3, 8, 50
KNOWN = {"smoothness": L, "gap": R0, "noise_variance": S2}


def test_the_maximum_delay_alone_is_theorem_1_without_the_concurrency():
    bound = maximum_delay_only((C, TMAX), **KNOWN)
    assert bound.at(999, 1e-3) == pytest.approx(2 * R0 / 1.0 + 4 * L * 1e-3 * S2, rel=1e-12)
    assert bound.max_step == pytest.approx(1 / (2 * L * TMAX), rel=1e-12)
    for given in ((1, 0), (3, 3), (2, 900)):  # never better than Theorem 1, unless no job is ever delayed
        prior, paper = maximum_delay_only(given, **KNOWN), theorem1(given, **KNOWN)
        assert prior.max_step <= paper.max_step
        assert prior.iterations(0.1)[0] >= paper.iterations(0.1)[0]


def test_mini_batches_count_whole():
    bound = minibatch_bound(10, **KNOWN, heterogeneity=[0.1, 0.3])
    assert bound.max_step == pytest.approx(1 / (10 * L), rel=1e-12)
    step, batches = 0.01, 7  # η = γ/n: the textbook bound in γ = 0.1 and K = 7
    textbook = 2 * R0 / (0.1 * batches) + L * 0.1 * (S2 + 0.2) / 10
    for iterations in (70, 75, 79):
        assert bound.at(iterations, step) == pytest.approx(textbook, rel=1e-12)
    assert bound.at(9, step) == math.inf
    reached, best = bound.iterations(0.05)
    assert reached % 10 == 0
    assert bound.at(reached, best) <= 0.05 < bound.at(reached - 1, bound.best_step(reached - 1))


def test_mini_batch_runs_stay_below_their_bound():
    task = asgd.tasks.quadratic(dim=10, workers=4, noise=1.0, heterogeneity=0.5)
    gap = task.evaluate(task.initial())["loss"]
    bound = minibatch_bound(4, smoothness=task.smoothness, gap=gap, noise_variance=task.noise_variance)
    speeds = asgd.durations.fixed([1.0, 1.0, 2.0, 9.0])
    for step in (bound.max_step, bound.max_step / 20):
        runs = [
            asgd.simulate(task, asgd.minibatch_sgd(step), speeds, iterations=400, every=4, seed=s) for s in range(5)
        ]
        # Row k is x after k batches; the last point began no batch.
        measured = np.mean([(run.metrics["gradient_norm"][:-1] ** 2).mean() for run in runs])
        assert measured <= bound.at(400, step)
        assert measured > bound.at(400, step) / 100  # and the bound is not empty


def test_asynchronous_runs_stay_below_the_rate_by_the_maximum_delay():
    task = asgd.tasks.quadratic(dim=10, workers=3, noise=0.5)
    speeds = asgd.durations.fixed([1.0, 1.0, 9.0])
    gap = task.evaluate(task.initial())["loss"]
    trace = asgd.simulate(task, asgd.async_sgd(0.01), speeds, iterations=500).trace
    bound = maximum_delay_only(trace, smoothness=task.smoothness, gap=gap, noise_variance=task.noise_variance)
    run = asgd.simulate(task, asgd.async_sgd(bound.max_step), speeds, iterations=500, every=1)
    assert (run.metrics["gradient_norm"] ** 2).mean() <= bound.at(500, bound.max_step)


def test_fedbuff_as_quoted():
    given = {"noise_variance": 0.5, "heterogeneity": [1.0, 3.0], "gradient_bound": 3.0}
    order = fedbuff_order((C, TMAX), smoothness=1.0, gap=1.0, **given)
    assert order.iterations(0.1) == pytest.approx(0.5 / 0.01 + 2 / 0.01 + 3 * TMAX * 9 / 0.1, rel=1e-12)


@pytest.mark.parametrize("heterogeneity", [None, [0.2, 0.4]])
def test_units_do_not_matter(heterogeneity):
    """f in other units (f → a f) and x in other units (x → b x) change L, r0, σ², ζ², G² and ε, but no count."""
    a, b = 7.0, 0.3
    square = (a / b) ** 2  # of gradients
    rows = []
    for s in (1.0, square):
        mine = None if heterogeneity is None else np.array(heterogeneity) * s
        rows.append(
            rates(
                (C, TMAX),
                epsilon=0.01 * s,
                smoothness=L * (a / b**2 if s != 1 else 1),
                gap=R0 * (a if s != 1 else 1),
                noise_variance=S2 * s,
                heterogeneity=mine,
                gradient_bound=G * math.sqrt(s),
            )
        )
    for one, other in zip(*rows, strict=True):
        assert one.name == other.name
        assert one.order == pytest.approx(other.order, rel=1e-9)
        assert one.iterations == (None if other.iterations is None else pytest.approx(other.iterations, rel=1e-6))


def test_the_table_for_homogeneous_data():
    table = {rate.name: rate for rate in rates((C, TMAX), epsilon=0.01, **KNOWN, gradient_bound=G)}
    assert list(table) == [
        "the rate by the maximum delay",
        "mini-batch SGD",
        "Theorem 1",
        "Theorem 1 with bounded gradients",
        "Theorem 2",
    ]
    u = L * R0
    noise = S2 * u / 0.01**2
    assert table["the rate by the maximum delay"].order == pytest.approx(noise + TMAX * u / 0.01)
    assert table["mini-batch SGD"].order == pytest.approx(noise + C * u / 0.01)
    assert table["Theorem 1"].order == pytest.approx(noise + math.sqrt(C * TMAX) * u / 0.01)
    assert table["Theorem 2"].order == pytest.approx(noise + C * u / 0.01)
    bounded = noise + C * G * u / 0.01**1.5 + C * u / 0.01
    assert table["Theorem 1 with bounded gradients"].order == pytest.approx(bounded)
    for rate in table.values():
        assert rate.bound.at(rate.iterations, rate.step) <= 0.01
    assert len(rates((C, TMAX), epsilon=0.01, **KNOWN)) == 4


def test_the_table_for_heterogeneous_data():
    zeta, own = np.array([0.2, 0.6]), np.array([3.0, 11.0])
    given = {"heterogeneity": zeta, "worker_delays": own}
    table = {rate.name: rate for rate in rates((C, TMAX), epsilon=0.01, **KNOWN, **given, gradient_bound=G)}
    assert list(table) == ["FedBuff", "mini-batch SGD", "Theorem 3", "Theorem 3 with bounded gradients"]
    assert table["FedBuff"].iterations is table["FedBuff"].step is table["FedBuff"].bound is None
    u = L * R0
    middle = math.sqrt(C * (0.2 * 4 + 0.6 * 12) / 2) * u / 0.01**1.5
    expected = (S2 + 0.4) * u / 0.01**2 + middle + math.sqrt(C * TMAX) * u / 0.01
    assert table["Theorem 3"].order == pytest.approx(expected)
    assert [rate.name for rate in rates((C, TMAX), epsilon=0.01, **KNOWN, heterogeneity=0.3)] == [
        "mini-batch SGD",
        "Theorem 3",
    ]


def test_measured_delays_do_as_well_as_numbers():
    task = asgd.tasks.quadratic(dim=2, workers=3, heterogeneity=0.5)
    speeds = asgd.durations.fixed([1.0, 1.0, 9.0])
    trace = asgd.simulate(task, asgd.federated_async_sgd(0.01, concurrency=4), speeds, iterations=300).trace
    delays = trace.delays
    numbers = (delays.concurrency, delays.maximum)
    own = [delays.per_worker[i] for i in range(3)]
    for more in ({}, {"heterogeneity": task.heterogeneity}):
        from_trace, from_delays = (rates(d, epsilon=0.1, **KNOWN, **more) for d in (trace, delays))
        given = rates(numbers, epsilon=0.1, **KNOWN, **more, **({"worker_delays": own} if more else {}))
        for a, b, c in zip(from_trace, from_delays, given, strict=True):
            assert a.name == b.name == c.name
            assert a.order == b.order == c.order
            if a.name != "Theorem 2":  # which reads every delay, and numbers do not tell them
                assert a.iterations == b.iterations == c.iterations


@pytest.mark.parametrize("call", [maximum_delay_only, theorem1])
@pytest.mark.parametrize("bad", [3, (1, 2, 3), "ab", None, (0, 1), (2, -1)])
def test_bad_delays_are_named(call, bad):
    with pytest.raises(BadParameter, match=r"delays|concurrency|maximum delay"):
        call(bad, **KNOWN)


def test_other_bad_input_is_named():
    with pytest.raises(BadParameter, match="batch = 0"):
        minibatch_bound(0, **KNOWN)
    with pytest.raises(BadParameter, match="heterogeneity"):
        rates((2, 2), epsilon=1.0, **KNOWN, heterogeneity=[1.0, 2.0], worker_delays=[1.0, 2.0, 3.0])
    with pytest.raises(BadParameter, match="heterogeneity"):
        rates((2, 2), epsilon=1.0, **KNOWN, heterogeneity=-1.0)
    with pytest.raises(BadParameter, match="gradient_bound"):
        rates((2, 2), epsilon=1.0, **KNOWN, gradient_bound=-1.0)
    with pytest.raises(BadParameter, match="epsilon = 0"):
        rates((2, 2), epsilon=0, **KNOWN)
