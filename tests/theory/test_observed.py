"""Constants from gradients seen on the way, against a quadratic whose constants are known."""

import math

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.theory import estimate_from_gradients

TASK = asgd.tasks.quadratic(dim=4, eigenvalues=(1, 6), workers=3, noise=0.8, heterogeneity=(0.5, 0.9, 0.6))


def seen(points, repeats, seed, task=TASK):
    """(points, gradients, workers): every worker computes so many gradients at every point."""
    rows = [(x, worker) for x in points for worker in range(task.workers) for _ in range(repeats)]
    gradients = [task.update(x, worker, 10**6 * seed + k) for k, (x, worker) in enumerate(rows)]
    return np.array([x for x, _ in rows]), np.array(gradients), [worker for _, worker in rows]


def test_intervals_hold_the_truth_as_often_as_they_say():
    random = np.random.default_rng(0)
    times, noise, apart, own, largest = 60, 0, 0, 0, 0
    for seed in range(times):
        points = random.standard_normal((3, 4))
        x, g, workers = seen(points, 5, seed)
        found = estimate_from_gradients(x, g, workers=workers)
        noise += TASK.noise_variance in found.noise_variance
        apart += float(TASK.heterogeneity.mean()) in found.mean_heterogeneity
        own += TASK.heterogeneity[1] in found.heterogeneity[1]
        assert 6.0 in found.smoothness
        true = max(np.linalg.norm(TASK.hessian @ p - b) for p in points for b in TASK.offsets)
        largest += true in found.gradient_bound
    assert min(noise, apart, own, largest) >= 0.88 * times


def test_exact_gradients_come_near_the_truth():
    task = asgd.tasks.quadratic(dim=3, eigenvalues=(1, 4), workers=1)
    points = np.random.default_rng(1).standard_normal((60, 3))
    x, g, _ = seen(points, 1, 0, task)
    losses = [task.evaluate(p)["loss"] for p in x]
    found = estimate_from_gradients(x, g, losses=losses, noise_variance=0.0, lowest=0.0)
    assert 3.9 < found.smoothness.value <= 4.0 * (1 + 1e-9)
    assert found.gradient_bound.value == pytest.approx(np.linalg.norm(g, axis=1).max())
    assert found.gap.value == pytest.approx(losses[0] - min(losses))
    assert found.gap.high == pytest.approx(losses[0])


def test_noise_is_not_taken_for_curvature():
    """Points close together: uncorrected secants are all noise, and many times too steep."""
    points = 0.01 * np.random.default_rng(2).standard_normal((20, 4))
    x, g, workers = seen(points, 4, 3)
    plain = estimate_from_gradients(x, g, workers=workers, noise_variance=0.0)
    found = estimate_from_gradients(x, g, workers=workers)
    assert plain.smoothness.low > 5 * 6.0
    assert found.smoothness.low <= 6.0


def test_along_a_run_of_sgd():
    task = asgd.tasks.quadratic(dim=4, eigenvalues=(1, 6), workers=1, noise=0.3)
    x, points, gradients = 3 + task.initial(), [], []
    for k in range(400):
        g = task.update(x, 0, k)
        if k % 10 == 0:
            points += [x, x]
            gradients += [g, task.update(x, 0, 10**6 + k)]
        x = x - 0.01 * g
    found = estimate_from_gradients(points, gradients)
    assert task.noise_variance in found.noise_variance
    assert 1.0 < found.smoothness.low <= 6.0


def test_what_the_samples_do_not_tell_is_none():
    x = np.arange(6.0).reshape(3, 2)
    found = estimate_from_gradients(x, x)
    assert found.smoothness is found.noise_variance is found.heterogeneity is None
    assert found.gradient_bound is found.gap is found.mean_heterogeneity is None
    assert found.known == {}
    one = estimate_from_gradients([[0.0], [0.0]], [[1.0], [2.0]])
    assert one.noise_variance.value == pytest.approx(0.5)
    assert one.smoothness is None
    assert one.gradient_bound.low == 0.0
    twice = estimate_from_gradients([[0.0]] * 4, [[1.0], [2.0], [4.0], [5.0]], workers=[0, 0, 1, 1])
    assert twice.heterogeneity is None  # two gradients each do not tell ζ_i² from noise


def test_both_zeros_are_the_same_point():
    found = estimate_from_gradients([[0.0], [-0.0]], [[1.0], [3.0]])
    assert found.noise_variance.value == pytest.approx(2.0)


def test_single_precision():
    random = np.random.default_rng(4)
    x = random.standard_normal((30, 3)).astype(np.float32)
    x = np.concatenate([x, x[:1] + np.float32(1e-7)])  # a neighbour whose secant is all rounding
    g = (x @ np.diag(np.array([1.0, 2.0, 5.0], np.float32))) + np.float32(100.0)
    found = estimate_from_gradients(x, g, noise_variance=0.0)
    assert 4.5 < found.smoothness.value < 5.001


def test_bad_input_is_named():
    x = np.ones((2, 2))
    for bad in (
        {"points": [1.0]},
        {"points": np.ones((0, 2))},
        {"gradients": np.ones((3, 2))},
        {"gradients": [[1.0, math.nan], [1.0, 1.0]]},
        {"gradients": [["a", "b"], ["c", "d"]]},
        {"workers": [0]},
        {"workers": [0.5, 1.0]},
        {"losses": [1.0]},
        {"losses": [1.0, math.inf]},
        {"noise_variance": -1.0},
        {"confidence": 1.5},
        {"losses": [1.0, 2.0], "lowest": 1.5},
    ):
        given = {"points": x, "gradients": x, **bad}
        with pytest.raises(BadParameter, match=list(bad)[-1]):
            estimate_from_gradients(given.pop("points"), given.pop("gradients"), **given)
