"""Which theorem covers a method, and the largest step that is safe for a run by it, with L estimated from its task."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.aggregation import Buffer, Each
from asyncsgd.core.dispatch import FirstOf, Shuffled, Uniform
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD, Momentum
from asyncsgd.core.parts import Reason
from asyncsgd.core.steps import Constant, DelayAdaptive, DropAbove
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Gradient
from asyncsgd.tasks.base import Task, gradient_of
from asyncsgd.theory.bounds import Bound, theorem1, theorem2, theorem3
from asyncsgd.theory.probing import curvature, steepest
from asyncsgd.trace import Delays

FIRST, SECOND, THIRD = "Theorem 1", "Theorem 2", "Theorem 3"


@dataclass(frozen=True)
class Covered:
    """The theorem that covers a method, and how the method is reduced to the theorem's setting."""

    theorem: str
    scale: float = 1.0
    """The method's largest step divided by the theorem's: K for a buffer of K, 1 - β for momentum β."""
    late: int = 0
    """The most updates by which a buffer delays a gradient; they count as in flight too."""

    @property
    def exact(self) -> bool:
        """Whether the theorem covers the method unchanged, so that its bound holds too."""
        return self.scale == 1.0 and self.late == 0


def covering(method: Method, *, heterogeneous: bool, changing: bool | None = None) -> Covered | Reason:
    """Return the theorem that covers a method, or the reason why none does.

    The theorems are about gradients used with plain steps. Two other cases are reduced to that: a buffer of K gives
    every gradient a step of η/K, up to K - 1 updates after its arrival, and momentum β amounts to a step of η/(1 - β).

    Theorems 1 and 3 need a constant step. If a schedule changes the step and the data are alike, Theorem 2 takes their
    place, because it allows any steps up to 1/(4L max(τ_C, τ_t)).

    Args:
        method: The method, made of any parts.
        heterogeneous: Whether the data differ between workers. Then no theorem covers a method that favours fast
            workers. Theorem 1 covers rounds, with the spread of the data as noise.
        changing: Whether the step size changed along the run. The default is whether the method has a schedule.

    >>> from asyncsgd import methods, optimizers
    >>> covering(methods.async_sgd(0.1).using(aggregation=Buffer(8)), heterogeneous=False)
    Covered(theorem='Theorem 1', scale=8.0, late=7)
    >>> str(covering(methods.async_sgd(0.1).using(optimizer=optimizers.adamw()), heterogeneous=False))
    'Adam chooses its own scale'
    >>> str(covering(methods.async_sgd(0.1), heterogeneous=True))
    'async_sgd favours fast workers, and its theorem assumes that all workers have similar data'
    >>> from asyncsgd.schedules import cosine
    >>> covering(methods.async_sgd(cosine(0.1)), heterogeneous=False)
    Covered(theorem='Theorem 2', scale=1.0, late=0)
    >>> str(covering(methods.federated_async_sgd(cosine(0.1), concurrency=4), heterogeneous=True))
    'Theorem 3 needs a constant step, and cosine(0.1) changes it'
    """
    if not isinstance(method.work, Gradient):
        return Reason("jobs of several local steps", "are not gradients")
    if method.transforms:
        return Reason(type(method.transforms[0]).__name__, "changes the updates")
    for code in (method.up, method.down):
        if code is not None:
            return Reason(code.name, "rounds what is sent")
    if method.weights is not None:
        return Reason("weights by examples", "change the steps")
    if not isinstance(method.aggregation, Each | Buffer):
        why = "uses old updates again" if method.aggregation.remembers else "is not a mean of updates"
        return Reason(type(method.aggregation).__name__, why)
    if not isinstance(method.optimizer, SGD | Momentum):
        return Reason(type(method.optimizer).__name__, "chooses its own scale")
    if not isinstance(method.step, Constant | DelayAdaptive | DropAbove):
        return Reason("no theorem", f"is about {type(method.step).__name__}")
    if heterogeneous and method.bias:
        return Reason(method.name, "favours fast workers, and its theorem assumes that all workers have similar data")
    theorem = FIRST
    if not isinstance(method.step, Constant):
        theorem = SECOND
    elif isinstance(method.dispatch, Uniform | Shuffled):
        theorem = THIRD
    schedule = method.step.schedule
    if schedule is not None if changing is None else changing:
        if heterogeneous:
            cause = "the run changed it" if schedule is None else f"{schedule!r} changes it"
            return Reason(theorem, f"needs a constant step, and {cause}")
        theorem = SECOND
    scale, late = 1.0, 0
    if isinstance(method.aggregation, Buffer):
        scale *= method.aggregation.size
        # A job may start while the buffer holds K - 1 updates. These move the model later than they arrived, so they
        # count as in flight, and as delay of the job. Rounds start with an empty buffer.
        rounds = isinstance(method.dispatch, FirstOf) and method.dispatch.clients == method.aggregation.size
        late = 0 if rounds else method.aggregation.size - 1
    if isinstance(method.optimizer, Momentum):
        scale *= 1.0 - method.optimizer.beta
    return Covered(theorem, scale, late)


def bound(
    covered: Covered,
    delays: Any,
    *,
    heterogeneity: Any = (0.0,),
    worker_delays: Any = None,
    weights: Any = None,
    **constants: Any,
) -> Bound:
    """Return the bound of the theorem that covers a method.

    Args:
        covered: The result of `covering`.
        delays: A trace, its ``delays``, or (τ_C, τ_max).
        heterogeneity: The ζ_i² of the workers; only Theorem 3 uses them.
        worker_delays: The τ^i_avg of the workers if ``delays`` does not hold them; only Theorem 3 uses them.
        weights: The steps of a run divided by the largest; only Theorem 2 uses them.
        **constants: ``smoothness``, ``gap`` and ``noise_variance``.
    """
    if covered.theorem == SECOND:
        return theorem2(delays, weights=weights, **constants)
    if covered.theorem == THIRD:
        return theorem3(delays, heterogeneity=heterogeneity, worker_delays=worker_delays, **constants)
    return theorem1(delays, **constants)


BUDGET = 5.0
"""Seconds that estimating L may take. A longer search is not started: if cut short, it would find a smaller L."""
ROUNDS, FEWER = 8, 2
LARGE = 1_000_000
"""The model size from which fewer directions are kept."""


def safe_step(method: Method, delays: Delays, smoothness: float) -> float:
    """Return the largest ``stepsize`` of a method that is safe for these delays and this L, under its `conditions`.

    If the method has a schedule, the result is for its peak: Theorem 2 then holds wherever the peak meets the longest
    delay. ``covering(method, heterogeneous=False)`` must have found a theorem.

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
    schedule = method.step.schedule
    largest = 1.0 if schedule is None else schedule.largest(len(delays.values))
    return bound(covered, given, worker_delays=[0.0], **known).max_step * covered.scale / largest


def conditions(method: Method, delays: Delays, *, heterogeneous: bool) -> tuple[str, ...]:
    """Return what the safe step of a method depends on beyond L and the delays, as sentences.

    >>> from asyncsgd import methods
    >>> from asyncsgd.trace import Trace
    >>> late = Trace.from_history(workers=[0, 1, 1, 1, 1], assigned=[0, 0, 1, 2, 3], arrived=[4, 0, 1, 2, 3]).delays
    >>> conditions(methods.delay_adaptive(0.1, rule="drop"), late, heterogeneous=False)
    ('updates with a delay of up to 4 get the whole step, for which Theorem 2 asks η <= 1/(4L·4)',)
    """
    found = []
    if method.step.schedule is not None:
        found.append(f"the limit is for the peak of {method.step.schedule!r}, by Theorem 2")
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
    """Return the longest delay up to which updates get the whole step, if Theorem 2 covers them; else 0.

    Theorem 2 asks η_t <= 1/(4L max(τ_C, τ_t)). The rule η·min(1, τ_C/τ_t) meets that for η <= 1/(4Lτ_C); a threshold
    θ > τ_C only for η <= 1/(4Lθ), and a schedule without any rule for delays only for η <= 1/(4Lτ_max).
    """
    if isinstance(method.step, Constant):
        return 0.0 if method.step.schedule is None else float(delays.maximum)
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
