"""What a plan compares: methods of `asyncsgd.methods`, each with so many jobs in flight."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from asyncsgd import methods
from asyncsgd.core.method import Method

MINIBATCH, ASYNC, ALGORITHM2 = "minibatch_sgd", "async_sgd", "federated_async_sgd"
ADAPTIVE, OVER = "delay_adaptive", "fedavg"
SIMPLEST_FIRST = (MINIBATCH, ASYNC, ALGORITHM2, ADAPTIVE, OVER)
"""Between methods that are about as fast, the earlier one is recommended."""

LABELS = {
    MINIBATCH: "mini-batch",
    OVER: "over-selection",
    ASYNC: "asynchronous",
    ADAPTIVE: "delay-adaptive",
    ALGORITHM2: "Algorithm 2",
}
POINTS = 7
"""How many concurrencies are tried if none are given."""


@dataclass(frozen=True)
class Candidate:
    """A method with a number of jobs in flight, on all workers or only on the fastest."""

    method: str
    concurrency: int
    """Jobs in flight: the batch of mini-batch SGD, the workers that a round of over-selection asks."""
    workers: int
    """How many workers take part: the fastest ones, if not all do."""
    total: int
    """n, how many there are."""
    goal: int | None = None
    """How many answers a round of over-selection keeps."""

    @property
    def rounds(self) -> bool:
        """Whether everybody starts afresh together."""
        return self.method in (MINIBATCH, OVER)

    @property
    def batch(self) -> int:
        """Gradients of a round."""
        return self.concurrency if self.goal is None else self.goal

    @property
    def label(self) -> str:
        """What it is called in a table."""
        name = LABELS[self.method]
        if self.goal is not None:
            name += f", first {self.goal}"
        if self.workers < self.total:
            name += f", {self.workers} fastest" if self.workers > 1 else ", fastest alone"
        return name

    def build(self, stepsize: float = 1.0) -> Method:
        """The method itself. ``stepsize`` is per gradient; a round's step on the mean is that many times larger."""
        everybody = self.concurrency == self.workers
        if self.method == OVER or (self.method == MINIBATCH and not everybody):
            return methods.fedavg(self.batch * stepsize, clients=self.batch, ask=self.concurrency)
        if self.method == MINIBATCH:
            return methods.minibatch_sgd(stepsize)
        if self.method == ALGORITHM2:
            return methods.federated_async_sgd(stepsize, concurrency=self.concurrency)
        make = methods.async_sgd if self.method == ASYNC else methods.delay_adaptive
        return make(stepsize, concurrency=None if everybody else self.concurrency)

    def recipe(self, step: float) -> str:
        """The call that makes it, with the step as a multiple of 1/L.

        >>> Candidate("async_sgd", concurrency=3, workers=8, total=8).recipe(0.05)
        'asgd.async_sgd(stepsize=0.05 / L, concurrency=3)'
        """
        everybody = self.concurrency == self.workers
        name, arguments = self.method, f", concurrency={self.concurrency}"
        if self.method == OVER or (self.method == MINIBATCH and not everybody):
            name, step = OVER, self.batch * step
            arguments = f", clients={self.batch}, ask={self.concurrency}"
        elif self.method != ALGORITHM2 and everybody:
            arguments = ""
        return f"asgd.{name}(stepsize={step:.3g} / L{arguments})"


def concurrencies(workers: int, points: int = POINTS) -> list[int]:
    """From one job in flight to one per worker, in equal ratios.

    >>> concurrencies(12), concurrencies(1000)
    ([1, 2, 3, 5, 8, 12], [1, 3, 10, 32, 100, 316, 1000])
    """
    return [int(c) for c in np.unique(np.rint(np.geomspace(1, workers, points)))]


def on_everybody(workers: int, wanted: Iterable[int]) -> list[Candidate]:
    """Every method at every concurrency. Only Algorithm 2 can have more jobs in flight than there are workers."""
    jobs = sorted(set(wanted))
    each = [Candidate(ALGORITHM2, c, workers, workers) for c in jobs]
    for c in sorted({min(c, workers) for c in jobs}):
        each += [Candidate(method, c, workers, workers) for method in (MINIBATCH, ASYNC, ADAPTIVE)]
    return each


def on_the_fastest(workers: int, wanted: Iterable[int]) -> list[Candidate]:
    """Every worker of a smaller number busy: worth a thought where some are much slower."""
    each = []
    for m in sorted(set(wanted)):
        if m < workers:
            each += [Candidate(method, m, m, workers) for method in (MINIBATCH, ASYNC, ADAPTIVE)]
    return each
