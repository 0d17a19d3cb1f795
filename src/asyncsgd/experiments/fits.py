"""Straight lines through measured points, and how sure a mean of them is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """y = intercept + slope · x, by least squares."""

    slope: float
    intercept: float
    r2: float
    """The share of the variance of y that the line explains."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def within(self, low: float, high: float) -> bool:
        """Whether all of the interval lies between these; an interval with NaN does not."""
        return low <= self.low and self.high <= high

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


def interval(values: Numbers) -> Interval:
    """Student's interval for the mean of independent values; a single one is taken as exact.

    >>> print(interval([0.4, 0.5, 0.6]))
    0.50 (0.25 to 0.75)
    """
    from scipy.special import stdtrit  # scipy takes a while to load

    sample = np.asarray(values, float)
    mean, many = float(sample.mean()), len(sample)
    reach = float(stdtrit(many - 1, 0.975) * sample.std(ddof=1) / np.sqrt(many)) if many > 1 else 0.0
    return Interval(mean, mean - reach, mean + reach)


def ratio(above: Numbers, below: Numbers) -> Interval:
    """The interval of a ratio of two means, whose values come in pairs; low and high by the spread of a - ratio · b.

    >>> print(ratio([2.0, 4.1, 5.9], [1.0, 2.0, 3.0]))
    2.00 (1.88 to 2.12)
    """
    a, b = np.asarray(above, float), np.asarray(below, float)
    mean = float(a.mean() / b.mean())
    rest = interval(a - mean * b)
    return Interval(mean, mean + rest.low / float(b.mean()), mean + rest.high / float(b.mean()))


def line(x: Numbers, y: Numbers) -> Line:
    """Fit a line; all NaN if some y is not finite.

    >>> line([0, 1, 2], [1, 3, 5])
    Line(slope=2.0, intercept=1.0, r2=1.0)
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
    if not np.all(np.isfinite(b)):
        return Line(np.nan, np.nan, np.nan)
    centred = a - a.mean()
    slope = float(centred @ (b - b.mean()) / (centred @ centred))
    intercept = float(b.mean() - slope * a.mean())
    rest, spread = b - intercept - slope * a, b - b.mean()
    return Line(slope, intercept, 1.0 - float(rest @ rest) / float(spread @ spread) if spread.any() else 1.0)


def exponent(x: Numbers, y: Numbers) -> float:
    """The p of y = c·x^p: the slope on logarithmic axes.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 12)
    2.0
    """
    return line(np.log(x), np.log(y)).slope
