"""Draw the duration of a job and compute its end, in compiled code. The schedule and ``Durations`` call these.

Both handle the common case first and call other functions for the rest, so that the common case is small and inlined.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from asyncsgd.compiled.jit import borrowing, njit
from asyncsgd.compiled.random import below, derive, normal_pair, output, uniform
from asyncsgd.simulation.durations import base

FIXED, EXPONENTIAL, GAMMA, LOGNORMAL = base.FIXED, base.EXPONENTIAL, base.GAMMA, base.LOGNORMAL
UNIFORM, TRUNCATED_NORMAL, PARETO = base.UNIFORM, base.TRUNCATED_NORMAL, base.PARETO
STREAM = np.uint64(0xD07A)  # keeps the draws of durations apart from those of jobs, dispatch and noise
OUTAGE = np.uint64(0x0FF)  # keeps the draws of outages apart from all others


@borrowing
def draw(lowered: Any, worker: Any, k: Any, seed: Any) -> Any:
    """Return the seconds of work of the worker's k-th job, from the stream that starts at (seed, worker, k)."""
    kind = lowered.kind[worker]
    seconds = lowered.p[worker, 0]
    if kind != FIXED:
        first, last = lowered.sample_bounds[worker], lowered.sample_bounds[worker + 1]
        state = output(output(derive(seed, STREAM), worker), k)
        seconds = at_random(kind, seconds, lowered.p[worker, 1], lowered.samples, first, last, state)
    return seconds


@borrowing
def at_random(kind: Any, a: Any, b: Any, samples: Any, first: Any, last: Any, state: Any) -> Any:
    """Draw one duration of this kind; a and b are its parameters in the order of its constructor."""
    if kind == EXPONENTIAL:
        state, u = uniform(state)
        return -a * math.log(1.0 - u)  # 1 - u is exact, and log is twice as fast as log1p
    if kind == GAMMA:
        return a / b * standard_gamma(b, state)
    if kind == LOGNORMAL:
        state, z, _ = normal_pair(state)
        return a * math.exp(b * z)
    if kind == UNIFORM:
        state, u = uniform(state)
        return a + (b - a) * (1.0 - u)
    if kind == TRUNCATED_NORMAL:
        while True:  # a > 0, so at least half of the draws are good
            state, z, other = normal_pair(state)
            if a + b * z > 0.0:
                return a + b * z
            if a + b * other > 0.0:
                return a + b * other
    if kind == PARETO:
        state, u = uniform(state)
        return a * (1.0 - u) ** (-1.0 / b)
    state, which = below(state, last - first)
    return samples[first + which]


@njit(cache=True)
def standard_gamma(shape: Any, state: Any) -> Any:
    """Draw a gamma number of this shape and scale 1 (Marsaglia and Tsang, 2000)."""
    boost = 1.0
    if shape < 1.0:  # G(shape) = G(shape + 1) · U^(1 / shape)
        state, u = uniform(state)
        boost = (1.0 - u) ** (1.0 / shape)
        shape += 1.0
    d = shape - 1.0 / 3.0
    c = 1.0 / math.sqrt(9.0 * d)
    while True:
        state, z, _ = normal_pair(state)
        v = (1.0 + c * z) ** 3
        if v > 0.0:
            state, u = uniform(state)
            u = 1.0 - u
            if u < 1.0 - 0.0331 * z**4 or math.log(u) < 0.5 * z * z + d - d * v + d * math.log(v):
                return d * v * boost


@borrowing
def finish(lowered: Any, worker: Any, begin: Any, work: Any) -> Any:
    """Return when ``work`` seconds of work begun at ``begin`` are done: begin + work if the speed never changes."""
    end = begin + work
    if len(lowered.times) > 0:
        first, last = lowered.profile_bounds[worker], lowered.profile_bounds[worker + 1]
        if first < last:
            end = along(lowered.times, lowered.speeds, first, last, lowered.period[worker], begin, work)
    return end


@borrowing
def along(times: Any, speeds: Any, first: Any, last: Any, period: Any, begin: Any, work: Any) -> Any:
    """Return when the work is done at the speeds of the pieces first..last-1; inf if never."""
    if math.isinf(begin) or math.isinf(work):
        return np.inf
    if period == 0.0:
        time, _ = walk(times, speeds, first, last, 0.0, np.inf, begin, work)
        return time
    cycle = np.floor(begin / period)  # math.floor would give an integer, which overflows
    if cycle * period > begin:
        cycle -= 1.0
    elif (cycle + 1.0) * period <= begin:
        cycle += 1.0
    time, left = walk(times, speeds, first, last, cycle * period, (cycle + 1.0) * period, begin, work)
    if left <= 0.0:
        return time
    whole = times[first]  # the work done in one period
    for k in range(first, last):
        whole += speeds[k] * ((times[k + 1] if k + 1 < last else period) - times[k])
    if whole <= 0.0:
        return np.inf
    skipped = max(0.0, np.ceil(left / whole) - 1.0)
    left = min(max(left - skipped * whole, 0.0), whole)
    cycle += 1.0 + skipped
    base = cycle * period
    time, left = walk(times, speeds, first, last, base, (cycle + 1.0) * period, max(base, begin), left)
    if left <= 0.0:
        return time
    # The work left is a rounding error: the work was done when the worker last moved in this period.
    k = last
    while k > first and speeds[k - 1] == 0.0:
        k -= 1
    return max(begin, base + times[k] if k < last else (cycle + 1.0) * period)


@borrowing
def walk(times: Any, speeds: Any, first: Any, last: Any, base: Any, end: Any, time: Any, left: Any) -> Any:
    """Work from ``time`` to ``end``, piece by piece, where piece k begins at base + times[k]: (time, work left)."""
    low, high = first, last
    while low < high:  # the first piece that begins after `time`
        middle = (low + high) // 2
        if base + times[middle] > time:
            high = middle
        else:
            low = middle + 1
    k = low
    while time < end:
        until = min(base + times[k], end) if k < last else end
        speed = speeds[k - 1] if k > first else 1.0
        if speed > 0.0:
            done = time + left / speed
            if done <= until:
                return done, 0.0
            left -= (until - time) * speed
            if left <= 0.0:  # by rounding
                return until, 0.0
        time = until
        k += 1
    return time, left


@njit(cache=True)
def outages(every: Any, lasting: Any, until: Any, seed: Any, bounds: Any, times: Any, fill: Any) -> Any:
    """Compute the begin and end of each worker's outages: first count them into ``bounds``, then ``fill`` the times."""
    root = derive(seed, OUTAGE)
    total = 0
    for worker in range(len(every)):
        state = output(root, worker)
        time = 0.0
        while True:
            state, u = uniform(state)
            begin = time - every[worker] * math.log(1.0 - u)
            if not begin < until:
                break
            state, u = uniform(state)
            time = begin - lasting[worker] * math.log(1.0 - u)
            if fill:
                times[total] = begin
                times[total + 1] = time
            total += 2
        bounds[worker + 1] = total
    return total


@njit(cache=True)
def multiply(times_a: Any, speeds_a: Any, bounds_a: Any, times_b: Any, speeds_b: Any, bounds_b: Any) -> Any:
    """Return the product of two profiles of each worker: (times, speeds, bounds)."""
    times = np.empty(len(times_a) + len(times_b))
    speeds = np.empty(len(times))
    bounds = np.zeros(len(bounds_a), np.int64)
    size = 0
    for worker in range(len(bounds) - 1):
        a, end_a = bounds_a[worker], bounds_a[worker + 1]
        b, end_b = bounds_b[worker], bounds_b[worker + 1]
        speed_a, speed_b = 1.0, 1.0
        while a < end_a or b < end_b:
            time = min(times_a[a] if a < end_a else np.inf, times_b[b] if b < end_b else np.inf)
            if a < end_a and times_a[a] == time:
                speed_a = speeds_a[a]
                a += 1
            if b < end_b and times_b[b] == time:
                speed_b = speeds_b[b]
                b += 1
            times[size], speeds[size] = time, speed_a * speed_b
            size += 1
        bounds[worker + 1] = size
    return times[:size].copy(), speeds[:size].copy(), bounds
