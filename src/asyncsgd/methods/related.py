"""Methods of related work: those that the paper compares with, and those that came after it."""

from __future__ import annotations

from typing import Literal

from asyncsgd.core.aggregation import Buffer, Softsync
from asyncsgd.core.dispatch import AlwaysBusy
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import AdaDelayCoordinates, DelayedAverage
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.steps import AdaDelay, Constant, DivideByStaleness, DropDrifted, DropStale
from asyncsgd.core.transforms import Compensate
from asyncsgd.core.validate import recipe

# --------------------------------------------------------------------------------------------------------------
# Methods that came after the paper.


@recipe
def rennala(stepsize: float | Schedule, *, batch: int) -> Method:
    """Rennala SGD: x ← x - η · mean of the first B gradients computed at x; older ones are discarded.

    Tyurin and Richtárik (2023).

    Args:
        stepsize: The step η of the mean.
        batch: The number B of gradients per step; max(1, ⌈σ²/ε⌉) in the paper.

    >>> rennala(0.1, batch=4).aggregation
    Buffer(size=4, noise=0.0, by_examples=False)

    See docs/users/researcher.md for how to compare it with other methods, and docs/howto/method.md to change it.
    """
    return Method("rennala", DropStale(stepsize), aggregation=Buffer(batch))


@recipe
def ringmaster(stepsize: float | Schedule, *, limit: int, stops: bool = False) -> Method:
    """Ringmaster ASGD: apply iff the staleness is below R, else discard (Maranjyan et al. 2025).

    Args:
        stepsize: The step η of an update that is applied.
        limit: The staleness R from which updates are discarded; max(1, ⌈σ²/ε⌉) in the paper.
        stops: Whether to cancel a job whose staleness reaches R and start a new one at the newest model.

    >>> ringmaster(0.1, limit=8, stops=True).dispatch.restart
    8

    See docs/users/researcher.md for how to compare it with other methods, and docs/howto/method.md to change it.
    """
    return Method("ringmaster", DropStale(stepsize, limit), AlwaysBusy(restart=limit if stops else None))


@recipe
def picky_sgd(stepsize: float | Schedule, *, threshold: float, concurrency: int | None = None) -> Method:
    """PickySGD: apply iff ‖x_t - x_{t-τ}‖ <= threshold (Cohen et al. 2021).

    Args:
        stepsize: The step η of an update that is applied.
        threshold: How far the model may have moved since the worker read it; ε_norm/(2β) in the paper.
        concurrency: The number of jobs in flight. The default is one per worker.

    >>> picky_sgd(0.1, threshold=0.5).step
    DropDrifted(stepsize=0.1, threshold=0.5)

    See docs/users/researcher.md for how to compare it with other methods, and docs/howto/method.md to change it.
    """
    return Method("picky_sgd", DropDrifted(stepsize, threshold), AlwaysBusy(concurrency))


@recipe
def adadelay(
    stepsize: float | Schedule = 1.0, *, smoothness: float, c: float | None = None, coordinates: bool = False
) -> Method:
    """AdaDelay: η_t = η/(L + c√(t+τ)) with t from 1; it returns the averaged iterate (Sra et al. 2016).

    Args:
        stepsize: The factor η of every step; 1 in the paper.
        smoothness: The smoothness constant L of the task.
        c: How fast the steps shrink. The default is 1.
        coordinates: Give every coordinate its own c_j = √(mean of i/(i+τ_i) g_j²).

    >>> adadelay(smoothness=2.0).average
    True

    See docs/users/researcher.md for how to compare it with other methods, and docs/howto/method.md to change it.
    """
    if coordinates:
        if c is not None:
            raise BadParameter("c", c, "has no meaning with coordinates=True, which finds its own", "leave c out")
        return Method("adadelay", Constant(stepsize), optimizer=AdaDelayCoordinates(smoothness), average=True)
    return Method("adadelay", AdaDelay(stepsize, smoothness, 1.0 if c is None else c), average=True)


@recipe
def staleness_aware(stepsize: float | Schedule, *, splits: int | None = None) -> Method:
    """Staleness-aware SGD: x ← x - (1/c) Σ η/max(1, s_i) g_i after c arrivals (Zhang et al. 2016).

    Args:
        stepsize: The step η of a fresh update. Staleness counts versions, as in the paper.
        splits: The m of "m-softsync": c = ⌊n/m⌋ arrivals move the model, where n is the number of workers when the run
            starts. The default is m = n, that is c = 1.

    >>> staleness_aware(0.1, splits=2).bind(workers=9).aggregation
    Buffer(size=4, noise=0.0, by_examples=False)

    See docs/users/researcher.md for how to compare it with other methods, and docs/howto/method.md to change it.
    """
    aggregation = Buffer(1) if splits is None else Softsync(splits)
    return Method("staleness_aware", DivideByStaleness(stepsize), aggregation=aggregation)


@recipe
def dc_asgd(stepsize: float | Schedule, *, strength: float | None = None, adaptive: bool = False) -> Method:
    """DC-ASGD: x ← x - η (g + λ g⊙g⊙(x - x_assigned)) (Zheng et al. 2017).

    Args:
        stepsize: The step η of every update.
        strength: The factor λ. The default is 0.04, or 2 with ``adaptive``.
        adaptive: Divide λ by √(mean square of g + 1e-7), coordinate by coordinate, with decay 0.95.

    >>> dc_asgd(0.1).transforms
    (Compensate(strength=0.04, adaptive=False, decay=0.95),)

    See docs/users/researcher.md for how to compare it with other methods, and docs/howto/method.md to change it.
    """
    strength = (2.0 if adaptive else 0.04) if strength is None else strength
    return Method("dc_asgd", Constant(stepsize), transforms=(Compensate(strength, adaptive),))


@recipe
def delayed_average(stepsize: float | Schedule, *, weights: Literal["linear", "uniform"] = "uniform") -> Method:
    """Gradients at the weighted average of w: w ← w - η α_s g, x = Σ α_i w_i / Σ α_i (Aviv et al. 2021).

    The guarantee is for convex tasks.

    Args:
        stepsize: The step η of w.
        weights: "uniform": α = 1. "linear": α_t = t + 1, which forgets the start faster and needs η of the order of
            1/(L·T).

    >>> delayed_average(0.1).optimizer
    DelayedAverage(weights='uniform')

    See docs/users/researcher.md for how to compare it with other methods, and docs/howto/method.md to change it.
    """
    return Method("delayed_average", Constant(stepsize), optimizer=DelayedAverage(weights))
