"""Check the arguments that users pass: durations, delays, constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import nonnegative, positive
from asyncsgd.trace import Delays, Trace

Floats = NDArray[np.float64]
Given = Trace | Delays | tuple[float, float]
"""Delays of a run (a trace or its ``delays``), or the numbers (τ_C, τ_max)."""


def numbers(name: str, values: Any) -> Floats:
    """Return the values as an array of floats of any shape."""
    try:
        return np.asarray(values, dtype=float)
    except (TypeError, ValueError):
        raise BadParameter(name, values, "is not made of numbers", "pass numbers") from None


def sorted_durations(durations: Sequence[float] | Floats) -> Floats:
    """Return the durations sorted; raise unless all are positive and finite."""
    tau = numbers("durations", durations)
    if tau.ndim != 1 or tau.size == 0:
        raise BadParameter("durations", durations, "has no worker", "pass one duration per worker")
    good = np.isfinite(tau) & (tau > 0)
    if not good.all():
        worker = int(np.argmin(good))
        problem = f"(worker {worker}) is not a duration"
        raise BadParameter("durations", float(tau[worker]), problem, "pass positive finite seconds")
    return np.sort(tau)


def measured(delays: Given) -> Delays | None:
    """Return the ``Delays`` of a run, or None for given numbers."""
    if isinstance(delays, Trace):
        return delays.delays
    return delays if isinstance(delays, Delays) else None


def concurrency_and_maximum(delays: Given) -> tuple[float, float]:
    """(τ_C, τ_max)."""
    found = measured(delays)
    if found is not None:
        return float(found.concurrency), float(found.maximum)
    try:
        concurrency, longest = delays  # type: ignore[misc]
    except (TypeError, ValueError):
        fix = "pass a trace, trace.delays, or the numbers (τ_C, τ_max)"
        raise BadParameter("delays", delays, "do not contain concurrency and maximum", fix) from None
    positive("concurrency", concurrency)
    nonnegative("maximum delay", longest)
    return float(concurrency), float(longest)


def concurrency_of(delays: Given | float) -> float:
    """Return τ_C, from a run, (τ_C, τ_max) or the number itself."""
    if isinstance(delays, int | float | np.integer | np.floating):
        positive("concurrency", delays)
        return float(delays)
    return concurrency_and_maximum(delays)[0]


def root(concurrency: float, longest: float) -> float:
    """Return max(1, √(τ_C τ_max)), by which Theorems 1 and 3 divide the step of sequential SGD."""
    return max(1.0, math.sqrt(concurrency * longest))


def constants(smoothness: float, gap: float, noise_variance: float) -> None:
    """Raise unless L and r0 are positive and σ² is not negative."""
    positive("smoothness", smoothness)
    positive("gap", gap)
    nonnegative("noise_variance", noise_variance)


def squares(heterogeneity: Sequence[float] | Floats | float) -> Floats:
    """Return the ζ_i², one per worker (a single number is for all)."""
    zeta = np.atleast_1d(numbers("heterogeneity", heterogeneity))
    if zeta.ndim != 1 or zeta.size == 0 or not (np.isfinite(zeta).all() and (zeta >= 0).all()):
        raise BadParameter("heterogeneity", heterogeneity, "holds no ζ_i²", "pass one number per worker, 0 or above")
    return zeta
