"""How much time asynchrony saves: the paper's speed-up lemma, the effect of queues, rounds, and lower limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, nonnegative, positive
from asyncsgd.theory.inputs import sorted_durations
from asyncsgd.theory.queueing import queues

Floats = NDArray[np.float64]


def over_selection_time(durations: Sequence[float] | Floats, goal: int, asked: int) -> float:
    """Return the expected seconds of a round that asks ``asked`` random workers and keeps the first ``goal`` answers.

    Workers are drawn without replacement. The result is the expected goal-th smallest duration: Σ_r C(r-1, goal-1)
    C(n-r, asked-goal) / C(n, asked) · Δ_r over the sorted Δ_1 ≤ … ≤ Δ_n. Exact for fixed durations. ``asked = goal`` is
    a round of federated averaging, ``asked = goal = n`` mini-batch SGD with all workers.

    Args:
        durations: Seconds per gradient, one per worker, in any order.
        goal: Answers that end the round; the others are cancelled.
        asked: The number of workers that are asked, at most all of them.

    >>> round(over_selection_time([10.0] * 900 + [60.0] * 100, goal=10, asked=13), 2)
    11.66

    Reference: Bonawitz et al. (2019), Towards federated learning at scale.

    See docs/theory.md for the speed-up lemma with and without queues.
    """
    count("goal", goal)
    count("asked", asked)
    tau = sorted_durations(durations)
    n = len(tau)
    if not goal <= asked <= n:
        raise BadParameter(
            "asked", asked, f"is not between goal = {goal} and {n} workers", "pass a number in that range"
        )
    # p_{r+1} / p_r = r (n-r-asked+goal) / ((r-goal+1) (n-r)): sums of logarithms, as the binomials themselves overflow.
    rank = np.arange(goal, n - asked + goal, dtype=float)
    ratio = np.log(rank) - np.log(rank - goal + 1) + np.log(n - rank - asked + goal) - np.log(n - rank)
    logs = np.concatenate([[0.0], np.cumsum(ratio)])
    chance = np.exp(logs - logs.max())
    return float(chance @ tau[goal - 1 : n - asked + goal] / chance.sum())


@dataclass(frozen=True)
class Limits:
    """Seconds to an ε-stationary point, up to constants; every number is an order of magnitude, not a forecast.

    With A = LΔ/ε, V = σ²LΔ/ε², durations τ_1 ≤ … ≤ τ_n and H_m the harmonic mean of the m fastest.

    See docs/theory.md for the limits that hold for any method.
    """

    optimum: float
    """min_m H_m (A + V/m): no method is faster on homogeneous data (Tyurin and Richtárik 2023; Rennala, Ringmaster)."""
    optimum_workers: int
    """The m that attains it: the number of fastest workers that are useful."""
    delay_adaptive: float
    """H_n (A + V/n): asynchronous SGD with delay-adaptive steps (Theorem 2)."""
    constant_step: float
    """√(τ_n H_n) A + H_n V/n: asynchronous SGD with a constant step (Theorem 1)."""
    minibatch: float
    """τ_n (A + V/n): mini-batch SGD, where all workers wait for the slowest."""
    best_synchronous: float
    """min_m τ_m (A + V/m): mini-batch SGD with the m fastest workers only."""
    best_synchronous_workers: int
    """The m that attains it."""
    heterogeneous_optimum: float
    """τ_n A + mean(τ) V/n: heterogeneous data, where every worker is needed (Malenia, Ringleader)."""


def limits(
    durations: Sequence[float] | Floats, *, smoothness: float, gap: float, epsilon: float, noise_variance: float
) -> Limits:
    """Return time complexities for workers with fixed durations.

    Args:
        durations: Seconds per gradient, one per worker, in any order.
        smoothness: L, the Lipschitz constant of the gradient.
        gap: Δ = f(x_0) - f*, how far the first loss lies above the lowest one.
        epsilon: The squared gradient norm to reach.
        noise_variance: σ², the variance of a stochastic gradient.

    >>> found = limits([i**0.5 for i in range(1, 10_001)], smoothness=1, gap=1, epsilon=1e-3, noise_variance=0.01)
    >>> round(found.optimum), found.optimum_workers
    (3898, 15)

    See docs/theory.md for the limits that hold for any method.
    """
    positive("smoothness", smoothness)
    positive("gap", gap)
    positive("epsilon", epsilon)
    nonnegative("noise_variance", noise_variance)
    tau = sorted_durations(durations)
    n = len(tau)
    count = np.arange(1, n + 1)
    harmonic = count / np.cumsum(1.0 / tau)
    deterministic = smoothness * gap / epsilon
    stochastic = noise_variance * smoothness * gap / epsilon**2
    per_batch = deterministic + stochastic / count
    asynchronous, synchronous = harmonic * per_batch, tau * per_batch
    best, best_sync = int(np.argmin(asynchronous)), int(np.argmin(synchronous))
    return Limits(
        optimum=float(asynchronous[best]),
        optimum_workers=best + 1,
        delay_adaptive=float(asynchronous[-1]),
        constant_step=float(np.sqrt(tau[-1] * harmonic[-1]) * deterministic + harmonic[-1] * stochastic / n),
        minibatch=float(synchronous[-1]),
        best_synchronous=float(synchronous[best_sync]),
        best_synchronous_workers=best_sync + 1,
        heterogeneous_optimum=float(tau[-1] * deterministic + tau.mean() * stochastic / n),
    )


@dataclass(frozen=True)
class Speedup:
    """Seconds for τ_C gradients with τ_C jobs in flight: by the paper's lemma, and with queues."""

    asynchronous: float
    """The lemma: Δ̄ = mean of Δ_i. It ignores queues on busy workers, so it is the low-concurrency limit."""
    minibatch: float
    """The lemma: Δ̃ = Σ α_i Δ_i, the mean of the slowest of τ_C workers drawn with replacement."""
    queued: float
    """Algorithm 2 with its queues, for exponential durations: exact, by mean value analysis of the closed network."""
    queued_fixed: float
    """Algorithm 2 with its queues, for fixed durations: an approximation, whose error `queues` states."""
    floor: float
    """τ_C Δ_max / n: a lower limit that the slowest worker alone sets."""

    @property
    def ratio(self) -> float:
        """How many times faster asynchronous SGD is than mini-batch SGD, by the lemma."""
        return self.minibatch / self.asynchronous


def speedup(durations: Sequence[float] | Floats, concurrency: int) -> Speedup:
    """Return the expected time for ``concurrency`` gradients (Koloskova et al. 2022, the speed-up lemma, and queues).

    Durations are fixed, except for ``queued``, where they are exponential with the same means. Workers are drawn
    uniformly, with replacement. A million workers with 10,000 jobs in flight take about a second.

    Args:
        durations: Seconds per gradient, one per worker, in any order.
        concurrency: τ_C, jobs in flight; the batch of mini-batch SGD.

    >>> paper = speedup([10.0] * 900 + [60.0] * 100, concurrency=10)
    >>> paper.asynchronous, round(paper.minibatch, 2)
    (15.0, 42.57)
    >>> crowded = speedup([10.0] * 900 + [60.0] * 100, concurrency=1000)
    >>> crowded.asynchronous, crowded.floor, round(crowded.queued_fixed, 1), round(crowded.queued, 1)
    (15.0, 60.0, 63.7, 67.1)

    See docs/theory.md for the speed-up lemma with and without queues.
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
