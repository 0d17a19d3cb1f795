"""Speeds that change over time: a worker's profile is a step function, and profiles multiply."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from asyncsgd.core import validate
from asyncsgd.core.errors import BadParameter
from asyncsgd.format import ends
from asyncsgd.simulation.durations.base import Durations, freeze
from asyncsgd.simulation.durations.columns import Floats, Ints, nonnegative, numbers

MOST = 10**8
"""The largest number of random outages of all workers together; more would not fit into memory."""


def with_speeds(
    durations: Durations, worker: int | Sequence[int], times: Any, speeds: Any, period: float | None
) -> Durations:
    """See ``Durations.with_speeds``."""
    workers = _workers(durations, worker)
    when, speed = np.atleast_1d(nonnegative("times", times)), np.atleast_1d(nonnegative("speeds", speeds))
    if len(when) != len(speed):
        fix = "pass one speed for each time, which holds from then on"
        raise BadParameter("speeds", ends(speed), f"has {len(speed)} values, but times has {len(when)}", fix)
    if not len(when):
        raise BadParameter("times", [], "is empty", "pass at least one time and a speed for it")
    later = np.diff(when) > 0
    if not later.all():
        place = int(np.argmin(later)) + 1
        raise BadParameter(f"times[{place}]", float(when[place]), "is not after the one before", "sort the times")
    if period is not None:
        validate.positive("period", period)
        if when[-1] >= period:
            fix = f"keep all times below period = {period}"
            raise BadParameter(f"times[{len(when) - 1}]", float(when[-1]), "lies outside the period", fix)
    return _apply(durations, workers, when, speed, 0.0 if period is None else float(period))


def offline(durations: Durations, worker: int | Sequence[int], windows: Sequence[tuple[float, float]]) -> Durations:
    """See ``Durations.offline``."""
    workers = _workers(durations, worker)
    fix = "pass a list of (begin, end) with 0 <= begin < end, such as [(10.0, 20.0)]"
    if not isinstance(windows, list | tuple | np.ndarray) or not len(windows):
        raise BadParameter("windows", windows, "is not a list of windows", fix)
    pairs: list[tuple[float, float]] = []
    for place, window in enumerate(windows):
        name = f"windows[{place}]"
        pair = numbers(name, window)
        if pair.shape != (2,) or not (0 <= pair[0] < pair[1] and math.isfinite(pair[0])):
            raise BadParameter(name, window, "is not a window", fix)
        pairs.append((float(pair[0]), float(pair[1])))
    pairs.sort()
    joined = [pairs[0]]
    for begin, end in pairs[1:]:
        if begin <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(end, joined[-1][1]))
        else:
            joined.append((begin, end))
    edges = [edge for window in joined for edge in window if math.isfinite(edge)]
    speeds = np.zeros(len(edges))
    speeds[1::2] = 1.0
    return _apply(durations, workers, np.array(edges), speeds, 0.0)


def with_outages(durations: Durations, every: Floats, lasting: Floats, until: float, seed: int) -> Durations:
    """See ``Durations.with_outages``."""
    from asyncsgd.simulation.durations import kernels

    validate.positive("until", until)
    validate.integer("seed", seed)
    expected = float(np.sum(until / (every + lasting)))
    if expected > MOST:
        fix = "choose an earlier `until` or a larger `every`"
        raise BadParameter("until", until, f"would make about {expected:.1e} outages", fix)
    bounds, word = np.zeros(durations.workers + 1, np.int64), np.uint64(seed % 2**64)
    total = kernels.outages(every, lasting, float(until), word, bounds, np.zeros(0), False)
    times = np.zeros(total)
    kernels.outages(every, lasting, float(until), word, bounds, times, True)
    speeds = np.zeros(total)
    speeds[1::2] = 1.0
    return _multiply(durations, times, speeds, bounds, np.zeros(durations.workers))


# ------------------------------------------------------------------------------------- inside


def _workers(durations: Durations, worker: Any) -> Ints:
    chosen = np.atleast_1d(np.asarray(worker))
    fix = f"pass one of 0..{durations.workers - 1}, or a list of them"
    if chosen.ndim != 1 or not chosen.size or chosen.dtype.kind not in "iu":
        raise BadParameter("worker", worker, "is not a worker", fix)
    for bad in chosen[(chosen < 0) | (chosen >= durations.workers)].tolist():
        raise BadParameter("worker", bad, "does not exist", fix)
    if len(np.unique(chosen)) != len(chosen):
        raise BadParameter("worker", ends(chosen), "names a worker twice", "name each worker once")
    return chosen.astype(np.int64)


def _apply(durations: Durations, workers: Ints, times: Floats, speeds: Floats, period: float) -> Durations:
    """Give the same profile to some workers."""
    counts, periods = np.zeros(durations.workers, np.int64), np.zeros(durations.workers)
    counts[workers], periods[workers] = len(times), period
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return _multiply(durations, np.tile(times, len(workers)), np.tile(speeds, len(workers)), bounds, periods)


def _multiply(durations: Durations, times: Floats, speeds: Floats, bounds: Ints, period: Floats) -> Durations:
    old = durations.lowered
    had, gets = np.diff(old.profile_bounds) > 0, np.diff(bounds) > 0
    for worker in np.flatnonzero(had & gets & (old.period != period)).tolist():
        one, two = (f"repeat every {p:g} s" if p else "do not repeat" for p in (old.period[worker], period[worker]))
        fix = "write the repetitions out as times and speeds, without a period"
        problem = f"has speeds that {one}, which cannot be multiplied with speeds that {two}"
        raise BadParameter("worker", worker, problem, fix)
    if had.any():
        from asyncsgd.simulation.durations import kernels

        times, speeds, bounds = kernels.multiply(old.times, old.speeds, old.profile_bounds, times, speeds, bounds)
    period = np.where(gets, period, old.period)
    return Durations(freeze(old._replace(times=times, speeds=speeds, profile_bounds=bounds, period=period)))
