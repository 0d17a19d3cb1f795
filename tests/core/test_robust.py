"""Rules for buffers with hostile updates, and calibrated FedBuff: known numbers, limits and bad input."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.aggregation import krum, median, trimmed_mean
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.server import Server

RULES = {
    "median": median(7),
    "trimmed_mean": trimmed_mean(7, fraction=0.3),
    "krum": krum(7, byzantine=2),
    "multi-krum": krum(7, byzantine=2, keep=3),
}


def merged(rule: Any, updates: list[list[float]], dtype: Any = np.float64) -> np.ndarray:
    """What a full buffer of these updates makes of them."""
    server = Server(np.zeros(len(updates[0]), dtype), asgd.async_sgd(1.0).using(aggregation=rule))
    server.handle(asgd.Joined(range(len(updates))))
    for job in list(server.in_flight):
        server.handle(asgd.Arrived(job.id, np.array(updates[job.worker], dtype)))
    assert server.version == 1
    return -np.array(server.x)


def test_known_numbers() -> None:
    rows = [[1.0, 10.0], [2.0, -30.0], [3.0, 20.0], [100.0, 0.0], [-50.0, 5.0]]
    assert merged(median(5), rows).tolist() == [2.0, 5.0]
    assert merged(median(4), rows[:4]).tolist() == [2.5, 5.0]
    assert merged(trimmed_mean(5, fraction=0.2), rows).tolist() == [2.0, 5.0]
    assert merged(trimmed_mean(5, fraction=0.4), rows).tolist() == [2.0, 5.0]
    line = [[0.0], [1.0], [1.5], [9.0], [-20.0]]
    assert merged(krum(5, byzantine=1), line).tolist() == [1.0]  # scores 3.25, 1.25, 2.5, ...
    assert merged(krum(5, byzantine=1, keep=2), line).tolist() == [1.25]


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("huge", [1e30, -1e30, 3e38])
def test_a_hostile_minority_does_not_move_the_result(name: str, dtype: Any, huge: float) -> None:
    random = np.random.default_rng(1)
    honest = random.uniform(-1, 1, (7, 3))
    for which in ([0], [6], [2, 5]):
        rows = honest.copy()
        rows[which] = huge
        found = merged(RULES[name], rows.tolist(), dtype)
        left = np.delete(honest, which, axis=0).astype(dtype)
        assert (left.min(axis=0) <= found).all(), found
        assert (found <= left.max(axis=0)).all(), found
        assert np.isfinite(found).all()
    mean = merged(asgd.aggregation.buffer(7), rows.tolist(), dtype)
    assert np.abs(mean).max() > 1e29  # which a plain buffer does not survive


@pytest.mark.parametrize("name", RULES)
def test_long_vectors_are_merged_in_parts(name: str) -> None:
    """The parts of a long vector give the bits of the whole."""
    rows = np.random.default_rng(2).standard_normal((7, 40_001))
    rows[3, :] *= 50
    found = merged(RULES[name], rows.tolist())
    if name == "median":
        assert found.tolist() == np.median(rows, axis=0).tolist()
    elif name == "trimmed_mean":
        assert np.allclose(found, np.sort(rows, axis=0)[2:5].mean(axis=0), rtol=1e-14, atol=1e-15)
    else:
        assert np.linalg.norm(found) < 1.05 * np.linalg.norm(np.delete(rows, 3, axis=0), axis=1).max()


@pytest.mark.parametrize("name", RULES)
def test_the_rules_work_with_the_federated_recipes(name: str) -> None:
    task = asgd.tasks.quadratic(dim=3, workers=8, seed=1)
    for method in (
        asgd.fedavg(0.3, clients=7),
        asgd.fedbuff(0.3, concurrency=8),
        asgd.federated_async_sgd(0.3, concurrency=8, buffer=7),
    ):
        method = method.using(aggregation=RULES[name])
        run = asgd.simulate(task, method, asgd.durations.fixed(range(1, 9)), iterations=700)
        assert run.metrics["gradient_norm"][-1] < 1e-6
        assert run.slow_because == f"aggregation {type(RULES[name]).__name__} has no compiled form"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: median(0), r"size = 0 must be an integer of at least 1"),
        (lambda: trimmed_mean(10, fraction=0.5), r"fraction = 0.5 must lie between 0 and 0.5"),
        (lambda: trimmed_mean(10, fraction=0.01), r"fraction = 0.01 leaves out nothing of 10 updates; pass .* >= 0.1"),
        (lambda: trimmed_mean(2, fraction=0.4), r"leaves out nothing of 2 updates; pass size >= 3"),
        (lambda: krum(4), r"size = 4 is too small for byzantine = 1; pass size >= 5 or byzantine <= 0"),
        (lambda: krum(2), r"size = 2 is too small for byzantine = 1; pass size >= 5$"),
        (lambda: krum(9, byzantine=-1), r"byzantine = -1 is not a number of updates; pass 0 or more"),
        (lambda: krum(9, byzantine=True), r"byzantine = True is not a number of updates"),
        (lambda: krum(7, byzantine=2, keep=4), r"keep = 4 would keep hostile updates too; pass keep <= 3"),
        (lambda: krum(7, keep=0), r"keep = 0 must be an integer of at least 1"),
        (lambda: asgd.fedbuff(1.0, concurrency=2, buffer=0, calibrated=True), r"buffer = 0 must be an integer"),
        (
            lambda: asgd.fedbuff(1.0, concurrency=8).using(aggregation=median(5)).clipped(1.0, noise=1.0),
            "noise = 1.0 cannot be added with Median; use a method that applies sums",
        ),
        (
            lambda: asgd.fedbuff(1.0, concurrency=8).using(aggregation=median(50)).check(workers=4, iterations=9),
            "buffer = 50 can never fill in 9 iterations",
        ),
    ],
)
def test_bad_input_is_refused(make: Any, message: str) -> None:
    with pytest.raises(BadParameter, match=message):
        make()


# ------------------------------------------------------------------------------------------ calibrated FedBuff


def test_a_buffer_with_every_worker_once_is_fedbuff() -> None:
    """K = n, every worker once per buffer: v = (1/n) Σ (Δ_i - h_i) + (1/n) Σ h_i is the mean of the updates."""
    random = np.random.default_rng(0)
    calibrated, plain = (
        Server(np.zeros(3), method)
        for method in (
            asgd.minibatch_sgd(0.5).using(aggregation=asgd.aggregation.calibrated(4)),
            asgd.minibatch_sgd(0.5).using(aggregation=asgd.aggregation.buffer(4)),
        )
    )
    for server in (calibrated, plain):
        server.handle(asgd.Joined(range(4)))
    for _ in range(10):
        updates = random.standard_normal((4, 3))
        for server in (calibrated, plain):
            for job in server.in_flight:
                server.handle(asgd.Arrived(job.id, updates[job.worker]))
        assert np.allclose(calibrated.x, plain.x, rtol=1e-13, atol=1e-14)
    assert calibrated.version == plain.version == 10


def test_calibration_by_hand() -> None:
    server = Server(np.zeros(1), asgd.async_sgd(1.0).using(aggregation=asgd.aggregation.calibrated(2)))
    server.handle(asgd.Joined([0, 1]))

    def arrive(worker: int, update: float) -> float:
        job = next(job for job in server.in_flight if job.worker == worker)
        server.handle(asgd.Arrived(job.id, np.array([update])))
        return float(server.x[0])

    arrive(0, 4.0)
    assert arrive(0, 6.0) == -3.0  # D = 4 + (6 - 4) = 6, h = 0; then h = (6 + 0)/2 = 3
    arrive(1, 2.0)
    assert arrive(0, 6.0) == -7.0  # D = 2 + 0, v = 1 + 3; then h = (6 + 2)/2 = 4
    arrive(1, 2.0)
    assert arrive(1, 2.0) == -11.0  # D = 0: worker 0 is not in the buffer and still counts


def test_calibration_cures_the_bias_of_fedbuff() -> None:
    task = asgd.tasks.quadratic(dim=5, workers=10, heterogeneity=2.0, seed=4)
    durations = asgd.durations.fixed([1, 1, 1, 1, 1, 1, 1, 10, 20, 30])

    def distance(calibrated: bool) -> float:
        with_bias = pytest.warns(asgd.errors.BiasWarning) if not calibrated else _nothing()
        with with_bias:
            method = asgd.fedbuff(0.1, concurrency=10, buffer=5, calibrated=calibrated)
            run = asgd.simulate(task, method, durations, iterations=8000, seed=2)
        return float(np.linalg.norm(run.x - task.optimum))

    assert distance(calibrated=True) < 1e-6
    assert distance(calibrated=False) > 0.1


def _nothing() -> Any:
    from contextlib import nullcontext

    return nullcontext()
