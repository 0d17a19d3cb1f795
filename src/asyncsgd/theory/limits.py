"""How fast could anybody be? Time complexities for fixed durations, up to constants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import nonnegative, positive
from asyncsgd.theory.inputs import sorted_durations

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Limits:
    """Seconds to an ε-stationary point, up to constants; every line is an order of magnitude, not a forecast.

    With A = LΔ/ε, V = σ²LΔ/ε², durations τ_1 ≤ … ≤ τ_n and H_m the harmonic mean of the m fastest.
    """

    optimum: float
    """min_m H_m (A + V/m): homogeneous data, nobody can be faster (Tyurin and Richtárik 2023; Rennala, Ringmaster)."""
    optimum_workers: int
    """The m that attains it: how many of the fastest workers are worth having."""
    delay_adaptive: float
    """H_n (A + V/n): asynchronous SGD with delay-adaptive steps (Theorem 2)."""
    constant_step: float
    """√(τ_n H_n) A + H_n V/n: asynchronous SGD with a constant step (Theorem 1)."""
    minibatch: float
    """τ_n (A + V/n): mini-batch SGD, everybody waits for the slowest."""
    best_synchronous: float
    """min_m τ_m (A + V/m): mini-batch SGD with the m fastest workers only."""
    best_synchronous_workers: int
    """The m that attains it."""
    heterogeneous_optimum: float
    """τ_n A + mean(τ) V/n: heterogeneous data, where every worker is needed (Malenia, Ringleader)."""


def limits(
    durations: Sequence[float] | Floats, *, smoothness: float, gap: float, epsilon: float, noise_variance: float
) -> Limits:
    """Time complexities for workers with fixed durations.

    Args:
        durations: Seconds per gradient, one per worker, in any order.
        smoothness: L.
        gap: Δ = f(x_0) - f*.
        epsilon: The squared gradient norm asked for.
        noise_variance: σ².

    >>> found = limits([i**0.5 for i in range(1, 10_001)], smoothness=1, gap=1, epsilon=1e-3, noise_variance=0.01)
    >>> round(found.optimum), found.optimum_workers
    (3898, 15)
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
