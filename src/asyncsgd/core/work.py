"""What a job computes: one gradient, or several local steps. This code runs in the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from asyncsgd.core.random import derive
from asyncsgd.core.validate import check_update, count, nonnegative, positive
from asyncsgd.core.vectors import Vector


@dataclass(frozen=True)
class Gradient:
    """One stochastic gradient at the assigned point."""

    def compute(self, gradient: Callable[[Vector, int, int], Vector], x: Vector, worker: int, seed: int) -> Vector:
        """The update of one job; ``gradient(x, worker, seed)`` is the task's."""
        return gradient(x, worker, seed)


@dataclass(frozen=True)
class LocalSteps:
    """Q local SGD steps from the assigned point; the update is how far they moved.

    ``y_0 = x``, ``y_{q+1} = y_q - stepsize * (g(y_q) + proximal * (y_q - x))``. With ``scaled`` the update is
    ``(x - y_Q) / stepsize``, which has the scale of a sum of Q gradients; otherwise the plain difference
    ``x - y_Q``, the scale of a model (FedBuff, FedAsync). Step q of a job draws from a seed of its own.
    """

    steps: int
    stepsize: float
    scaled: bool = False
    proximal: float = 0.0

    def __post_init__(self) -> None:
        count("steps", self.steps)
        positive("stepsize", self.stepsize)
        nonnegative("proximal", self.proximal)

    def compute(self, gradient: Callable[[Vector, int, int], Vector], x: Vector, worker: int, seed: int) -> Vector:
        """The update of one job; ``gradient(x, worker, seed)`` is the task's."""
        y = x.copy()
        for q in range(self.steps):
            g = gradient(y, worker, derive(seed, q))
            check_update(g, x, worker, None)
            if self.proximal:
                g = g + self.proximal * (y - x)
            y -= self.stepsize * g
        return (x - y) / self.stepsize if self.scaled else x - y


Work = Gradient | LocalSteps
