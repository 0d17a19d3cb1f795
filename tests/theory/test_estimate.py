"""Estimated constants against tasks whose constants are known, by formula or by enumeration."""

import math
from functools import cache

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.tasks import BadTask
from asyncsgd.theory import estimate, theorem1

SEEDS = 60


@cache
def estimates():
    """One task, many seeds: (task, what was found)."""
    task = asgd.tasks.quadratic(dim=6, eigenvalues=(1, 5), workers=3, noise=1.5, heterogeneity=(0.4, 0.8, 0.7))
    return task, [estimate(task, samples=16, steps=10, seed=seed) for seed in range(SEEDS)]


def hits(truth, figures):
    return sum(truth in figure for figure in figures)


def test_intervals_hold_the_truth_as_often_as_they_say():
    task, found = estimates()
    assert hits(task.noise_variance, [f.noise_variance for f in found]) >= 0.88 * SEEDS
    assert hits(float(task.heterogeneity.mean()), [f.mean_heterogeneity for f in found]) >= 0.88 * SEEDS
    for worker in range(3):
        assert hits(task.heterogeneity[worker], [f.heterogeneity[worker] for f in found]) >= 0.88 * SEEDS


def test_values_are_unbiased():
    task, found = estimates()
    for truth, values in (
        (task.noise_variance, [f.noise_variance.value for f in found]),
        (task.heterogeneity.mean(), [f.mean_heterogeneity.value for f in found]),
    ):
        assert abs(np.mean(values) - truth) < 4 * np.std(values) / math.sqrt(SEEDS)


def test_lower_bounds_lie_below_and_close():
    task, found = estimates()
    largest = max(np.linalg.norm(task.offsets, axis=1))  # ‖∇f_i(0)‖ = ‖b_i‖
    gap = task.evaluate(task.initial())["loss"]
    for f in found:
        assert f.smoothness.is_lower_bound
        assert f.smoothness.value == pytest.approx(5.0, rel=1e-6)
        assert f.smoothness.low <= 5.0
        assert f.gap.value <= gap
    assert hits(largest, [f.gradient_bound for f in found]) >= 0.88 * SEEDS
    assert np.mean([f.gradient_bound.value for f in found]) == pytest.approx(largest, rel=0.1)


def test_homogeneous_data_have_an_interval_that_begins_at_zero():
    task = asgd.tasks.quadratic(dim=8, workers=4, noise=2.0)
    found = [estimate(task, samples=8, steps=1, seed=seed) for seed in range(20)]
    assert sum(f.mean_heterogeneity.low == 0.0 for f in found) >= 18
    assert all(f.mean_heterogeneity.high > 0 for f in found)


def test_exact_gradients_are_told_exactly():
    task = asgd.tasks.quadratic(dim=12, eigenvalues=(0.5, 7), workers=3, heterogeneity=0.6)
    found = estimate(task, samples=4)
    assert found.smoothness.value == pytest.approx(7.0, rel=1e-6)
    assert found.noise_variance.value == 0.0
    assert 0.0 in found.noise_variance
    assert [f.value for f in found.heterogeneity] == pytest.approx(task.heterogeneity)
    assert all(truth in f for truth, f in zip(task.heterogeneity, found.heterogeneity, strict=True))
    assert found.gradient_bound.value == pytest.approx(max(np.linalg.norm(task.offsets, axis=1)))
    assert found.gap.value == pytest.approx(task.evaluate(task.initial())["loss"], rel=0.01)


def test_logistic_regression_by_enumeration():
    """At x = 0 every row's gradient is -y a / 2, and the Hessian AᵀA / (4m) is what L is made of."""
    task = asgd.tasks.logistic(m=90, dim=6, workers=3, batch=3, split="iid", ridge=0.1, seed=1)
    rows = -0.5 * task.signs[:, None] * task.features
    parts = [rows[a:b] for a, b in task.rows.bounds.reshape(-1, 2)]
    means = np.array([part.mean(axis=0) for part in parts])
    noise = np.mean([((part - mean) ** 2).sum(axis=1).mean() / 3 for part, mean in zip(parts, means, strict=True)])
    apart = ((means - means.mean(axis=0)) ** 2).sum(axis=1).mean()
    found = [estimate(task, samples=24, steps=20, seed=seed) for seed in range(20)]
    assert hits(noise, [f.noise_variance for f in found]) >= 17
    assert hits(apart, [f.mean_heterogeneity for f in found]) >= 17
    assert hits(task.smoothness, [f.smoothness for f in found]) >= 17
    whole = asgd.tasks.logistic(m=90, dim=6, workers=3, split="iid", ridge=0.1, seed=1)
    assert estimate(whole, samples=4, steps=5).smoothness.value == pytest.approx(task.smoothness, rel=1e-4)


def test_least_squares():
    random = np.random.default_rng(0)
    features, targets = random.standard_normal((60, 5)), random.standard_normal(60)
    task = asgd.tasks.least_squares(features, targets, workers=2)
    found = estimate(task, samples=4, steps=300, lowest=0.0)
    assert found.smoothness.value == pytest.approx(task.smoothness, rel=1e-6)
    assert found.smoothness.low <= task.smoothness
    gap = task.evaluate(task.initial())["loss"]
    assert found.gap.value == pytest.approx(gap, rel=1e-3)
    assert gap in found.gap


class Single:
    """A float32 view of a task in float64."""

    def __init__(self, task):
        self.task, self.workers, self.heterogeneous = task, task.workers, task.heterogeneous

    def initial(self):
        return self.task.initial().astype(np.float32)

    def update(self, x, worker, seed):
        return self.task.update(x.astype(np.float64), worker, seed).astype(np.float32)

    def evaluate(self, x):
        return self.task.evaluate(x.astype(np.float64))


def test_float32():
    task = asgd.tasks.quadratic(dim=20, eigenvalues=(1, 9), workers=2, noise=0.1, heterogeneity=0.5)
    found = estimate(Single(task), samples=16, steps=50)
    assert found.smoothness.value == pytest.approx(9.0, rel=1e-3)
    assert task.noise_variance in found.noise_variance
    assert 0.25 in found.mean_heterogeneity
    exact = estimate(Single(asgd.tasks.quadratic(dim=20, workers=2, heterogeneity=0.5)), samples=4, steps=5)
    assert exact.noise_variance.value == 0.0
    assert 0.25 in exact.mean_heterogeneity


def test_softmax_in_float32_by_enumeration():
    """At x = 0 every class has the chance 1/4, so a row's gradient is a ⊗ (1/4 - truth)."""
    task = asgd.tasks.softmax(m=60, dim=5, classes=4, workers=3, split="iid", batch=8)
    rows = task.features[:, :, None] * (0.25 - np.eye(4)[task.labels])[:, None, :]
    rows = rows.reshape(len(rows), -1)
    parts = [rows[a:b] for a, b in task.rows.bounds.reshape(-1, 2)]
    noise = np.mean([((part - part.mean(axis=0)) ** 2).sum(axis=1).mean() / 8 for part in parts])
    found = estimate(Single(task), samples=24, steps=20)
    assert noise in found.noise_variance
    assert 0 < found.smoothness.low <= task.smoothness
    assert found.gap.value > 0


def test_a_torch_model():
    torch = pytest.importorskip("torch")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for so small a model, several threads only wait for each other
    try:
        generator = torch.Generator().manual_seed(0)
        inputs = torch.randn(200, 4, generator=generator)
        data = torch.utils.data.TensorDataset(inputs, (inputs[:, 0] * inputs[:, 1] > 0).long())
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))
        task = asgd.tasks.torch(model, torch.nn.CrossEntropyLoss(), data, batch_size=16)
        found = estimate(task, samples=6, steps=10, lowest=0.0)
    finally:
        torch.set_num_threads(threads)
    assert task.initial().dtype == np.float32
    assert 0 < found.smoothness.low <= found.smoothness.value < 100
    assert found.noise_variance.low > 0
    start = task.evaluate(task.initial())["loss"]
    assert 0 < found.gap.value < found.gap.high == pytest.approx(start)


def test_what_is_found_feeds_the_bounds():
    _, found = estimates()
    bound = theorem1((3, 10), **found[0].known)
    assert bound.max_step == pytest.approx(1 / (2 * 5.0 * math.sqrt(30)), rel=1e-6)


def test_workers_can_be_chosen():
    task = asgd.tasks.quadratic(dim=3, workers=100, heterogeneity=0.5)
    assert len(estimate(task, samples=4, steps=1).workers) == 64
    assert estimate(task, samples=4, steps=1, workers=[3, 99]).workers == (3, 99)
    assert len(estimate(task, samples=4, steps=1, workers=5).workers) == 5
    first, again = (estimate(task, samples=4, steps=1, workers=5, seed=2) for _ in range(2))
    assert first == again


def test_another_point():
    task = asgd.tasks.quadratic(dim=3, workers=1, multiplicative=0.5)  # noise that grows with the gradient
    near = task.optimum + 1e-3
    assert estimate(task, at=near, steps=1).noise_variance.value < 1e-3 * estimate(task, steps=1).noise_variance.value


class Silent:
    """A task that reports no loss."""

    workers = 1

    def initial(self):
        return np.ones(2)

    def update(self, x, worker, seed):
        return 2 * x

    def evaluate(self, x):
        return {}


class Broken(Silent):
    def update(self, x, worker, seed):
        return np.array([1.0, math.nan])


class Short(Silent):
    def update(self, x, worker, seed):
        return np.ones(3)


def test_a_task_without_a_loss_has_no_gap():
    found = estimate(Silent(), samples=4)
    assert found.gap is None
    assert found.smoothness.value == pytest.approx(2.0)
    assert set(found.known) == {"smoothness", "noise_variance"}


def test_bad_input_is_named():
    task = asgd.tasks.quadratic(dim=2, workers=2)
    with pytest.raises(BadTask, match="no method initial"):
        estimate(object())
    with pytest.raises(BadTask, match="NaN"):
        estimate(Broken())
    with pytest.raises(BadTask, match="not a vector like x"):
        estimate(Short())
    for bad in ({"samples": 3}, {"samples": 0}, {"steps": 0}, {"confidence": 1.0}, {"workers": 3}, {"workers": [2]}):
        with pytest.raises(BadParameter, match=next(iter(bad))):
            estimate(task, **bad)
    with pytest.raises(BadParameter, match="workers"):
        estimate(task, workers=[0, 0])
    for bad in (np.ones((2, 2)), np.array([1, 2]), np.array([1.0, math.inf])):
        with pytest.raises(BadParameter, match="at = "):
            estimate(task, at=bad)
    with pytest.raises(BadParameter, match="lowest = 1"):
        estimate(task, lowest=1.0)
