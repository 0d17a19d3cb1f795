"""Gradients against finite differences and NumPy, noise and mini-batches against what they should average to."""

import numpy as np
import pytest
from tasks.zoo import ZOO

from asyncsgd.tasks import check_task

RNG = np.random.default_rng(2)


def mean_gradient(task, x, worker, draws):
    return np.array([task.update(x, worker, seed) for seed in range(1000, 1000 + draws)])


def f_i(task, x, worker):
    """The worker's own function, written once more in NumPy."""
    kind, bounds = task.lowered[0], task.lowered[5]
    if kind == 0:
        return 0.5 * x @ task.hessian @ x - task.offsets[worker] @ x
    part = slice(bounds[2 * worker], bounds[2 * worker + 1])
    ridge = 0.5 * task.rows.ridge * x @ x
    rows = task.features[part]
    if kind == 1:
        return 0.5 * np.mean((rows @ x - task.targets[part]) ** 2) + ridge
    if kind == 2:
        return np.mean(np.logaddexp(0, -task.signs[part] * (rows @ x))) + ridge
    scores = rows @ x.reshape(-1, task.classes)
    chosen = scores[np.arange(len(scores)), task.labels[part]]
    return np.mean(np.logaddexp.reduce(scores, axis=1) - chosen) + ridge


def slopes(function, x, h=1e-5):
    return np.array([(function(x + h * e) - function(x - h * e)) / (2 * h) for e in np.eye(len(x))])


@pytest.mark.parametrize("name", ZOO)
def test_updates_average_to_the_gradient_of_the_workers_function(name):
    task = ZOO[name]
    x = RNG.standard_normal(task.dimension)
    stochastic = bool(task.noise_variance)
    for worker in range(task.workers):
        samples = mean_gradient(task, x, worker, 1500 if stochastic else 2)
        expected = slopes(lambda y, worker=worker: f_i(task, y, worker), x)
        error = samples.std(axis=0) / np.sqrt(len(samples))
        assert (np.abs(samples.mean(axis=0) - expected) <= 5 * error + 1e-7 * max(1, np.abs(expected).max())).all()
        if not stochastic:
            assert (samples[0] == samples[1]).all()


@pytest.mark.parametrize("name", ZOO)
def test_loss_and_full_gradient_are_means_over_workers(name):
    task = ZOO[name]
    x = RNG.standard_normal(task.dimension)
    mean = lambda y: np.mean([f_i(task, y, worker) for worker in range(task.workers)])  # noqa: E731
    values = task.evaluate(x)
    low = 0.0 if task.minimum is None else task.minimum
    if name == "paper's quadratic":
        low = mean(task.optimum)
    assert values["loss"] == pytest.approx(mean(x) - low, rel=1e-10, abs=1e-12)
    assert values["gradient_norm"] == pytest.approx(np.linalg.norm(slopes(mean, x)), rel=1e-6)
    assert ("distance" in values) == (task.optimum is not None)
    if task.optimum is not None:
        assert values["distance"] == pytest.approx(np.linalg.norm(x - task.optimum), rel=1e-13)


@pytest.mark.parametrize("name", ZOO)
def test_every_task_passes_the_public_check(name):
    check_task(ZOO[name], slope=True)


def test_far_away_the_losses_stay_finite():
    for name in ("logistic", "logistic, batch", "softmax", "softmax, batch"):
        task = ZOO[name]
        x = 1e5 * RNG.standard_normal(task.dimension)
        assert np.isfinite(task.evaluate(x)["loss"])
        assert np.isfinite(task.update(x, 0, 1)).all()


def test_a_mini_batch_is_the_mean_of_rows_of_that_worker():
    task = ZOO["logistic, batch"]
    x, counts = RNG.standard_normal(5), {}
    for worker in range(3):
        lo, hi = task.lowered[5][2 * worker : 2 * worker + 2]
        rows = task.lowered[2][lo:hi]
        each = (1 / (1 + np.exp(-rows @ x)))[:, None] * rows
        for seed in range(50):
            # Non-negative integer combination of rows that sums to the batch: recovered by brute force in float.
            weights = np.linalg.lstsq(each.T, task.update(x, worker, seed), rcond=None)[0]
            assert np.allclose(each.T @ weights, task.update(x, worker, seed))
            counts[worker] = counts.get(worker, 0) + 1
    assert counts == {0: 50, 1: 50, 2: 50}


@pytest.mark.slow
def test_plain_sgd_reads_digits():
    from asyncsgd import tasks

    task = tasks.digits(workers=4, split="dirichlet", batch=32)
    x = task.initial()
    for t in range(1500):
        x -= 0.3 * task.update(x, t % 4, t)
    values = task.evaluate(x)
    assert values["accuracy"] > 0.9
    assert 0 < values["loss"] < 0.1
