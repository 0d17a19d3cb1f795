"""How much time asynchrony saves: the paper's speed-up lemma, and what queues make of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import count
from asyncsgd.theory.inputs import sorted_durations
from asyncsgd.theory.queues import queues

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Speedup:
    """Seconds for as many gradients as are in flight: by the paper's lemma, and with queues."""

    asynchronous: float
    """The lemma: Δ̄ = mean of Δ_i. It ignores that jobs pile up on busy workers, so it is the low-concurrency limit."""
    minibatch: float
    """The lemma: Δ̃ = Σ α_i Δ_i, the mean of the slowest of τ_C workers drawn with replacement."""
    queued: float
    """Algorithm 2 with its queues, for exponential durations: exact, by mean value analysis of the closed network."""
    queued_fixed: float
    """Algorithm 2 with its queues, for fixed durations: an approximation, whose error `queues` states."""
    floor: float
    """τ_C Δ_max / n: the slowest worker alone keeps everybody from being faster than this."""

    @property
    def ratio(self) -> float:
        """How many times faster asynchronous SGD is, by the lemma."""
        return self.minibatch / self.asynchronous


def speedup(durations: Sequence[float] | Floats, concurrency: int) -> Speedup:
    """Expected time for ``concurrency`` gradients (Koloskova et al. 2022, the speed-up lemma, and queues).

    Assumes fixed durations, but for ``queued`` exponential ones of the same means. Workers are drawn uniformly, with
    replacement. A million workers with 10,000 jobs in flight take about a second.

    Args:
        durations: Seconds per gradient, one per worker, in any order.
        concurrency: τ_C, jobs in flight; the batch of mini-batch SGD.

    >>> paper = speedup([10.0] * 900 + [60.0] * 100, concurrency=10)
    >>> paper.asynchronous, round(paper.minibatch, 2)
    (15.0, 42.57)
    >>> crowded = speedup([10.0] * 900 + [60.0] * 100, concurrency=1000)
    >>> crowded.asynchronous, crowded.floor, round(crowded.queued_fixed, 1), round(crowded.queued, 1)
    (15.0, 60.0, 63.7, 67.1)
    """
    count("concurrency", concurrency)
    tau = sorted_durations(durations)
    n = len(tau)
    # α_i = (i^C - (i-1)^C) / n^C, so Σ α_i Δ_i = Δ_n - Σ_{i<n} (i/n)^C (Δ_{i+1} - Δ_i): no difference of nearly equal
    # powers is taken, and exp(C log(i/n)) does not overflow.
    powers = np.exp(concurrency * np.log(np.arange(1, n) / n))
    minibatch = float(tau[-1] - powers @ np.diff(tau))
    return Speedup(
        asynchronous=float(tau.mean()),
        minibatch=minibatch,
        queued=queues(tau, concurrency, variability=1.0).seconds,
        queued_fixed=queues(tau, concurrency, variability=0.0).seconds,
        floor=float(concurrency * tau[-1] / n),
    )
