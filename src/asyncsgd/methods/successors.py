"""Methods that came after the paper."""

from __future__ import annotations

from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import AlwaysBusy
from asyncsgd.core.method import Method
from asyncsgd.core.steps import DropStale
from asyncsgd.core.validate import recipe


@recipe
def rennala(stepsize: float, *, batch: int) -> Method:
    """Rennala SGD: x ← x - η · mean of the first B gradients computed at x; older ones are discarded.

    Tyurin and Richtárik (2023).

    Args:
        stepsize: The step η of the mean.
        batch: The number B of gradients per step; max(1, ⌈σ²/ε⌉) in the paper.

    >>> rennala(0.1, batch=4).aggregation
    Buffer(size=4, noise=0.0)
    """
    return Method("rennala", DropStale(stepsize), aggregation=Buffer(batch))


@recipe
def ringmaster(stepsize: float, *, limit: int, stops: bool = False) -> Method:
    """Ringmaster ASGD: apply iff the staleness is below R, else discard (Maranjyan et al. 2025).

    Args:
        stepsize: The step η of an update that is applied.
        limit: The staleness R from which updates are discarded; max(1, ⌈σ²/ε⌉) in the paper.
        stops: Whether to cancel a job whose staleness reaches R and start a new one at the newest model.

    >>> ringmaster(0.1, limit=8, stops=True).dispatch.restart
    8
    """
    return Method("ringmaster", DropStale(stepsize, limit), AlwaysBusy(restart=limit if stops else None))
