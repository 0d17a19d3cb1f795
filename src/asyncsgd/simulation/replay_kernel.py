"""Compute the numbers along a schedule for W runs ("lanes") at once, in compiled code.

Lane l of every array is one run with its own step size and seed. Arrays are (dimension, W) with the lanes last, so that
one instruction serves several lanes; W is the length of the tuple ``width``, which the compiler knows. Lanes are
independent, and every lane rounds in the order of `asyncsgd.core`, so it equals a single run bit for bit.

``advance`` is plain Python on purpose. Compiled unchanged, it is for the built-in tasks and is cached. With its global
``gradient`` replaced, it is for a user's own task (see `asyncsgd.simulation.compiled_replay`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncsgd.compiled.jit import borrowing, inlined
from asyncsgd.compiled.lanes import load, pointer, splat, store
from asyncsgd.compiled.random import mix, output
from asyncsgd.core.random import GAMMA
from asyncsgd.tasks.kernels import distance, full_gradient, gradient, loss, norm

# What follows from the arrivals before any number is known: versions, flushes, and where points are kept.


@borrowing
def versions(iteration: Any, weight: Any, table: Any, size: Any, version: Any, flush: Any) -> Any:
    """Follow the buffer of ``size`` along the arrivals; weights come from the table by staleness if it has entries.

    ``iteration`` is that of each arriving gradient's point; ``version`` (T + 1) and ``flush`` are written.
    """
    held = 0
    version[0] = 0
    for t in range(iteration.shape[0]):
        if table.shape[0] > 0:
            weight[t] = table[version[t] - version[iteration[t]]]
        flush[t] = 0
        if weight[t] != 0.0:
            held += 1
            if held == size:
                held = 0
                flush[t] = 1
        version[t + 1] = version[t] + flush[t]


@borrowing
def slots(iteration: Any, weight: Any, version: Any, read: Any, write: Any, readers: Any, place: Any, free: Any) -> Any:
    """Choose a slot for each point; return (number of slots, slot of x^(0) or -1). A version keeps its slot until read.

    A point that no job will read goes to slot number ``used``, after the others.
    ``readers``, ``place`` have one entry per version, ``free`` one per arrival; ``read`` and ``write`` are written.
    """
    iterations = iteration.shape[0]
    for t in range(iterations):
        if weight[t] != 0.0:
            readers[version[iteration[t]]] += 1
    used, spare = 0, 0
    place[0] = -1
    if readers[0] > 0:
        place[0] = 0
        used = 1
    for t in range(iterations):
        read[t] = 0
        if weight[t] != 0.0:
            v = version[iteration[t]]
            read[t] = place[v]
            readers[v] -= 1
            if readers[v] == 0:
                free[spare] = place[v]
                spare += 1
        write[t] = -1
        v = version[t + 1]
        if v != version[t]:
            place[v] = -1
            if readers[v] > 0:
                if spare > 0:
                    spare -= 1
                    place[v] = free[spare]
                else:
                    place[v] = used
                    used += 1
                write[t] = place[v]
    for t in range(iterations):
        if write[t] < 0:
            write[t] = used
    return used, place[0]


SEED_GAMMA = np.uint64(GAMMA)
NO_STOP, MEAN_BELOW, ALL_BELOW = range(3)
LOSS, GRADIENT_NORM, DISTANCE = range(3)


class Path(NamedTuple):
    """What every lane does at iteration t; the same for all lanes."""

    job: NDArray[np.int64]
    worker: NDArray[np.int32]
    read: NDArray[np.int32]
    """The slot of the point that the arriving gradient was computed at."""
    write: NDArray[np.int32]
    """The slot of x^(t+1); the last one if no job will read it."""
    weight: NDArray[np.float64]
    """The weight of the step; 0 drops the arrival."""
    share: NDArray[np.float64]
    """The share of the lane's step size that the method's schedule gives to iteration t; 1 without one."""
    flush: NDArray[np.uint8]
    """Whether the model moves."""


class Watch(NamedTuple):
    """What is measured, and when a lane stops."""

    every: int
    column: NDArray[np.int64]
    """The places of loss, gradient norm and distance among the metrics taken, or -1."""
    optimum: NDArray[np.float64]
    stop: int
    metric: int
    target: float
    window: int
    huge: float
    """A metric above this limit, or not a number, counts as divergence."""


class Lanes(NamedTuple):
    """All arrays that change, one column per lane."""

    x: NDArray[np.float64]
    points: NDArray[np.float64]
    """(slots, dimension, W)."""
    total: NDArray[np.float64]
    m: NDArray[np.float64]
    g: NDArray[np.float64]
    y: NDArray[np.float64]
    scratch: NDArray[np.float64]
    small: NDArray[np.float64]
    """(2, W): workspace for one number per lane."""
    fold: NDArray[np.float64]
    """(lanes of the norm, W)."""
    ring: NDArray[np.float64]
    """(window, W): the last values of the stopping metric."""
    seeds: NDArray[np.uint64]
    """(3, W): where the seeds of jobs start, the present seed, and where those of its local steps start."""
    stepsize: NDArray[np.float64]
    """The step size, or the peak of its schedule."""
    held: NDArray[np.int64]
    """One number: the updates in the buffer."""
    below: NDArray[np.int64]
    """The number of consecutive values at or below the target."""
    stopped: NDArray[np.int64]
    """Iteration at which the target was reached, or -1."""
    diverged: NDArray[np.int64]
    """The iteration at which divergence was found, or -1."""
    metrics: NDArray[np.float64]
    """(records kept, metrics taken, W): record r is in row r modulo the number of records kept."""
    final: NDArray[np.float64]
    """(dimension, W): the model of a stopped lane, as it was at the stop."""
    final_metrics: NDArray[np.float64]
    """(metrics taken, W): the metrics of a stopped lane at the stop."""
    ended: NDArray[np.int64]
    """The iteration at which the lane stopped, or -1."""


@inlined
def _clip(lanes: Any, bound: Any, width: Any) -> Any:
    """Scale g by min(1, bound / ‖g‖), with the norm of `core.vectors.norm`, also if squares overflow."""
    w, d = len(width), lanes.g.shape[0]
    for lane in range(w):
        lanes.small[1, lane] = 1.0
    _sum_of_squares(lanes, width)
    again = False
    for lane in range(w):
        length = np.sqrt(lanes.fold[0, lane])
        lanes.small[0, lane] = length
        if length == np.inf:
            largest = 0.0
            for i in range(d):
                largest = max(largest, abs(lanes.g[i, lane]))
            lanes.small[1, lane] = largest
            again = again or largest < np.inf
    if again:
        _sum_of_squares(lanes, width)
        for lane in range(w):
            if 1.0 < lanes.small[1, lane] < np.inf:
                lanes.small[0, lane] = lanes.small[1, lane] * np.sqrt(lanes.fold[0, lane])
    for lane in range(w):
        length = lanes.small[0, lane]
        lanes.small[0, lane] = bound / length if length > bound else 1.0
    factor = load(lanes.small, 0, width)
    for i in range(d):
        store(lanes.g, i * w, load(lanes.g, i * w, width) * factor)


@inlined
def _sum_of_squares(lanes: Any, width: Any) -> Any:
    """Sum the squares of g divided by row 1 of ``small`` into row 0 of ``fold``."""
    w, rows, divisor = len(width), lanes.fold.shape[0], load(lanes.small, len(width), width)
    for k in range(rows):
        store(lanes.fold, k * w, splat(0.0, width))
    for i in range(lanes.g.shape[0]):
        k = (i % rows) * w
        value = load(lanes.g, i * w, width) / divisor
        store(lanes.fold, k, load(lanes.fold, k, width) + value * value)
    while rows > 1:
        rows //= 2
        for k in range(rows):
            total = load(lanes.fold, k * w, width) + load(lanes.fold, (k + rows) * w, width)
            store(lanes.fold, k * w, total)


@inlined
def _use(lanes: Any, rule: Any, weight: Any, share: Any, flush: Any, keep: Any, width: Any) -> Any:
    """Move the model by the update in g, at once or when the buffer is full. ``keep`` also gets x^(t+1)."""
    w, d = len(width), lanes.x.shape[0]
    step = load(lanes.stepsize, 0, width) * share
    direction = pointer(lanes.g, 0)
    if rule.buffer == 0:
        step = step * weight
    else:
        direction = pointer(lanes.total, 0)
        if lanes.held[0] == 0:
            for i in range(d):
                store(lanes.total, i * w, load(lanes.g, i * w, width) * weight)
        else:
            for i in range(d):
                store(lanes.total, i * w, load(lanes.total, i * w, width) + load(lanes.g, i * w, width) * weight)
        lanes.held[0] = 0 if flush else lanes.held[0] + 1
        if flush:
            size = splat(float(rule.buffer), width)
            for i in range(d):
                store(lanes.total, i * w, load(lanes.total, i * w, width) / size)
    if flush:
        if rule.momentum == 0:
            for i in range(d):
                value = load(lanes.x, i * w, width) - step * load(direction, i * w, width)
                store(lanes.x, i * w, value)
                store(lanes.points, keep + i * w, value)
        else:
            for i in range(d):
                g = load(direction, i * w, width)
                m = load(lanes.m, i * w, width) * rule.beta + g
                store(lanes.m, i * w, m)
                if rule.momentum == 2:
                    m = g + m * rule.beta
                value = load(lanes.x, i * w, width) - step * m
                store(lanes.x, i * w, value)
                store(lanes.points, keep + i * w, value)


@inlined
def _local_steps(data: Any, lanes: Any, rule: Any, worker: Any, point: Any, width: Any) -> Any:
    """Take Q local steps from the point; g becomes how far they moved."""
    w, d = len(width), lanes.x.shape[0]
    for i in range(d):
        store(lanes.y, i * w, load(point, i * w, width))
    for lane in range(w):
        lanes.seeds[2, lane] = mix(lanes.seeds[1, lane] + SEED_GAMMA)
    for q in range(rule.local_steps):
        for lane in range(w):
            lanes.seeds[1, lane] = output(lanes.seeds[2, lane], q)
        gradient(data, lanes.y, worker, pointer(lanes.seeds, w), lanes.g, lanes.scratch, width)
        for i in range(d):
            y, g = load(lanes.y, i * w, width), load(lanes.g, i * w, width)
            if rule.proximal != 0.0:
                g = g + (y - load(point, i * w, width)) * rule.proximal
            store(lanes.y, i * w, y - g * rule.local_stepsize)
    for i in range(d):
        moved = load(point, i * w, width) - load(lanes.y, i * w, width)
        if rule.scaled:
            moved = moved / splat(rule.local_stepsize, width)
        store(lanes.g, i * w, moved)


@inlined
def judge(lanes: Any, watch: Any, t: Any, record: Any, width: Any) -> Any:
    """Record divergence and reached targets after measurement ``record`` at iteration t; return True if all are done.

    A stopped lane continues with its block, but its model and metrics at the stop are kept and it is not judged again.
    """
    w, row = len(width), record % lanes.metrics.shape[0]
    done = 0
    for lane in range(w):
        if lanes.ended[lane] >= 0:
            done += 1
            continue
        for column in range(lanes.metrics.shape[1]):
            if not lanes.metrics[row, column, lane] <= watch.huge:
                lanes.diverged[lane] = t
        if watch.stop != NO_STOP and lanes.diverged[lane] < 0:
            value = lanes.metrics[row, watch.column[watch.metric], lane]
            lanes.ring[record % watch.window, lane] = value
            if watch.stop == ALL_BELOW:
                lanes.below[lane] = lanes.below[lane] + 1 if value <= watch.target else 0
                if lanes.below[lane] == watch.window:
                    lanes.stopped[lane] = t - (watch.window - 1) * watch.every
            elif record + 1 >= watch.window and value <= watch.target * watch.window:
                mean = 0.0
                for k in range(watch.window):  # summed again, oldest first: a running sum would keep rounding errors
                    mean += lanes.ring[(record + 1 + k) % watch.window, lane]
                if mean / watch.window <= watch.target:
                    lanes.stopped[lane] = t
        if lanes.diverged[lane] >= 0 or lanes.stopped[lane] >= 0:
            done += 1
            lanes.ended[lane] = t
            for i in range(lanes.x.shape[0]):
                lanes.final[i, lane] = lanes.x[i, lane]
            for column in range(lanes.metrics.shape[1]):
                lanes.final_metrics[column, lane] = lanes.metrics[row, column, lane]
    return done == w


def advance(
    data: Any,
    stochastic: Any,
    measured: Any,
    path: Any,
    rule: Any,
    watch: Any,
    lanes: Any,
    t0: Any,
    t1: Any,
    width: Any,
) -> Any:
    """Run iterations t0 to t1 of all lanes; return the iteration reached, less than t1 if every lane has stopped.

    With ``measured`` the metrics are taken here, every ``watch.every`` iterations; otherwise the caller does.
    """
    w, d = len(width), lanes.x.shape[0]
    due = watch.every - t0 % watch.every
    for t in range(t0, t1):
        weight = path.weight[t]
        keep = path.write[t] * d * w  # the last slot is for points that no job will read
        if weight != 0.0:
            worker = path.worker[t]
            point = pointer(lanes.points, path.read[t] * d * w)
            if stochastic:
                for lane in range(w):
                    lanes.seeds[1, lane] = output(lanes.seeds[0, lane], path.job[t])
            if rule.local_steps == 0:
                gradient(data, point, worker, pointer(lanes.seeds, w), lanes.g, lanes.scratch, width)
            else:
                _local_steps(data, lanes, rule, worker, point, width)
            if rule.interpolate:
                for i in range(d):
                    drift = load(lanes.x, i * w, width) - load(point, i * w, width)
                    store(lanes.g, i * w, load(lanes.g, i * w, width) + drift)
            if rule.clip != 0.0:
                _clip(lanes, rule.clip, width)
            _use(lanes, rule, weight, path.share[t], path.flush[t], keep, width)
        due -= 1
        if measured and (due == 0 or t + 1 == path.job.shape[0]):  # the end is always measured
            due = watch.every
            record = (t + watch.every) // watch.every
            row = record % lanes.metrics.shape[0]
            values = pointer(lanes.metrics, row * lanes.metrics.shape[1] * w)
            if watch.column[LOSS] >= 0:
                loss(data, lanes.x, pointer(values, watch.column[LOSS] * w), lanes.scratch, width)
            if watch.column[GRADIENT_NORM] >= 0:
                full_gradient(data, lanes.x, lanes.g, lanes.scratch, width)
                norm(lanes.g, d, pointer(values, watch.column[GRADIENT_NORM] * w), width)
            if watch.column[DISTANCE] >= 0:
                distance(lanes.x, watch.optimum, d, pointer(values, watch.column[DISTANCE] * w), width)
            if judge(lanes, watch, t + 1, record, width):
                return t + 1
    return t1


advance_built_in = inlined(advance)
