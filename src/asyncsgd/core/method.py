"""A method is a handful of parts: who gets a job, what it computes, how an arrival moves the model."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field, replace
from typing import Any

from asyncsgd.core.check import plain
from asyncsgd.core.dispatch import AlwaysBusy, Dispatch, FirstOf
from asyncsgd.core.errors import BadParameter, BiasWarning
from asyncsgd.core.gather import Buffer, Each, Gather
from asyncsgd.core.optimizers import SGD, Optimizer
from asyncsgd.core.steps import Step
from asyncsgd.core.transforms import Clip, Transform
from asyncsgd.core.work import Gradient, Work


@dataclass(frozen=True)
class Method:
    """The recipe a server follows. `asyncsgd.methods` has the named ones; build your own from the parts.

    >>> from asyncsgd.core.steps import Constant
    >>> Method("mine", Constant(0.1)).using(optimizer=SGD()).name
    'mine'
    """

    name: str
    step: Step
    dispatch: Dispatch = field(default_factory=AlwaysBusy)
    work: Work = field(default_factory=Gradient)
    transforms: tuple[Transform, ...] = ()
    gather: Gather = field(default_factory=Each)
    optimizer: Optimizer = field(default_factory=SGD)
    average: bool = False
    """Whether the answer is the mean of the versions 1, 2, ... instead of the last one."""

    def __post_init__(self) -> None:
        for part in (self.step, self.dispatch, self.work, *self.transforms, self.gather, self.optimizer):
            plain(part)
        if isinstance(self.gather, Buffer) and self.gather.noise:
            if not any(isinstance(transform, Clip) for transform in self.transforms):
                raise BadParameter(
                    "noise",
                    self.gather.noise,
                    "protects nothing without a bound on the updates",
                    "pass clip too",
                )
            if not self.step.bounded:
                raise BadParameter(
                    "noise",
                    self.gather.noise,
                    f"needs weights of at most 1, {type(self.step).__name__} has none",
                    "use a constant, delay-adaptive or staleness step",
                )

    def using(self, **parts: Any) -> Method:
        """The same method with some parts exchanged."""
        return replace(self, **parts)

    @property
    def parts(self) -> tuple[str, ...]:
        """The kinds of its parts, which a saved state must match."""
        parts = (self.step, self.dispatch, self.work, *self.transforms, self.gather, self.optimizer)
        return (*(type(part).__name__ for part in parts), f"average={self.average}")

    @property
    def bias(self) -> tuple[str, ...]:
        """Why fast workers weigh more in the limit, or nothing where all weigh the same."""
        dispatch = None if self.gather.balances else self.dispatch.favours_fast
        return tuple(reason for reason in (dispatch, self.step.favours_fast) if reason)

    def check(self, *, workers: int, iterations: int | None = None, heterogeneous: bool = False) -> None:
        """Refuse what can never work with this many workers, and warn of bias where the data are heterogeneous.

        >>> from asyncsgd.core.steps import Constant
        >>> Method("rounds", Constant(0.1), FirstOf(goal=10)).check(workers=4)
        Traceback (most recent call last):
            ...
        asyncsgd.core.errors.BadParameter: goal = 10 can never be reached by 4 workers; pass goal <= 4
        """
        if workers < 1:
            raise BadParameter("workers", workers, "must be at least 1", "start some workers")
        if isinstance(self.dispatch, FirstOf) and self.dispatch.goal > workers:
            fix = f"pass goal <= {workers}"
            raise BadParameter("goal", self.dispatch.goal, f"can never be reached by {workers} workers", fix)
        if isinstance(self.gather, Buffer) and iterations is not None and self.gather.size > iterations:
            fix = f"pass a buffer <= {iterations} or more iterations"
            raise BadParameter("buffer", self.gather.size, f"can never fill in {iterations} iterations", fix)
        if heterogeneous and self.bias:
            warnings.warn(
                f"{self.name} favours fast workers ({'; '.join(self.bias)}) and the task says that its data are "
                "heterogeneous: it converges to a solution that neglects slow workers. "
                "federated_async_sgd(...) with a constant step does not.",
                BiasWarning,
                stacklevel=3,
            )
