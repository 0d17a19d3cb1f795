"""Rates from before the paper, for comparison: the maximum delay alone, mini-batch SGD, FedBuff."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import count, nonnegative, positive
from asyncsgd.theory.bounds import Bound
from asyncsgd.theory.inputs import Given, concurrency_and_maximum, constants, squares

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Order:
    """A rate as papers print it, O(Σ a_p / ε^p): an order of magnitude, whose constants were dropped.

    Papers also set L = r0 = 1. With g(y) = f(y √(r0/L)) / r0 that is no loss: ε, σ², ζ² and G² are divided by L r0
    first, which gives σ²Lr0/ε² for σ²/ε² and τ Lr0/ε for τ/ε. Compare orders with orders only.
    """

    name: str
    terms: Mapping[float, float]
    """a_p by p, for L = r0 = 1."""
    scale: float
    """L r0."""

    def iterations(self, epsilon: float) -> float:
        """Σ a_p / ε^p."""
        positive("epsilon", epsilon)
        return float(sum(value * (self.scale / epsilon) ** power for power, value in self.terms.items()))


def maximum_delay_only(delays: Given, *, smoothness: float, gap: float, noise_variance: float) -> Bound:
    """Asynchronous SGD by its maximum delay alone: 2r0/(η(T+1)) + 4Lησ² for η <= 1/(2L max(1, τ_max)).

    O(σ²/ε² + τ_max/ε), the best rate known before the paper (Stich and Karimireddy 2020; with other constants or
    assumptions also Agarwal and Duchi 2011 for convex f, Lian et al. 2015 and Arjevani et al. 2020). The constants are
    those of Theorem 1: its proof counts a gradient at most τ_C - 1 times among those that later ones missed; without
    the concurrency it is at most τ_max times. So what differs from `theorem1` is what the paper improved, and no more.

    Args:
        delays: A trace, ``trace.delays``, or (τ_C, τ_max), of which τ_C is not used.
        smoothness: L.
        gap: r0 = f(x_0) - f*.
        noise_variance: σ².

    >>> maximum_delay_only((2, 50), smoothness=1.0, gap=1.0, noise_variance=0.0).max_step
    0.01
    """
    _, longest = concurrency_and_maximum(delays)
    constants(smoothness, gap, noise_variance)
    return Bound(
        "the rate by the maximum delay",
        start=2 * gap,
        linear=4 * smoothness * noise_variance,
        square=0.0,
        max_step=1 / (2 * smoothness * max(1.0, longest)),
    )


def minibatch_bound(
    batch: int,
    *,
    smoothness: float,
    gap: float,
    noise_variance: float,
    heterogeneity: float | Sequence[float] | Floats = 0.0,
) -> Bound:
    """Mini-batch SGD: 2r0/(ηT) + Lη(σ² + ζ²) for η <= 1/(nL), T gradients in batches of n, η per gradient.

    K = T/n steps of size γ = nη on the mean gradient: f(x) falls by γ(1 - Lγ/2)‖∇f(x)‖² - Lγ²(σ² + ζ²)/(2n) on average,
    and γ <= 1/L (Ghadimi and Lan 2013; Dekel et al. 2012). The mean runs over the points at which batches began.

    Args:
        batch: n.
        smoothness: L.
        gap: r0 = f(x_0) - f*.
        noise_variance: σ².
        heterogeneity: ζ_i² or their mean, if a batch is drawn from the workers with replacement; 0 if every worker
            takes part in every batch.

    >>> minibatch_bound(10, smoothness=2.0, gap=1.0, noise_variance=0.0).iterations(0.1)
    (400, 0.05)
    """
    count("batch", batch)
    constants(smoothness, gap, noise_variance)
    return Bound(
        "mini-batch SGD",
        start=2 * gap,
        linear=smoothness * (noise_variance + float(squares(heterogeneity).mean())),
        square=0.0,
        max_step=1 / (batch * smoothness),
        extra=0.0,
        batch=int(batch),
    )


def fedbuff_order(
    delays: Given,
    *,
    smoothness: float,
    gap: float,
    noise_variance: float,
    heterogeneity: float | Sequence[float] | Floats,
    gradient_bound: float,
) -> Order:
    """FedBuff: O(σ²/ε² + ζ²/ε² + (ζ² + 1) τ_max G²/ε), constants dropped, as the paper quotes it.

    Nguyen et al. (2022), with buffers and local steps left aside. Assumes ‖∇f_i‖ <= G, and that whoever arrives is
    uniform over the workers, which no server can arrange.

    >>> known = dict(smoothness=1.0, gap=1.0, noise_variance=1.0, heterogeneity=0.0, gradient_bound=2.0)
    >>> fedbuff_order((10, 100), **known).iterations(0.1)
    4100.0
    """
    _, longest = concurrency_and_maximum(delays)
    constants(smoothness, gap, noise_variance)
    nonnegative("gradient_bound", gradient_bound)
    scale = smoothness * gap
    noise, zeta, bound = noise_variance / scale, float(squares(heterogeneity).mean()) / scale, gradient_bound**2 / scale
    return Order("FedBuff", {2: noise + zeta, 1: (zeta + 1) * longest * bound}, scale)
