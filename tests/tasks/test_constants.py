"""The constants against computations of their own."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasks.zoo import BINARY, CLASSES, FEATURES, TARGETS, ZOO

from asyncsgd import tasks
from asyncsgd.tasks.linear_models import separable

EVERYTHING = {"smoothness", "noise_variance", "heterogeneity", "optimum", "minimum"}


@pytest.mark.parametrize("name", ZOO)
def test_shapes_and_meaning(name):
    task = ZOO[name]
    assert task.heterogeneity.shape == (task.workers,)
    assert task.exact <= EVERYTHING
    assert task.heterogeneous == bool((task.heterogeneity > 0).any())
    if task.optimum is not None:
        assert task.evaluate(task.optimum)["gradient_norm"] < 1e-12
        assert abs(task.evaluate(task.optimum)["loss"]) < 1e-12
        for seed in range(20):
            near = task.optimum + 0.1 * np.random.default_rng(seed).standard_normal(task.dimension)
            assert task.evaluate(near)["loss"] > 0
    assert (task.optimum is None) == ("optimum" not in task.exact) == (task.minimum is None)


@pytest.mark.parametrize("name", ZOO)
def test_gradients_are_lipschitz_with_the_smoothness(name):
    from dataclasses import replace

    from asyncsgd.tasks.base import BATCH

    task = ZOO[name]
    kind, params, *rest = task.lowered
    quiet = params.copy()
    quiet[:2] = 0 if kind == 0 else (quiet[0], 0)
    assert BATCH == 1
    task = replace(task, lowered=(kind, quiet, *rest))
    random = np.random.default_rng(0)
    for worker in range(task.workers):
        for _ in range(30):
            x, y = random.standard_normal((2, task.dimension)) * 0.1
            change = np.linalg.norm(task.update(x, worker, 0) - task.update(y, worker, 0))
            assert change <= task.smoothness * np.linalg.norm(x - y) * (1 + 1e-9)


def test_quadratic_constants():
    task = tasks.quadratic(dim=8, eigenvalues=(0.5, 3), workers=5, noise=0.7, heterogeneity=1.3, seed=4)
    assert np.linalg.eigvalsh(task.hessian) == pytest.approx(np.linspace(0.5, 3, 8))
    assert (task.hessian == task.hessian.T).all()
    assert task.smoothness == 3
    assert task.noise_variance == pytest.approx(0.49)
    assert task.heterogeneity.mean() == pytest.approx(1.69)
    assert task.exact == EVERYTHING
    x = np.ones(8)
    quiet = tasks.quadratic(dim=8, eigenvalues=(0.5, 3), workers=5, heterogeneity=1.3, seed=4)
    each = np.array([quiet.update(x, i, 0) for i in range(5)])
    assert ((each - each.mean(axis=0)) ** 2).sum(axis=1) == pytest.approx(task.heterogeneity)
    noise = np.array([task.update(x, 2, seed) for seed in range(4000)]) - each[2]
    assert (noise**2).sum(axis=1).mean() == pytest.approx(0.49, rel=0.05)
    assert np.cov(noise.T) == pytest.approx(np.eye(8) * 0.49 / 8, abs=0.008)


def test_multiplicative_noise_scales_the_gradient():
    task, quiet = (tasks.quadratic(dim=4, multiplicative=m) for m in (0.5, 0.0))
    g = quiet.update(np.ones(4), 0, 0)
    factors = np.array([task.update(np.ones(4), 0, seed) / g for seed in range(3000)])
    assert np.ptp(factors, axis=1).max() < 1e-12
    assert factors[:, 0].mean() == pytest.approx(1, abs=0.05)
    assert factors[:, 0].std() == pytest.approx(0.5, rel=0.05)
    assert "noise_variance" not in task.exact
    assert task.noise_variance == pytest.approx(0.25 * np.linalg.norm(quiet.update(np.zeros(4), 0, 0)) ** 2)


@given(st.lists(st.floats(0, 10), min_size=2, max_size=9), st.integers(2, 6), st.integers(0, 99))
def test_chosen_zeta_hold_exactly(lengths, dim, seed):
    if 2 * max(lengths) > sum(lengths):
        with pytest.raises(tasks.quadratic.__globals__["BadParameter"], match="sum of the others"):
            tasks.quadratic(dim=dim, workers=len(lengths), heterogeneity=lengths, seed=seed)
        return
    task = tasks.quadratic(dim=dim, workers=len(lengths), heterogeneity=lengths, seed=seed)
    assert np.sqrt(task.heterogeneity) == pytest.approx(np.array(lengths), rel=1e-9, abs=1e-9)


def test_the_papers_quadratic():
    task = tasks.paper_quadratic(seed=3)
    assert np.sqrt(np.linalg.eigvalsh(task.hessian)) == pytest.approx(np.linspace(1, 2, 10))
    assert task.minimum == 0.0
    assert task.deterministic
    # f = ½‖Ax - b‖² with A the root of H and b = A⁻¹c
    values, vectors = np.linalg.eigh(task.hessian)
    root = (vectors * np.sqrt(values)) @ vectors.T
    b, x = np.linalg.solve(root, task.offsets[0]), np.arange(10.0)
    assert task.evaluate(x)["loss"] == pytest.approx(0.5 * np.linalg.norm(root @ x - b) ** 2)


def test_least_squares_constants():
    task = tasks.least_squares(FEATURES, TARGETS, workers=1, ridge=0.2)
    m = len(FEATURES)
    hessian = FEATURES.T @ FEATURES / m + 0.2 * np.eye(6)
    assert task.smoothness == pytest.approx(np.linalg.eigvalsh(hessian)[-1])
    assert task.optimum == pytest.approx(np.linalg.solve(hessian, FEATURES.T @ TARGETS / m))


def test_underdetermined_least_squares_reach_zero():
    task = tasks.least_squares(FEATURES[:4], TARGETS[:4])
    assert task.minimum == pytest.approx(0, abs=1e-25)
    assert task.optimum == pytest.approx(np.linalg.pinv(FEATURES[:4]) @ TARGETS[:4])


@pytest.mark.parametrize("name", ["least squares, batch", "logistic, batch", "softmax, batch"])
def test_noise_variance_and_heterogeneity_at_the_optimum(name):
    task = ZOO[name]
    x = np.zeros(task.dimension) if task.optimum is None else task.optimum
    spreads, means = [], []
    for worker in range(task.workers):
        samples = np.array([task.update(x, worker, seed) for seed in range(4000)])
        means.append(samples.mean(axis=0))
        spreads.append(((samples - means[-1]) ** 2).sum(axis=1).mean())
    assert max(spreads) == pytest.approx(task.noise_variance, rel=0.1)
    zeta = ((np.array(means) - np.mean(means, axis=0)) ** 2).sum(axis=1)
    assert zeta == pytest.approx(task.heterogeneity, rel=0.1, abs=0.02 * task.noise_variance)
    assert "noise_variance" not in task.exact


def test_rows_of_unequal_parts_count_by_worker():
    parts = [[0, 1, 2], list(range(3, 37))]
    task = tasks.least_squares(FEATURES, TARGETS, workers=2, split=parts)
    each = [np.mean((FEATURES[p] @ np.ones(6) - TARGETS[p]) ** 2) / 2 for p in parts]
    assert task.evaluate(np.ones(6))["loss"] + task.minimum == pytest.approx(np.mean(each))


def test_separable_data_have_no_optimum():
    labels = FEATURES @ np.arange(1, 7) > 0
    task = tasks.logistic(features=FEATURES, labels=labels, workers=2)
    assert task.optimum is None
    assert task.minimum is None
    assert not {"optimum", "minimum"} & task.exact
    assert "distance" not in task.evaluate(task.initial())
    assert task.evaluate(task.initial())["loss"] == pytest.approx(np.log(2))
    assert tasks.logistic(features=FEATURES, labels=labels, ridge=1e-3).optimum is not None


def test_quasi_separable_data_are_seen():
    signed = np.array([[1.0, 0.0], [-1.0, 0.0], [0.0, -1.0]])
    assert separable(signed)
    assert not separable(np.vstack([signed, [0.0, 1.0]]))


def test_logistic_optimum_against_scipy():
    from scipy.optimize import minimize

    task = tasks.logistic(features=FEATURES, labels=BINARY, ridge=0.1)
    sign = np.where(BINARY == 1, 1, -1)
    found = minimize(
        lambda x: np.mean(np.logaddexp(0, -sign * (FEATURES @ x))) + 0.05 * x @ x, np.zeros(6), options={"gtol": 1e-9}
    )
    assert task.optimum == pytest.approx(found.x, abs=1e-6)
    assert task.minimum == pytest.approx(found.fun)
    assert task.smoothness == pytest.approx(np.linalg.eigvalsh(FEATURES.T @ FEATURES)[-1] / (4 * 37) + 0.1)


def test_softmax_of_two_classes_is_logistic():
    two = tasks.softmax(FEATURES, BINARY, ridge=0.2, bias=False)
    one = tasks.logistic(features=FEATURES, labels=BINARY, ridge=0.1)
    weights = two.optimum.reshape(6, 2)
    assert weights[:, 1] - weights[:, 0] == pytest.approx(one.optimum)
    assert two.minimum == pytest.approx(one.minimum)
    assert two.evaluate(two.optimum)["accuracy"] == one.evaluate(one.optimum)["accuracy"]


def test_unregularised_softmax_says_that_its_optimum_is_unknown():
    task = tasks.softmax(FEATURES, CLASSES)
    assert task.optimum is None
    assert task.exact == {"smoothness", "noise_variance", "heterogeneity"}


@pytest.mark.slow
def test_digits_hold_out_rows_and_split_the_rest():
    task = tasks.digits(workers=10, split="label", batch=None)
    assert len(task.test_labels) == 359
    assert len(task.labels) == 1438
    held = {row.tobytes() for row in task.test_features}
    assert len(held & {row.tobytes() for row in task.features}) <= 1  # nearly all images differ
    kinds = [len(np.unique(task.labels[part])) for part in task.rows.parts()]
    assert max(kinds) <= 3
    assert task.evaluate(task.optimum)["accuracy"] > 0.9


def test_missing_scikit_learn_is_explained(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "sklearn", None)
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(ModuleNotFoundError, match="pip install scikit-learn"):
        tasks.digits()
