"""Straight lines through measured points."""

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


def line(x: Numbers, y: Numbers) -> Line:
    """Fit a line.

    >>> line([0, 1, 2], [1, 3, 5])
    Line(slope=2.0, intercept=1.0, r2=1.0)
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
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
