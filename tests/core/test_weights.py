"""Weights by examples: FedAvg's numbers, the limits that the weights imply, and claims that are too large."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from core.federated_bugs import BUGS
from core.test_twins import long_script, play

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.parts import describe, made
from asyncsgd.core.server import Server
from asyncsgd.core.weights import Reports

COUNTS = [900, 100, 300, 50]
DURATIONS = asgd.durations.fixed([1, 2, 5, 10])
TASK = asgd.tasks.quadratic(dim=4, workers=4, heterogeneity=2.0, seed=3)
WEIGHTED = TASK.with_examples(COUNTS)
FALLING = asgd.schedules.inverse_sqrt(0.05, warmup=100)


def rounds(method: asgd.Method, answers: list[tuple[float, int | None]]) -> float:
    """The model after one round in which client i answers (update, examples)."""
    server = Server(np.zeros(1), method)
    for assign in server.handle(asgd.Joined(range(len(answers)))).commands:
        value, examples = answers[assign.job.worker]
        server.handle(asgd.Arrived(assign.job.id, np.array([-value]), examples=examples))
    assert server.version == 1
    return float(server.x[0])


def test_fedavg_gives_the_number_of_flower() -> None:
    method = asgd.fedavg(clients=2)
    assert rounds(method, [(0.0, 900), (1.0, 100)]) == 0.5
    assert rounds(method.weighted(), [(0.0, 900), (1.0, 100)]) == 0.1


def test_a_round_has_no_limit_and_cannot_grow() -> None:
    answers: list[tuple[float, int | None]] = [(0.0, 1), (0.0, 1), (0.0, 1), (1.0, 10**9)]
    assert rounds(asgd.fedavg(clients=4).weighted(), answers) == 10**9 / (10**9 + 3)


def test_a_client_without_a_report_counts_as_the_average_so_far() -> None:
    assert rounds(asgd.fedavg(clients=3).weighted(), [(0.0, 900), (0.0, 300), (1.0, None)]) == 600 / 1800
    assert rounds(asgd.fedavg(clients=2).weighted(), [(0.0, None), (1.0, None)]) == 0.5


def test_a_round_without_any_example_does_not_move_the_model() -> None:
    assert rounds(asgd.fedavg(clients=2).weighted(), [(3.0, 0), (1.0, 0)]) == 0.0
    assert rounds(asgd.fedavg(clients=2).weighted(), [(3.0, 0), (1.0, 5)]) == 1.0


@pytest.mark.parametrize("method", [asgd.async_sgd(0.1), asgd.fedbuff(0.1, concurrency=3, buffer=2), asgd.mifa(0.1)])
@pytest.mark.parametrize("examples", [None, 7])
def test_equal_reports_change_no_bit(method: asgd.Method, examples: int | None) -> None:
    plain, weighted = (Server(np.ones(3), kind, seed=2) for kind in (method, method.weighted()))
    random = np.random.default_rng(0)
    for server in (plain, weighted):
        server.handle(asgd.Joined(range(3)))
    for _ in range(40):
        g = random.standard_normal(3)
        for server in (plain, weighted):
            server.handle(asgd.Arrived(server.in_flight[0].id, g, examples=examples))
    assert plain.version > 10
    assert plain.x.tobytes() == weighted.x.tobytes()


def distance(task: Any, method: asgd.Method, iterations: int = 6000) -> float:
    run = asgd.simulate(task, method, DURATIONS, iterations=iterations, seed=1)
    if method.weights is not None:
        assert run.trace.jobs.examples[run.trace.job].tolist() == [COUNTS[w] for w in run.trace.worker.tolist()]
    return float(np.linalg.norm(run.x - task.optimum))


EXACT = {  # a deterministic task: these have no noise of sampling left, so they end at the optimum
    "fedavg": asgd.fedavg(0.2, clients=4),
    "minibatch_sgd": asgd.minibatch_sgd(0.05),
    "mifa": asgd.mifa(0.05),
    "fedbuff, calibrated": asgd.fedbuff(0.1, concurrency=4, buffer=3, calibrated=True),
}
SAMPLED = {
    "federated_async_sgd": asgd.federated_async_sgd(FALLING, concurrency=4),
    "federated_async_sgd, shuffled": asgd.federated_async_sgd(FALLING, concurrency=4, order="shuffled"),
    "federated_async_sgd, buffer": asgd.federated_async_sgd(FALLING, concurrency=4, buffer=3),
}


@pytest.mark.parametrize("name", EXACT)
def test_methods_end_at_the_weighted_optimum(name: str) -> None:
    assert np.linalg.norm(TASK.optimum - WEIGHTED.optimum) > 0.7
    assert distance(WEIGHTED, EXACT[name].weighted()) < 1e-6
    assert distance(WEIGHTED, EXACT[name]) > 0.7  # without weights: the plain optimum


@pytest.mark.parametrize("name", SAMPLED)
def test_algorithm_2_tends_to_the_weighted_optimum(name: str) -> None:
    assert distance(WEIGHTED, SAMPLED[name].weighted(), 20_000) < 0.1
    assert distance(WEIGHTED, SAMPLED[name], 20_000) > 0.6


def test_the_weighted_optimum_has_a_gradient_of_zero() -> None:
    gradients = [WEIGHTED.update(WEIGHTED.optimum, worker, 0) for worker in range(4)]
    assert np.abs(np.average(gradients, axis=0, weights=COUNTS)).max() < 1e-12
    assert WEIGHTED.evaluate(WEIGHTED.optimum)["gradient_norm"] < 1e-12


@pytest.mark.parametrize("claim", [10**3, 10**9, 2**62])
def test_a_claim_cannot_take_over(claim: int) -> None:
    """One of ten workers claims any number: it weighs as ten others at most, and the others keep their weights."""
    reports = Reports(10.0, {})
    for worker in range(1, 10):
        reports.take(worker, 20)
    assert reports.take(0, claim) == (claim, min(claim, 200) * 10 / (9 * 20 + min(claim, 200)))
    assert reports.take(5, 20)[1] == 20 * 10 / (9 * 20 + min(claim, 200))
    assert Reports(None, dict.fromkeys(range(1, 10), 20)).take(0, claim)[1] > 9.8 * (claim > 10**6)


def test_no_weight_exceeds_twice_the_limit() -> None:
    random = np.random.default_rng(0)
    for limit in (1.0, 3.0, 10.0):
        reports = Reports(limit, {})
        for _ in range(500):
            weight = reports.take(int(random.integers(40)), int(10 ** random.uniform(0, 12)))[1]
            assert 0 < weight <= 2 * limit


def test_what_cannot_be_weighed_says_why() -> None:
    noisy = asgd.fedbuff(0.1, concurrency=3).clipped(1.0, noise=0.5)
    robust = asgd.fedavg(clients=5).using(aggregation=asgd.aggregation.median(5))
    for method, why in (
        (noisy, "noise protects updates that weigh at most 1"),
        (robust, "Median counts every update once"),
        (asgd.decoupled_diloco(quorum=2), "the buffer has weights by examples of its own"),
    ):
        assert method.unweighable == why
        with pytest.raises(BadParameter, match=why):
            method.weighted()
    assert asgd.async_sgd(0.1).unweighable is None
    with pytest.raises(BadParameter, match="noise protects"):
        asgd.fedbuff(0.1, concurrency=3).weighted().clipped(1.0, noise=0.5)


@pytest.mark.parametrize("limit", [0, 0.5, -1, float("nan"), float("inf"), "much", True])
def test_a_limit_that_is_none(limit: Any) -> None:
    with pytest.raises(BadParameter, match="is not a multiple of the median report"):
        asgd.async_sgd(0.1).weighted(limit=limit)


def test_weights_are_written_down_and_read_back() -> None:
    method = asgd.async_sgd(0.1).weighted(limit=3.0)
    assert describe(method)["weights"] == {"kind": "Weights", "limit": 3.0}
    assert made(describe(method)) == method
    old = {name: part for name, part in describe(asgd.async_sgd(0.1)).items() if name != "weights"}
    assert made(old) == asgd.async_sgd(0.1)


def test_a_state_from_before_weights_is_restored() -> None:
    server = Server(np.zeros(2), asgd.async_sgd(0.1))
    server.handle(asgd.Joined([0]))
    state = server.state()
    del state["update"]["memory"]["weights"]
    restored = Server.restore(state, asgd.async_sgd(0.1))
    restored.handle(asgd.Arrived(0, np.ones(2), examples=3))
    assert restored.iteration == 1
    with pytest.raises(BadParameter, match="restore with the options it was saved with"):
        Server.restore(state, asgd.async_sgd(0.1).weighted())


@pytest.mark.parametrize("name", BUGS)
def test_a_planted_bug_is_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    plant, case = BUGS[name]

    def run() -> None:
        for seed in (3, 8):
            play(case, long_script(seed, 250), start=seed, dim=2, seed=seed, restore_every=83)

    run()
    plant(monkeypatch)
    with pytest.raises(AssertionError, match="server"):
        run()
