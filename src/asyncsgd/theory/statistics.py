"""Numbers with their uncertainty: what samples of gradients tell about variances, squared norms and bounds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
ENOUGH = 8
"""From so many repeats on, their own scatter says how uncertain a variance is; below, the worst Gaussian noise does."""


@dataclass(frozen=True)
class Figure:
    """A number estimated from samples, and where the truth lies with the confidence asked for.

    ``high`` is infinite where samples can only show that the truth is at least so large.

    >>> print(Figure(2.0, 1.8, 2.3)), print(Figure(4.0, 3.9, float("inf")))
    2 (1.8 to 2.3)
    at least 4 (3.9 with its uncertainty)
    (None, None)
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"at least {self.value:.4g} ({self.low:.4g} with its uncertainty)"
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    @property
    def is_lower_bound(self) -> bool:
        """Whether nothing is known about how large the truth may be."""
        return math.isinf(self.high)

    def __contains__(self, truth: float) -> bool:
        return self.low <= truth <= self.high


def variance(groups: Sequence[NDArray[Any]], confidence: float, *, rounding: float = 0.0, alike: bool = True) -> Figure:
    """E‖g - E g‖² from groups of repeated gradients, unbiased (divided by repeats - 1 each).

    The interval is that of a χ² variable with 2 v²/se² degrees of freedom (Satterthwaite 1946), with the standard error
    se from the scatter of ‖g - ḡ‖².

    Args:
        groups: One array of gradients, row by row, for each point and worker; at least two rows each.
        confidence: Of the interval, such as 0.95.
        rounding: What rounding alone makes of no noise at all.
        alike: Whether all groups have the same variance, and are pooled; else it is the mean over groups.
    """
    values, errors, free = [], [], []
    for rows in groups:
        gradients = np.asarray(rows, dtype=np.float64)
        repeats = len(gradients)
        squares = ((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1)
        values.append(float(squares.sum()) / (repeats - 1))
        # The jackknife's, which errs on the safe side.
        errors.append(repeats / max(repeats - 2, 1) ** 2 * float(squares.var(ddof=1)))
        free.append(repeats - 1)
    weights = np.array(free, dtype=float) if alike else np.ones(len(free))
    weights /= weights.sum()
    value = float(weights @ values)
    if value <= rounding:
        return Figure(0.0, 0.0, rounding)
    if min(free) + 1 >= ENOUGH:
        wider = _quantile(sum(free), confidence) / _quantile(10**9, confidence)  # the error is itself estimated
        error = wider**2 * float(weights**2 @ errors)
        freedom = 2 * value**2 / error if error > 0 else math.inf
    else:  # noise in one direction only has the fewest degrees of freedom
        freedom = 1 / float((weights**2 / np.array(free)).sum())
    low, high = _chi_square(freedom, confidence)
    return Figure(value, value * low, value * high)


def squared_norm(rows: NDArray[Any], confidence: float, rounding: float = 0.0) -> Figure:
    """‖E d‖² from independent copies of d: the mean of ⟨d_s, d_t⟩ over s ≠ t, so that noise adds nothing on average.

    The interval is Student's. Its variance is that of the jackknife, plus 2 tr(C²)/(S(S-1)) with the covariance C of d:
    near 0 the jackknife alone is too sure. Value and interval are cut off at 0, where noise pushes them below; an
    interval that begins at 0 does not exclude 0.

    Args:
        rows: The S copies, at least three for an interval that ends.
        confidence: Of the interval.
        rounding: Error that every copy has in common.
    """
    return mean_squared_norm([[rows]], confidence, rounding)


def mean_squared_norm(groups: Sequence[Sequence[NDArray[Any]]], confidence: float, rounding: float = 0.0) -> Figure:
    """The mean of ‖E d‖² over several d, whose s-th copies may depend on each other within a group, not across."""
    parts = [_jackknife([_pairs(np.asarray(rows, dtype=np.float64)) for rows in group]) for group in groups]
    value = float(np.mean([value for value, _, _ in parts]))
    error = math.sqrt(sum(scatter for _, scatter, _ in parts)) / len(parts)
    many = min(many for _, _, many in parts)
    reach = _quantile(many - 1, confidence) * error + rounding if many > 2 else math.inf
    return Figure(max(value, 0.0), max(value - reach, 0.0), max(value + reach, 0.0))


def student(values: Floats, confidence: float) -> tuple[float, float]:
    """(mean, half the width of its interval)."""
    if len(values) < 2:
        return float(values.mean()), math.inf
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()), _quantile(len(values) - 1, confidence) * error


def _jackknife(family: Sequence[tuple[float, Floats, float]]) -> tuple[float, float, int]:
    """(mean over the family, its variance, how many copies there are)."""
    value = float(np.mean([value for value, _, _ in family]))
    left_out = np.mean([without for _, without, _ in family], axis=0)
    many = len(left_out)
    if many < 3:
        return value, math.inf, many
    jackknife = (many - 1) / many * float(((left_out - left_out.mean()) ** 2).sum())
    near_zero = float(np.mean([math.sqrt(scatter) for _, _, scatter in family])) ** 2
    return value, jackknife + near_zero, many


def _pairs(copies: Floats) -> tuple[float, Floats, float]:
    """The mean over pairs, what it is without each copy, and its variance if E d is 0."""
    many = len(copies)
    products = copies @ copies.T
    others = products.sum(axis=1) - np.diag(products)
    total = float(others.sum())
    value = total / (many * (many - 1))
    if many < 3:
        return value, np.empty(0), math.inf
    centred = copies - copies.mean(axis=0)
    cross = centred @ centred.T
    squares = float((cross**2).sum() - (np.diag(cross) ** 2).sum())  # many (many - 1) tr(C²), nearly
    left_out = (total - 2 * others) / ((many - 1) * (many - 2))
    return value, left_out, 2 * squares / (many * (many - 1)) ** 2


def normal_quantile(chance: float) -> float:
    """What a standard normal number exceeds with this chance."""
    from scipy.special import ndtri

    return -float(ndtri(chance))


def _quantile(freedom: int, confidence: float) -> float:
    from scipy.special import stdtrit  # scipy takes a while to load

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _chi_square(freedom: float, confidence: float) -> tuple[float, float]:
    """By which factors the truth can lie below and above a variance with so many degrees of freedom."""
    from scipy.special import gammaincinv

    if math.isinf(freedom):
        return 1.0, 1.0
    half, tail = freedom / 2, (1 - confidence) / 2
    few = float(gammaincinv(half, tail))
    return half / float(gammaincinv(half, 1 - tail)), half / few if few > 0 else math.inf
