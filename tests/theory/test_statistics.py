"""Intervals hold the truth about as often as they say, over many samples whose truth is known."""

import math

import numpy as np
import pytest

from asyncsgd.theory import probing
from asyncsgd.theory.probing import Figure, mean_squared_norm, squared_norm, variance

TIMES = 400
LEAST = 0.9 * TIMES  # 95 % are asked for, and the worst case measured with many more is 93 %


def normal(random, shape):
    return random.standard_normal(shape)


def skewed(random, shape):
    return random.exponential(1.0, shape) - 1


def heavy(random, shape):
    return random.standard_t(6, shape) / math.sqrt(1.5)


@pytest.mark.parametrize(
    ("draw", "dim", "repeats", "groups"),
    [
        (normal, 1, 32, 1),
        (normal, 1, 2, 1),
        (normal, 10, 3, 4),
        (normal, 50, 16, 2),
        (skewed, 5, 32, 2),
        (heavy, 5, 32, 2),
    ],
)
@pytest.mark.parametrize("alike", [True, False])
def test_variances(draw, dim, repeats, groups, alike):
    random = np.random.default_rng(dim)
    found = [variance([draw(random, (repeats, dim)) for _ in range(groups)], 0.95, alike=alike) for _ in range(TIMES)]
    assert sum(dim in figure for figure in found) >= LEAST
    values = np.array([figure.value for figure in found])
    assert abs(values.mean() - dim) < 5 * values.std() / math.sqrt(TIMES)  # unbiased
    # And intervals are no wider than they must be: within a factor of the spread of the values themselves.
    if repeats >= probing.ENOUGH:
        assert np.mean([figure.high - figure.low for figure in found]) < 1.5 * 3.92 * values.std()


def test_groups_of_different_variance_and_size():
    """The mean over groups counts each once; the pooled variance by its repeats."""
    random = np.random.default_rng(0)
    groups = [random.standard_normal((1000, 1)), 3 * random.standard_normal((50, 1))]
    assert variance(groups, 0.95, alike=False).value == pytest.approx(5.0, rel=0.3)
    assert variance(groups, 0.95).value == pytest.approx((999 * 1 + 49 * 9) / 1048, rel=0.3)


@pytest.mark.parametrize(
    ("mean", "dim", "repeats"), [(0.0, 5, 32), (0.1, 5, 32), (1.0, 5, 32), (0.3, 1, 16), (1.0, 50, 16), (0.0, 50, 4)]
)
def test_squared_norms(mean, dim, repeats):
    random = np.random.default_rng(dim)
    found = []
    for _ in range(TIMES):
        rows = random.standard_normal((repeats, dim))
        rows[:, 0] += mean
        found.append(squared_norm(rows, 0.95))
    assert sum(mean**2 in figure for figure in found) >= LEAST


def test_without_leaving_the_squares_out_noise_looks_like_signal(monkeypatch):
    """The deliberate bug: ‖mean‖², which noise pushes up by σ²/S."""

    def biased(copies):
        value, left_out, scatter = honest(copies)
        shift = float(copies.mean(axis=0) @ copies.mean(axis=0)) - value
        return value + shift, left_out + shift, scatter

    honest = probing._pairs
    random = np.random.default_rng(0)
    samples = [random.standard_normal((32, 50)) for _ in range(100)]
    assert sum(0.0 in squared_norm(rows, 0.95) for rows in samples) >= 90
    monkeypatch.setattr(probing, "_pairs", biased)
    assert sum(0.0 in squared_norm(rows, 0.95) for rows in samples) <= 5


def test_means_over_groups_whose_copies_belong_together():
    """Workers' deviations from their common mean: dependent copy by copy, independent from point to point."""
    random = np.random.default_rng(1)
    hits, values = 0, []
    for _ in range(TIMES):
        groups = []
        for _ in range(2):
            own = random.standard_normal((3, 12, 4)) + np.array([[1.0], [0.0], [-1.0]])[:, None] * np.eye(4)[0]
            groups.append(list(own - own.mean(axis=0)))
        figure = mean_squared_norm(groups, 0.95)
        hits += 2 / 3 in figure
        values.append(figure.value)
    assert hits >= LEAST
    assert abs(np.mean(values) - 2 / 3) < 5 * np.std(values) / math.sqrt(TIMES)


def test_too_few_copies_give_no_end():
    figure = squared_norm(np.array([[1.0], [3.0]]), 0.95)
    assert figure == Figure(3.0, 0.0, math.inf)
    assert figure.is_lower_bound


def test_no_noise_at_all():
    assert variance([np.ones((5, 3))], 0.95) == Figure(0.0, 0.0, 0.0)
    assert squared_norm(np.ones((5, 3)), 0.95) == Figure(3.0, 3.0, 3.0)
    assert str(Figure(3.0, 3.0, 3.0)) == "3 (3 to 3)"
