"""How much time asynchrony saves: the paper's speed-up lemma, and what queues make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import count
from asyncsgd.theory.limits import checked

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Speedup:
    """Seconds for as many gradients as are in flight, by three models."""

    asynchronous: float
    """The lemma: Δ̄ = mean of Δ_i. It ignores that jobs pile up on busy workers, so it is the low-concurrency limit."""
    minibatch: float
    """The lemma: Δ̃ = Σ α_i Δ_i, the mean of the slowest of τ_C workers drawn with replacement."""
    queued: float
    """Algorithm 2 with its queues, for exponential durations: exact, by mean value analysis of the closed network."""
    floor: float
    """τ_C Δ_max / n: the slowest worker alone keeps everybody from being faster than this."""

    @property
    def ratio(self) -> float:
        """How many times faster asynchronous SGD is, by the lemma."""
        return self.minibatch / self.asynchronous


def speedup(durations: Sequence[float] | Floats, concurrency: int) -> Speedup:
    """Expected time for ``concurrency`` gradients (Koloskova et al. 2022, the speed-up lemma, and queues).

    Assumes fixed durations for the lemma and the floor, exponential ones of the same means for ``queued``. Workers are
    drawn uniformly, with replacement.

    >>> paper = speedup([10.0] * 900 + [60.0] * 100, concurrency=10)
    >>> paper.asynchronous, round(paper.minibatch, 2)
    (15.0, 42.57)
    """
    count("concurrency", concurrency)
    tau = checked(durations)
    n = len(tau)
    # α_i = (i^C - (i-1)^C) / n^C without overflow and cancellation: differences of exp(C log(i/n)), largest first.
    with np.errstate(divide="ignore"):
        powers = np.exp(concurrency * np.log(np.arange(n + 1) / n))
    # Σ α_i Δ_i = Δ_n - Σ_i (i/n)^C (Δ_{i+1} - Δ_i): no difference of nearly equal powers is taken.
    minibatch = float(tau[-1] - powers[1:-1] @ np.diff(tau))
    return Speedup(
        asynchronous=float(tau.mean()),
        minibatch=minibatch,
        queued=concurrency / _throughput(tau, concurrency),
        floor=float(concurrency * tau[-1] / n),
    )


def _throughput(tau: Floats, concurrency: int) -> float:
    """Gradients per second of a closed network of single servers with exponential times and uniform routing.

    Exact mean value analysis (Reiser and Lavenberg 1980): workers with equal means are alike, so one queue length per
    distinct mean is enough.
    """
    means, many = np.unique(tau, return_counts=True)
    n = len(tau)
    length = np.zeros(len(means))
    throughput = 0.0
    for jobs in range(1, concurrency + 1):
        response = means * (1 + length)
        throughput = jobs / float(response @ many / n)
        length = throughput / n * response
    return throughput
