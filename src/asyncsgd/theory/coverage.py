"""Decide which theorem of the paper covers a method. No other module decides it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncsgd.core.aggregation import Buffer, Each
from asyncsgd.core.dispatch import FirstOf, Shuffled, Uniform
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD, Momentum
from asyncsgd.core.parts import Reason
from asyncsgd.core.steps import Constant, DelayAdaptive, DropAbove
from asyncsgd.core.work import Gradient
from asyncsgd.theory.bounds import Bound, theorem1, theorem2, theorem3

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
    if not isinstance(method.aggregation, Each | Buffer):
        return Reason(type(method.aggregation).__name__, "uses old updates again")
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
