"""The largest step that the theorems call safe for a run, with L estimated from its task."""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from asyncsgd.core.dispatch import FirstOf, Shuffled, Uniform
from asyncsgd.core.events import Vector
from asyncsgd.core.gather import Buffer, Each
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD, Momentum
from asyncsgd.core.steps import Constant, DelayAdaptive, DropAbove
from asyncsgd.core.work import Gradient
from asyncsgd.tasks.base import Task
from asyncsgd.theory import theorem1, theorem2, theorem3
from asyncsgd.theory.curvature import curvature, steepest
from asyncsgd.trace import Delays

BUDGET = 5.0
"""Seconds that estimating L may take. A search that does not fit is not begun: one cut short finds a smaller L."""
ROUNDS, FEWER = 8, 2
LARGE = 1_000_000
"""Numbers in a model from which on fewer directions are kept."""


def unjudged(method: Method) -> str | None:
    """What keeps the theorems from speaking about this method; None if nothing does.

    They speak about gradients used with plain steps. A buffer of b gives every gradient a step of η/b, up to b - 1
    updates after its arrival, and momentum β in the long run one of η/(1 - β): these are reduced to it.

    >>> from asyncsgd import methods, optimizers
    >>> unjudged(methods.minibatch_sgd(0.1)), unjudged(methods.async_sgd(0.1).using(optimizer=optimizers.momentum()))
    (None, None)
    >>> unjudged(methods.async_sgd(0.1).using(optimizer=optimizers.adamw()))
    'Adam chooses its own scale'
    """
    if not isinstance(method.work, Gradient):
        return "jobs of several local steps are no gradients"
    if method.transforms:
        return f"{type(method.transforms[0]).__name__} changes the updates"
    if not isinstance(method.aggregation, Each | Buffer):
        return f"{type(method.aggregation).__name__} uses old updates again"
    if not isinstance(method.optimizer, SGD | Momentum):
        return f"{type(method.optimizer).__name__} chooses its own scale"
    if not isinstance(method.step, Constant | DelayAdaptive | DropAbove):
        return f"no theorem is about {type(method.step).__name__}"
    return None


def safe_step(method: Method, delays: Delays, smoothness: float) -> float:
    """The largest ``stepsize`` of this method that is safe for these delays and this L, under its `conditions`."""
    known: dict[str, Any] = {"smoothness": smoothness, "gap": 1.0, "noise_variance": 0.0}
    late = _in_buffer(method)
    pair = (delays.concurrency + late, delays.maximum + late)
    if not isinstance(method.step, Constant):
        step = theorem2(max(pair[0], _whole(method, delays) + late), **known).max_step
    elif isinstance(method.dispatch, Uniform | Shuffled):
        step = theorem3(pair, heterogeneity=[0.0], worker_delays=[0.0], **known).max_step
    else:
        step = theorem1(pair, **known).max_step
    if isinstance(method.aggregation, Buffer):
        step *= method.aggregation.size
    if isinstance(method.optimizer, Momentum):
        step *= 1.0 - method.optimizer.beta
    return step


def conditions(method: Method, delays: Delays, *, heterogeneous: bool) -> tuple[str, ...]:
    """What the safe step of this method rests on beyond L and the delays, in words.

    >>> from asyncsgd import methods
    >>> from asyncsgd.trace import Trace
    >>> late = Trace.from_history(workers=[0, 1, 1, 1, 1], assigned=[0, 0, 1, 2, 3], arrived=[4, 0, 1, 2, 3]).delays
    >>> conditions(methods.delay_adaptive(0.1, rule="drop"), late, heterogeneous=False)
    ('updates with a delay of up to 4 get the whole step, for which Theorem 2 asks η <= 1/(4L·4)',)
    """
    found = []
    whole = _whole(method, delays)
    if whole > delays.concurrency:
        late = _in_buffer(method)
        waited = f", and {late} more in the buffer," if late else ""
        step = "η/(1 - β)" if isinstance(method.optimizer, Momentum) else "η"
        many = method.aggregation.size if isinstance(method.aggregation, Buffer) else 1
        asks = f"Theorem 2 asks {step} <= {many}/(4L·{whole + late:g})"
        found.append(f"updates with a delay of up to {whole:g}{waited} get the whole step, for which {asks}")
    if isinstance(method.optimizer, Momentum):
        found.append("momentum is counted as a step of η/(1 - β), which no theorem here covers")
    if heterogeneous and method.bias:
        found.append("the theorem takes the data of all workers to be alike, and here they differ")
    return tuple(found)


def _whole(method: Method, delays: Delays) -> float:
    """The longest delay up to which a threshold lets updates through with the whole step; 0 without a threshold.

    Theorem 2 asks η_t <= 1/(4L max(τ_C, τ_t)). The rule η·min(1, τ_C/τ_t) meets that for η <= 1/(4Lτ_C); a threshold
    θ > τ_C only for η <= 1/(4Lθ).
    """
    if not isinstance(method.step, DropAbove):
        return 0.0
    threshold = method.step.threshold
    return float(min(2 * delays.concurrency if threshold is None else threshold, delays.maximum))


def _in_buffer(method: Method) -> int:
    """By how many updates a buffer makes a gradient later, at most.

    A job may start while the buffer holds all but one of its updates: they move the model later than they arrived, so
    they count as in flight, and for the job as delay. Rounds start with an empty buffer.
    """
    if not isinstance(method.aggregation, Buffer):
        return 0
    rounds = isinstance(method.dispatch, FirstOf) and method.dispatch.clients == method.aggregation.size
    return 0 if rounds else method.aggregation.size - 1


def estimate_smoothness(task: Task, x: Vector, workers: list[int]) -> float | None:
    """L along the steepest direction found, at the start and at x: a lower estimate. None if gradients take too long.

    0 if what was found is not above what rounding gives: there is no curvature to be seen.
    At both, because a model that has blown up often lies where the loss is flat.
    """
    draws = [(worker, seed) for seed, worker in enumerate(workers[:4])]
    start, rounds = task.initial(), ROUNDS if len(x) <= LARGE else FEWER
    if _cost(len(draws), rounds, _seconds(task, start, draws[0])) > BUDGET:
        return None
    places = [start]
    if np.isfinite(x).all() and np.isfinite(task.update(x, *draws[0])).all():
        places.append(x)
    gradient: Any = np.mean([task.update(start, *draw) for draw in draws], axis=0, dtype=np.float64)
    length = float(np.linalg.norm(gradient))
    if not 0 < length < np.inf:
        return None
    found = 0.0
    for place in places:
        direction = steepest(task.update, place, draws, gradient / length, rounds)
        value = curvature(task.update, place, draws, direction, confidence=0.95).value
        if np.isfinite(value) and value > _rounding(task, place, draws[0]):
            found = max(found, value)
    return found


def _rounding(task: Task, x: Vector, draw: tuple[int, int]) -> float:
    """Ten times the curvature that rounding alone may give, as `asyncsgd.theory.curvature.differences` steps h."""
    precision = float(np.finfo(x.dtype).eps)
    size = float(np.linalg.norm(task.update(x, *draw).astype(np.float64)))
    return 20.0 * float(np.cbrt(precision**2)) * size / (1.0 + float(np.linalg.norm(x)))


def takes_long(seconds: float, workers: int) -> bool:
    """Return whether gradients that take this many seconds are too slow to estimate L."""
    return _cost(min(4, workers), FEWER, seconds) > BUDGET


def _cost(draws: int, rounds: int, seconds: float) -> float:
    """Return the seconds of an estimate: at two points, for every draw, two gradients in each round and once more."""
    return 2 * 2 * draws * (rounds + 1) * seconds


def _seconds(task: Task, x: Vector, draw: tuple[int, int]) -> float:
    """How long a gradient takes: the least of a few, as others compute here too. The first one only sets things up."""
    task.update(x, *draw)
    least, began = np.inf, time.monotonic()
    for done in range(1, 5):
        start = time.monotonic()
        task.update(x, *draw)
        now = time.monotonic()
        least = min(least, now - start)
        if done > 1 and now - began > BUDGET:
            break
    return least
