"""What a job computes: one gradient, or several local steps. This code runs in the worker."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from asyncsgd.core.random import derive
from asyncsgd.core.validate import check_update, count, nonnegative, positive
from asyncsgd.core.vectors import Vector


@dataclass(frozen=True)
class Gradient:
    """One stochastic gradient at the assigned point."""

    steps: ClassVar[int] = 1
    """The number of mini-batches of a job."""

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


def numbered(task: Any, batch: int) -> Callable[[Vector, int, int], Vector]:
    """Return ``task.update`` as a function of (x, worker, seed), for the work of one job.

    A task that declares ``uses_batch = True`` also gets the number of the mini-batch: ``batch`` at the first call,
    one more at each later one, so that each local step has rows of its own.
    """
    if not getattr(task, "uses_batch", False):
        update: Callable[[Vector, int, int], Vector] = task.update
        return update
    calls = 0

    def next_update(x: Vector, worker: int, seed: int) -> Vector:
        nonlocal calls
        calls += 1
        found: Vector = task.update(x, worker, seed, batch + calls - 1)
        return found

    return next_update


def compute_job(work: Work, task: Any, x: Vector, worker: int, seed: int, steps: int | None, batch: int) -> Vector:
    """Return the update of one job: engines, simulations and replays all compute it here.

    Args:
        work: The work of the method.
        task: The task.
        x: The point that the job was assigned.
        worker: The worker of the job.
        seed: The seed of the job.
        steps: The number of mini-batches of the job, by default the work's; only the last job before a drain has fewer.
        batch: The number of the first of them.

    >>> from asyncsgd.tasks import quadratic
    >>> task = quadratic(workers=2, dim=2, noise=0.0)
    >>> update = compute_job(Gradient(), task, task.initial(), worker=0, seed=7, steps=None, batch=0)
    >>> bool((update == task.update(task.initial(), 0, 7)).all())
    True

    docs/howto/engine.md shows an engine that calls it.
    """
    if steps not in (None, work.steps) and isinstance(work, LocalSteps):
        work = replace(work, steps=steps)
    return work.compute(numbered(task, batch), x, worker, seed)
