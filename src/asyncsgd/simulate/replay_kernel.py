"""The numbers along a schedule, for W runs ("lanes") at once, compiled.

Lane l of every array is one run with a step size and a seed of its own. Arrays are (dimension, W) with the lanes last,
so that one instruction serves several lanes; W is the length of the tuple ``width``, which the compiler knows. No lane
ever sees another, and every lane rounds in the order of `asyncsgd.core`, so it equals a single run bit for bit.

``advance`` is plain Python on purpose: compiled as it stands it serves the built-in tasks and is cached; with its
global ``gradient`` exchanged it serves a user's own (see `asyncsgd.simulate.replay`).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncsgd.compiled.jit import borrowing
from asyncsgd.compiled.random import mix, output
from asyncsgd.core.random import GAMMA
from asyncsgd.tasks.kernels import full_gradient, gradient, loss

SEED_GAMMA = np.uint64(GAMMA)
LANES = 1024  # of the fixed-order norm, not of runs

NO_STOP, MEAN_BELOW, ALL_BELOW = range(3)
LOSS, GRADIENT_NORM, DISTANCE = range(3)


class Path(NamedTuple):
    """What every lane does at iteration t; the same for all lanes."""

    job: NDArray[np.int64]
    worker: NDArray[np.int32]
    read: NDArray[np.int32]
    """Slot of the point that the arriving gradient was computed at."""
    write: NDArray[np.int32]
    """Slot that x^(t+1) is kept in, or -1 if no job needs it."""
    weight: NDArray[np.float64]
    """Of the step; 0 drops the arrival."""
    flush: NDArray[np.uint8]
    """Whether the model moves."""


class Rule(NamedTuple):
    """The method, as numbers."""

    buffer: int
    clip: float
    """0 for none."""
    momentum: int
    """0 none, 1 heavy ball, 2 Nesterov."""
    beta: float
    local_steps: int
    """0: one gradient; else so many local steps."""
    local_stepsize: float
    scaled: int
    proximal: float
    interpolate: int


class Watch(NamedTuple):
    """What is measured, and when a lane has had enough."""

    every: int
    wanted: NDArray[np.uint8]
    """Whether loss, gradient norm, distance are wanted."""
    optimum: NDArray[np.float64]
    stop: int
    metric: int
    target: float
    window: int
    huge: float
    """A metric above this, or not a number, is divergence."""


class Lanes(NamedTuple):
    """Everything that changes, one column per lane."""

    x: NDArray[np.float64]
    points: NDArray[np.float64]
    """(slots, dimension, W)."""
    total: NDArray[np.float64]
    m: NDArray[np.float64]
    g: NDArray[np.float64]
    y: NDArray[np.float64]
    scratch: NDArray[np.float64]
    small: NDArray[np.float64]
    """(8, W): workspace for one number per lane."""
    fold: NDArray[np.float64]
    """(lanes of the norm, W)."""
    ring: NDArray[np.float64]
    """(window, W): the last values of the stopping metric."""
    seeds: NDArray[np.uint64]
    """(3, W): where the seeds of jobs start, the present seed, and where those of its local steps start."""
    stepsize: NDArray[np.float64]
    held: NDArray[np.int64]
    """One number: how many updates the buffer holds."""
    below: NDArray[np.int64]
    """How many values in a row were at or below the target."""
    stopped: NDArray[np.int64]
    """Iteration at which the target was reached, or -1."""
    diverged: NDArray[np.int64]
    """Iteration at which it was seen to diverge, or -1."""
    metrics: NDArray[np.float64]
    """(records, 3, W)."""


@borrowing
def _norm(g: Any, fold: Any, largest: Any, out: Any, width: Any) -> Any:
    """`core.vectors.norm` per lane; where squares overflow, the lane is divided by its largest element first."""
    for lane in range(len(width)):
        largest[lane] = 1.0
    _sum_of_squares(g, fold, largest, width)
    again = False
    for lane in range(len(width)):
        out[lane] = np.sqrt(fold[0, lane])
        if out[lane] == np.inf:
            largest[lane] = 0.0
            for i in range(g.shape[0]):
                largest[lane] = max(largest[lane], abs(g[i, lane]))
            again = again or largest[lane] < np.inf
    if again:
        _sum_of_squares(g, fold, largest, width)
        for lane in range(len(width)):
            if 1.0 < largest[lane] < np.inf:
                out[lane] = largest[lane] * np.sqrt(fold[0, lane])


@borrowing
def _sum_of_squares(g: Any, fold: Any, divisor: Any, width: Any) -> Any:
    rows = fold.shape[0]
    for k in range(rows):
        for lane in range(len(width)):
            fold[k, lane] = 0.0
    for i in range(g.shape[0]):
        k = i % rows
        for lane in range(len(width)):
            value = g[i, lane] / divisor[lane]
            fold[k, lane] += value * value
    while rows > 1:
        rows //= 2
        for k in range(rows):
            for lane in range(len(width)):
                fold[k, lane] += fold[k + rows, lane]


@borrowing
def _clip(g: Any, bound: Any, lanes: Any, width: Any) -> Any:
    length = lanes.small[0]
    _norm(g, lanes.fold, lanes.small[1], length, width)
    for lane in range(len(width)):
        length[lane] = bound / length[lane] if length[lane] > bound else 1.0
    for i in range(g.shape[0]):
        for lane in range(len(width)):
            g[i, lane] = g[i, lane] * length[lane]


@borrowing
def _move(lanes: Any, rule: Any, direction: Any, weight: Any, width: Any) -> Any:
    """X ← x - step · direction, or with momentum."""
    x, m, step = lanes.x, lanes.m, lanes.small[1]
    for lane in range(len(width)):
        step[lane] = lanes.stepsize[lane] / rule.buffer if rule.buffer else lanes.stepsize[lane] * weight
    if rule.momentum == 0:
        for i in range(x.shape[0]):
            for lane in range(len(width)):
                x[i, lane] = x[i, lane] - step[lane] * direction[i, lane]
        return
    for i in range(x.shape[0]):
        for lane in range(len(width)):
            m[i, lane] = m[i, lane] * rule.beta + direction[i, lane]
    if rule.momentum == 1:
        for i in range(x.shape[0]):
            for lane in range(len(width)):
                x[i, lane] = x[i, lane] - step[lane] * m[i, lane]
    else:
        for i in range(x.shape[0]):
            for lane in range(len(width)):
                x[i, lane] = x[i, lane] - step[lane] * (direction[i, lane] + rule.beta * m[i, lane])


@borrowing
def _gather(lanes: Any, rule: Any, weight: Any, flush: Any, width: Any) -> Any:
    """Use the update in lanes.g: at once, or through the buffer."""
    g, total = lanes.g, lanes.total
    if rule.buffer == 0:
        _move(lanes, rule, g, weight, width)
        return
    if lanes.held[0] == 0:
        for i in range(g.shape[0]):
            for lane in range(len(width)):
                total[i, lane] = g[i, lane] * weight
    else:
        for i in range(g.shape[0]):
            for lane in range(len(width)):
                total[i, lane] = total[i, lane] - (-weight) * g[i, lane]
    lanes.held[0] += 1
    if flush:
        lanes.held[0] = 0
        _move(lanes, rule, total, 1.0, width)


@borrowing
def _judge(lanes: Any, watch: Any, t: Any, record: Any, width: Any) -> Any:
    """Note divergence and reached targets after the measurement ``record``, taken at iteration t."""
    values = lanes.metrics[record]
    for lane in range(len(width)):
        if lanes.diverged[lane] >= 0:
            continue
        for metric in range(3):
            if watch.wanted[metric] and not values[metric, lane] <= watch.huge:
                lanes.diverged[lane] = t
        if watch.stop == NO_STOP or lanes.stopped[lane] >= 0 or lanes.diverged[lane] >= 0:
            continue
        value = values[watch.metric, lane]
        lanes.ring[record % watch.window, lane] = value
        if watch.stop == ALL_BELOW:
            lanes.below[lane] = lanes.below[lane] + 1 if value <= watch.target else 0
            if lanes.below[lane] == watch.window:
                lanes.stopped[lane] = t - (watch.window - 1) * watch.every
        elif record + 1 >= watch.window and value <= watch.target * watch.window:
            mean = 0.0
            for k in range(watch.window):  # the sum is made anew, oldest first: a running one would never get small
                mean += lanes.ring[(record + 1 + k) % watch.window, lane]
            if mean / watch.window <= watch.target:
                lanes.stopped[lane] = t


@borrowing
def _finished(lanes: Any, watch: Any, width: Any) -> Any:
    for lane in range(len(width)):
        if lanes.diverged[lane] < 0 and (watch.stop == NO_STOP or lanes.stopped[lane] < 0):
            return False
    return True


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
    """Iterations t0 to t1 of all lanes; the iteration reached, which is less than t1 once every lane has had enough.

    With ``measured`` the metrics are taken here, every ``watch.every`` iterations; otherwise the caller does.
    """
    d = lanes.x.shape[0]
    for t in range(t0, t1):
        weight = path.weight[t]
        if weight != 0.0:
            worker = path.worker[t]
            point = lanes.points[path.read[t]]
            if stochastic:
                for lane in range(len(width)):
                    lanes.seeds[1, lane] = output(lanes.seeds[0, lane], path.job[t])
            if rule.local_steps == 0:
                gradient(data, point, worker, lanes.seeds[1], lanes.g, lanes.scratch, width)
            else:
                for i in range(d):
                    for lane in range(len(width)):
                        lanes.y[i, lane] = point[i, lane]
                for lane in range(len(width)):
                    lanes.seeds[2, lane] = mix(lanes.seeds[1, lane] + SEED_GAMMA)
                for q in range(rule.local_steps):
                    for lane in range(len(width)):
                        lanes.seeds[1, lane] = output(lanes.seeds[2, lane], q)
                    gradient(data, lanes.y, worker, lanes.seeds[1], lanes.g, lanes.scratch, width)
                    if rule.proximal != 0.0:
                        for i in range(d):
                            for lane in range(len(width)):
                                lanes.g[i, lane] = lanes.g[i, lane] + rule.proximal * (
                                    lanes.y[i, lane] - point[i, lane]
                                )
                    for i in range(d):
                        for lane in range(len(width)):
                            lanes.y[i, lane] = lanes.y[i, lane] - rule.local_stepsize * lanes.g[i, lane]
                for i in range(d):
                    for lane in range(len(width)):
                        lanes.g[i, lane] = point[i, lane] - lanes.y[i, lane]
                if rule.scaled:
                    for i in range(d):
                        for lane in range(len(width)):
                            lanes.g[i, lane] = lanes.g[i, lane] / rule.local_stepsize
            if rule.interpolate:
                for i in range(d):
                    for lane in range(len(width)):
                        lanes.g[i, lane] = lanes.g[i, lane] + (lanes.x[i, lane] - point[i, lane])
            if rule.clip != 0.0:
                _clip(lanes.g, rule.clip, lanes, width)
            _gather(lanes, rule, weight, path.flush[t], width)
        slot = path.write[t]
        if slot >= 0:
            for i in range(d):
                for lane in range(len(width)):
                    lanes.points[slot, i, lane] = lanes.x[i, lane]
        if measured and (t + 1) % watch.every == 0:
            record = (t + 1) // watch.every
            values = lanes.metrics[record]
            if watch.wanted[0]:
                loss(data, lanes.x, values[0], lanes.scratch, width)
            if watch.wanted[1]:
                full_gradient(data, lanes.x, lanes.g, lanes.scratch, width)
                for lane in range(len(width)):
                    values[1, lane] = 0.0
                for i in range(d):
                    for lane in range(len(width)):
                        values[1, lane] += lanes.g[i, lane] * lanes.g[i, lane]
                for lane in range(len(width)):
                    values[1, lane] = np.sqrt(values[1, lane])
            if watch.wanted[2]:
                for lane in range(len(width)):
                    values[2, lane] = 0.0
                for i in range(d):
                    for lane in range(len(width)):
                        gap = lanes.x[i, lane] - watch.optimum[i]
                        values[2, lane] += gap * gap
                for lane in range(len(width)):
                    values[2, lane] = np.sqrt(values[2, lane])
            _judge(lanes, watch, t + 1, record, width)
            if _finished(lanes, watch, width):
                return t + 1
    return t1


advance_built_in = borrowing(advance)
