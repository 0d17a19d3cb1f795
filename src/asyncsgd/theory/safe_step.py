"""The largest step that is safe for a run by the theorems, with L estimated from its task."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import Momentum
from asyncsgd.core.steps import DropAbove
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks.base import Task, gradient_of
from asyncsgd.theory.coverage import SECOND, Covered, bound, covering
from asyncsgd.theory.probing import curvature, steepest
from asyncsgd.trace import Delays

BUDGET = 5.0
"""Seconds that estimating L may take. A longer search is not started: if cut short, it would find a smaller L."""
ROUNDS, FEWER = 8, 2
LARGE = 1_000_000
"""The model size from which fewer directions are kept."""


def safe_step(method: Method, delays: Delays, smoothness: float) -> float:
    """Return the largest ``stepsize`` of a method that is safe for these delays and this L, under its `conditions`.

    ``covering(method, heterogeneous=False)`` must have found a theorem.

    >>> from asyncsgd import methods
    >>> from asyncsgd.trace import Trace
    >>> late = Trace.from_history(workers=[0, 1, 1, 1, 1], assigned=[0, 0, 1, 2, 3], arrived=[4, 0, 1, 2, 3]).delays
    >>> round(safe_step(methods.async_sgd(0.1), late, smoothness=1.0), 4)
    0.1768
    """
    covered = covering(method, heterogeneous=False)
    assert isinstance(covered, Covered), covered
    late = covered.late
    pair: tuple[float, float] = (delays.concurrency + late, delays.maximum + late)
    given = max(pair[0], _whole(method, delays) + late) if covered.theorem == SECOND else pair
    known = {"smoothness": smoothness, "gap": 1.0, "noise_variance": 0.0}
    return bound(covered, given, worker_delays=[0.0], **known).max_step * covered.scale


def conditions(method: Method, delays: Delays, *, heterogeneous: bool) -> tuple[str, ...]:
    """Return what the safe step of a method depends on beyond L and the delays, as sentences.

    >>> from asyncsgd import methods
    >>> from asyncsgd.trace import Trace
    >>> late = Trace.from_history(workers=[0, 1, 1, 1, 1], assigned=[0, 0, 1, 2, 3], arrived=[4, 0, 1, 2, 3]).delays
    >>> conditions(methods.delay_adaptive(0.1, rule="drop"), late, heterogeneous=False)
    ('updates with a delay of up to 4 get the whole step, for which Theorem 2 asks η <= 1/(4L·4)',)
    """
    found = []
    whole = _whole(method, delays)
    if whole > delays.concurrency:
        late = covered.late if isinstance(covered := covering(method, heterogeneous=False), Covered) else 0
        waited = f", and {late} more in the buffer," if late else ""
        step = "η/(1 - β)" if isinstance(method.optimizer, Momentum) else "η"
        many = method.aggregation.size if isinstance(method.aggregation, Buffer) else 1
        asks = f"Theorem 2 asks {step} <= {many}/(4L·{whole + late:g})"
        found.append(f"updates with a delay of up to {whole:g}{waited} get the whole step, for which {asks}")
    if isinstance(method.optimizer, Momentum):
        found.append("momentum is counted as a step of η/(1 - β), which no theorem here covers")
    if heterogeneous and method.bias:
        found.append("the theorem assumes that all workers have similar data, and here the data differ")
    return tuple(found)


def _whole(method: Method, delays: Delays) -> float:
    """Return the longest delay up to which a threshold gives updates the whole step; 0 without a threshold.

    Theorem 2 asks η_t <= 1/(4L max(τ_C, τ_t)). The rule η·min(1, τ_C/τ_t) meets that for η <= 1/(4Lτ_C); a threshold
    θ > τ_C only for η <= 1/(4Lθ).
    """
    if not isinstance(method.step, DropAbove):
        return 0.0
    threshold = method.step.threshold
    return float(min(2 * delays.concurrency if threshold is None else threshold, delays.maximum))


def estimate_smoothness(task: Task, x: Vector, workers: list[int]) -> float | None:
    """Return L along the steepest direction found, at the start and at x: a lower estimate. None if that is too slow.

    The result is 0 if the curvature found is not above that of rounding errors. Both points are used, because a model
    that has diverged is often where the loss is flat.
    """
    draws = [(worker, seed) for seed, worker in enumerate(workers[:4])]
    update = gradient_of(task)
    start, rounds = task.initial(), ROUNDS if len(x) <= LARGE else FEWER
    if _cost(len(draws), rounds, _seconds(task, start, draws[0])) > BUDGET:
        return None
    places = [start]
    if np.isfinite(x).all() and np.isfinite(update(x, *draws[0])).all():
        places.append(x)
    gradient: Any = np.mean([update(start, *draw) for draw in draws], axis=0, dtype=np.float64)
    length = float(np.linalg.norm(gradient))
    if not 0 < length < np.inf:
        return None
    found = 0.0
    for place in places:
        direction = steepest(update, place, draws, gradient / length, rounds)
        value = curvature(update, place, draws, direction, confidence=0.95).value
        if np.isfinite(value) and value > _rounding(task, place, draws[0]):
            found = max(found, value)
    return found


def _rounding(task: Task, x: Vector, draw: tuple[int, int]) -> float:
    """Return ten times the curvature that rounding alone may give, with the h of `asyncsgd.theory.probing`."""
    precision = float(np.finfo(x.dtype).eps)
    size = float(np.linalg.norm(gradient_of(task)(x, *draw).astype(np.float64)))
    return 20.0 * float(np.cbrt(precision**2)) * size / (1.0 + float(np.linalg.norm(x)))


def takes_long(seconds: float, workers: int) -> bool:
    """Return whether gradients that take this many seconds are too slow to estimate L."""
    return _cost(min(4, workers), FEWER, seconds) > BUDGET


def _cost(draws: int, rounds: int, seconds: float) -> float:
    """Return the seconds of an estimate: at two points, for every draw, two gradients in each round and once more."""
    return 2 * 2 * draws * (rounds + 1) * seconds


def _seconds(task: Task, x: Vector, draw: tuple[int, int]) -> float:
    """Return the seconds of a gradient: the least of a few, because the machine is busy. The first is a warm-up."""
    update = gradient_of(task)
    update(x, *draw)
    least, began = np.inf, time.monotonic()
    for done in range(1, 5):
        start = time.monotonic()
        update(x, *draw)
        now = time.monotonic()
        least = min(least, now - start)
        if done > 1 and now - began > BUDGET:
            break
    return least
