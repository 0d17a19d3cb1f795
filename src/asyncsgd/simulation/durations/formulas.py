"""Durations by formula: every argument is one number for all workers, or one number per worker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.simulation.durations.base import (
    EXPONENTIAL,
    FIXED,
    GAMMA,
    LOGNORMAL,
    MEASURED,
    PARETO,
    TRUNCATED_NORMAL,
    UNIFORM,
    Durations,
    Lowered,
    build,
    freeze,
)
from asyncsgd.simulation.durations.columns import Floats, broadcast, nonnegative, positive
from asyncsgd.simulation.durations.columns import seconds as _seconds  # `fixed` has an argument of that name


def fixed(seconds: Any, *, workers: int | None = None) -> Durations:
    """Every job of worker i takes ``seconds[i]``.

    >>> fixed([1.0, 16.0])
    <Durations: 2 workers, fixed>
    >>> fixed(1.0, workers=8).workers
    8
    """
    return build(FIXED, *broadcast(workers, seconds=_seconds("seconds", seconds)))


def exponential(means: Any, *, workers: int | None = None) -> Durations:
    """Jobs of worker i take independent exponential times of mean ``means[i]``: P(D > d) = exp(-d / mean)."""
    return build(EXPONENTIAL, *broadcast(workers, means=_seconds("means", means)))


def gamma(means: Any, shape: Any, *, workers: int | None = None) -> Durations:
    """Gamma times of mean ``means[i]``; their standard deviation is mean / √shape, and shape 1 is exponential."""
    columns = {"means": _seconds("means", means), "shape": positive("shape", shape)}
    return build(GAMMA, *broadcast(workers, **columns))


def lognormal(medians: Any, sigma: Any, *, workers: int | None = None) -> Durations:
    """``medians[i]`` · exp(``sigma`` · Z) with Z standard normal; the mean is median · exp(sigma² / 2).

    >>> lognormal(2.0, sigma=[0.0, 1.0]).means.round(4)
    array([2.    , 3.2974])
    """
    columns = {"medians": _seconds("medians", medians), "sigma": nonnegative("sigma", sigma)}
    return build(LOGNORMAL, *broadcast(workers, **columns))


def uniform(low: Any, high: Any, *, workers: int | None = None) -> Durations:
    """Uniform on (``low[i]``, ``high[i]``]; ``low`` may be 0."""
    lows, highs = broadcast(workers, low=nonnegative("low", low), high=_seconds("high", high))
    good = lows <= highs
    if not good.all():
        first = int(np.argmin(good))
        fix = f"swap them, low = {float(lows[first])} there"
        raise BadParameter(f"high[{first}]", float(highs[first]), "is below low", fix)
    return build(UNIFORM, lows, highs)


def truncated_normal(means: Any, std: Any, *, workers: int | None = None) -> Durations:
    """Normal of mean ``means[i]`` and standard deviation ``std[i]``, drawn anew until it is above 0.

    So the mean of a job is larger than ``means[i]``; ``durations.means`` has it.

    >>> truncated_normal(1.0, std=[0.1, 1.0]).means.round(4)
    array([1.    , 1.2876])
    """
    columns = {"means": _seconds("means", means), "std": nonnegative("std", std)}
    return build(TRUNCATED_NORMAL, *broadcast(workers, **columns))


def pareto(scale: Any, shape: Any, *, workers: int | None = None) -> Durations:
    """Pareto: at least ``scale[i]`` seconds, and P(D > d) = (scale / d)^shape; the mean is infinite if shape <= 1."""
    columns = {"scale": _seconds("scale", scale), "shape": positive("shape", shape)}
    return build(PARETO, *broadcast(workers, **columns))


def concatenate(parts: Sequence[Durations]) -> Durations:
    """The workers of the first, then those of the second, and so on.

    >>> concatenate([fixed([10.0] * 900), exponential(60.0, workers=100)])
    <Durations: 1000 workers (900 fixed, 100 exponential)>
    """
    fix = "pass a list of durations, such as [fixed(1.0, workers=8), exponential([2.0])]"
    if not isinstance(parts, list | tuple) or not parts:
        raise BadParameter("parts", parts, "is no list of durations", fix)
    for place, part in enumerate(parts):
        if not isinstance(part, Durations):
            raise BadParameter(f"parts[{place}]", part, "is no durations", fix)
    columns = {name: [getattr(part.lowered, name) for part in parts] for name in Lowered._fields}
    for bounds, values in (("sample_bounds", "samples"), ("profile_bounds", "times")):
        before = np.cumsum([0] + [len(array) for array in columns[values][:-1]])
        shifted = [array[1:] + shift for array, shift in zip(columns[bounds], before, strict=True)]
        columns[bounds] = [np.zeros(1, np.int64), *shifted]
    return Durations(freeze(Lowered(**{name: np.concatenate(arrays) for name, arrays in columns.items()})))


def means(lowered: Lowered) -> Floats:
    """The expected seconds of work of each worker's jobs."""
    result: Floats = lowered.p[:, 0].copy()  # fixed, exponential, gamma
    a, b = lowered.p[:, 0], lowered.p[:, 1]
    with np.errstate(over="ignore"):
        of = lowered.kind == LOGNORMAL
        result[of] *= np.exp(b[of] ** 2 / 2)
        of = lowered.kind == UNIFORM
        result[of] += (b[of] - a[of]) / 2
        of = lowered.kind == TRUNCATED_NORMAL
        result[of] += _truncation(a[of], b[of])
        of = lowered.kind == PARETO
        heavy = np.maximum(b[of], 1.0)
        result[of] = np.divide(a[of] * heavy, heavy - 1, out=np.full(len(heavy), np.inf), where=heavy > 1)
        of = lowered.kind == MEASURED
        if of.any():
            starts = lowered.sample_bounds[:-1][of]
            counts = np.diff(lowered.sample_bounds)[of]
            result[of] = np.add.reduceat(lowered.samples, starts) / counts
    result.flags.writeable = False
    return result


def _truncation(mean: Floats, std: Floats) -> Floats:
    """By how much the mean grows when numbers below 0 go: std · φ(α) / (1 - Φ(α)) at α = -mean / std."""
    from scipy.special import erfcx

    spread = std > 0
    ratio = np.divide(mean, std, out=np.full(len(mean), np.inf), where=spread)
    growth: Floats = std * np.sqrt(2 / np.pi) / erfcx(-ratio / np.sqrt(2))
    return growth
