"""Durations from a formula or from samples. Arguments are one number for all workers, or one number per worker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.format import ends
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
from asyncsgd.simulation.durations.columns import Floats, Ints, broadcast, nonnegative, numbers, positive, seconds
from asyncsgd.simulation.durations.columns import seconds as _seconds  # `fixed` has an argument of that name


def measured(samples: Mapping[Any, Sequence[float]] | Sequence[Sequence[float]]) -> Durations:
    """Let a job of worker i take one of the times in ``samples[i]``, each equally likely.

    A list has one sequence per worker (their lengths may differ), an array one row per worker. The integer keys of a
    dict are sorted, other keys keep their order, and the workers are then numbered 0, 1, 2, ...

    Args:
        samples: The measured seconds of the jobs of each worker.

    >>> measured({7: [1.0, 3.0], 2: [5.0]}).means
    array([5., 2.])

    See docs/howto/durations.md for measured durations, networks, changing speeds and outages.
    """
    fix = "pass one sequence of seconds per worker, such as [[1.0, 1.2], [3.1]]"
    if isinstance(samples, np.ndarray) and samples.ndim == 2 and samples.size:
        rows, width = samples.shape
        values = seconds("samples", samples.ravel())
        return from_groups(values, np.arange(rows + 1, dtype=np.int64) * width)
    if isinstance(samples, Mapping):
        ordered = {key: samples[key] for key in in_order(list(samples))}
        names, parts = [f"samples[{key!r}]" for key in ordered], list(ordered.values())
    elif isinstance(samples, list | tuple):
        names, parts = [f"samples[{place}]" for place in range(len(samples))], list(samples)
    else:
        raise BadParameter("samples", ends(samples), "is neither a dict nor a list", fix)
    if not parts:
        raise BadParameter("samples", samples, "has no worker", fix)
    columns = []
    for name, part in zip(names, parts, strict=True):
        column = numbers(name, part)
        if not column.ndim or not column.size:
            raise BadParameter(name, part, "holds no sample", fix)
        columns.append(column)
    counts = np.fromiter(map(len, columns), np.int64, len(columns))
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    values = np.concatenate(columns)
    good = np.isfinite(values) & (values > 0)
    if not good.all():  # one test for all, because workers may be many
        place = int(np.argmin(good))
        owner = int(np.searchsorted(bounds, place, side="right")) - 1
        seconds(names[owner], columns[owner])
    return from_groups(values, bounds)


def from_groups(values: Floats, bounds: Ints) -> Durations:
    """Return durations where worker w owns ``values[bounds[w]:bounds[w + 1]]``. The caller has checked them."""
    return build(MEASURED, samples=values, bounds=bounds)


def from_pairs(workers: Any, values: Floats) -> Durations:
    """Return durations from rows (worker, seconds), grouped by worker and numbered as in ``measured``."""
    keys, first, which, counts = np.unique(workers, return_index=True, return_inverse=True, return_counts=True)
    if keys.dtype.kind not in "iu":  # not numbers: in order of appearance
        order = np.argsort(first)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        which, counts = place[which], counts[order]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return from_groups(values[np.argsort(which, kind="stable")], bounds)


def in_order(keys: list[Any]) -> list[Any]:
    """Return the keys, sorted if they are integers."""
    return sorted(keys) if all(isinstance(key, int | np.integer) for key in keys) else keys


def fixed(seconds: Any, *, workers: int | None = None) -> Durations:
    """Let every job of worker i take ``seconds[i]``.

    Args:
        seconds: The seconds of a mini-batch: one number per worker, or one for all.
        workers: The number of workers, if one number is given for all.

    >>> fixed([1.0, 16.0])
    <Durations: 2 workers, fixed>
    >>> fixed(1.0, workers=8).workers
    8

    See docs/howto/durations.md for measured durations, networks, changing speeds and outages.
    """
    return build(FIXED, *broadcast(workers, seconds=_seconds("seconds", seconds)))


def exponential(means: Any, *, workers: int | None = None) -> Durations:
    """Let jobs of worker i take independent exponential times of mean ``means[i]``: P(D > d) = exp(-d / mean).

    Args:
        means: The mean seconds of a mini-batch: one number per worker, or one for all.
        workers: The number of workers, if no argument has one number per worker.

    >>> exponential([1.0, 2.0]).means
    array([1., 2.])

    See docs/howto/durations.md for measured durations, networks, changing speeds and outages.
    """
    return build(EXPONENTIAL, *broadcast(workers, means=_seconds("means", means)))


def gamma(means: Any, shape: Any, *, workers: int | None = None) -> Durations:
    """Draw gamma times of mean ``means[i]``; their standard deviation is mean / √shape, and shape 1 is exponential.

    Args:
        means: The mean seconds of a mini-batch: one number per worker, or one for all.
        shape: The shape of the distribution, one number per worker or one for all. The larger it is, the less the times
            vary.
        workers: The number of workers, if no argument has one number per worker.

    >>> gamma(2.0, shape=4.0, workers=3)
    <Durations: 3 workers, gamma>

    See docs/howto/durations.md for measured durations, networks, changing speeds and outages.
    """
    columns = {"means": _seconds("means", means), "shape": positive("shape", shape)}
    return build(GAMMA, *broadcast(workers, **columns))


def lognormal(medians: Any, sigma: Any, *, workers: int | None = None) -> Durations:
    """Draw ``medians[i]`` · exp(``sigma`` · Z) with Z standard normal; the mean is median · exp(sigma² / 2).

    Args:
        medians: The median seconds of a mini-batch: one number per worker, or one for all.
        sigma: The standard deviation of the logarithm, one number per worker or one for all. 0 gives fixed times.
        workers: The number of workers, if no argument has one number per worker.

    >>> lognormal(2.0, sigma=[0.0, 1.0]).means.round(4)
    array([2.    , 3.2974])

    See docs/howto/durations.md for measured durations, networks, changing speeds and outages.
    """
    columns = {"medians": _seconds("medians", medians), "sigma": nonnegative("sigma", sigma)}
    return build(LOGNORMAL, *broadcast(workers, **columns))


def uniform(low: Any, high: Any, *, workers: int | None = None) -> Durations:
    """Draw uniformly from (``low[i]``, ``high[i]``]; ``low`` may be 0.

    Args:
        low: The lower end in seconds: one number per worker, or one for all.
        high: The upper end in seconds: one number per worker, or one for all.
        workers: The number of workers, if no argument has one number per worker.

    >>> uniform(0.0, [1.0, 3.0]).means
    array([0.5, 1.5])

    See docs/howto/durations.md for measured durations, networks, changing speeds and outages.
    """
    lows, highs = broadcast(workers, low=nonnegative("low", low), high=_seconds("high", high))
    good = lows <= highs
    if not good.all():
        first = int(np.argmin(good))
        fix = f"swap them (low = {float(lows[first])})"
        raise BadParameter(f"high[{first}]", float(highs[first]), "is below low", fix)
    return build(UNIFORM, lows, highs)


def truncated_normal(means: Any, std: Any, *, workers: int | None = None) -> Durations:
    """Draw from a normal of mean ``means[i]`` and standard deviation ``std[i]``, repeated until the result is above 0.

    So the true mean is larger than ``means[i]``; the property ``means`` of the result has it.

    Args:
        means: The mean seconds of the normal distribution: one number per worker, or one for all.
        std: Its standard deviation, one number per worker or one for all.
        workers: The number of workers, if no argument has one number per worker.

    >>> truncated_normal(1.0, std=[0.1, 1.0]).means.round(4)
    array([1.    , 1.2876])

    See docs/howto/durations.md for measured durations, networks, changing speeds and outages.
    """
    columns = {"means": _seconds("means", means), "std": nonnegative("std", std)}
    return build(TRUNCATED_NORMAL, *broadcast(workers, **columns))


def pareto(scale: Any, shape: Any, *, workers: int | None = None) -> Durations:
    """Draw Pareto times: at least ``scale[i]``, P(D > d) = (scale / d)^shape. The mean is infinite if shape <= 1.

    Args:
        scale: The least seconds of a mini-batch: one number per worker, or one for all.
        shape: The exponent of the tail, one number per worker or one for all. The smaller it is, the longer the longest
            jobs take.
        workers: The number of workers, if no argument has one number per worker.

    >>> pareto(1.0, shape=2.0, workers=2).means
    array([2., 2.])

    See docs/howto/durations.md for measured durations, networks, changing speeds and outages.
    """
    columns = {"scale": _seconds("scale", scale), "shape": positive("shape", shape)}
    return build(PARETO, *broadcast(workers, **columns))


def concatenate(parts: Sequence[Durations]) -> Durations:
    """Join several durations: the workers of the first, then those of the second, and so on.

    Args:
        parts: The durations to join, in the order of their workers.

    >>> concatenate([fixed([10.0] * 900), exponential(60.0, workers=100)])
    <Durations: 1000 workers (900 fixed, 100 exponential)>

    See docs/howto/durations.md for measured durations, networks, changing speeds and outages.
    """
    fix = "pass a list of durations, such as [fixed(1.0, workers=8), exponential([2.0])]"
    if not isinstance(parts, list | tuple) or not parts:
        raise BadParameter("parts", parts, "is not a list of durations", fix)
    for place, part in enumerate(parts):
        if not isinstance(part, Durations):
            raise BadParameter(f"parts[{place}]", part, "is not durations", fix)
    columns = {name: [getattr(part.lowered, name) for part in parts] for name in Lowered._fields}
    for bounds, values in (("sample_bounds", "samples"), ("profile_bounds", "times")):
        before = np.cumsum([0] + [len(array) for array in columns[values][:-1]])
        shifted = [array[1:] + shift for array, shift in zip(columns[bounds], before, strict=True)]
        columns[bounds] = [np.zeros(1, np.int64), *shifted]
    return Durations(freeze(Lowered(**{name: np.concatenate(arrays) for name, arrays in columns.items()})))


def means(lowered: Lowered) -> Floats:
    """Return the expected seconds of work of each worker's jobs."""
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
    """Return by how much the mean grows without numbers below 0: std · φ(α) / (1 - Φ(α)) at α = -mean / std."""
    from scipy.special import erfcx

    spread = std > 0
    ratio = np.divide(mean, std, out=np.full(len(mean), np.inf), where=spread)
    growth: Floats = std * np.sqrt(2 / np.pi) / erfcx(-ratio / np.sqrt(2))
    return growth
