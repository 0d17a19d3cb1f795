"""A table of all rates: how many iterations each result promises for the same delays and constants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, nonnegative, positive
from asyncsgd.theory.bounds import Bound, theorem1, theorem1_bounded, theorem2, theorem3, theorem3_bounded
from asyncsgd.theory.inputs import Given, concurrency_and_maximum, constants, measured, numbers, root, squares

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Order:
    """A rate as papers print it, O(Σ a_p / ε^p): an order of magnitude, whose constants were dropped.

    Papers also set L = r0 = 1. With g(y) = f(y √(r0/L)) / r0 that loses nothing: ε, σ², ζ² and G² are divided by L r0
    first, which gives σ²Lr0/ε² for σ²/ε² and τ Lr0/ε for τ/ε. Compare orders with orders only.

    >>> Order("mine", {2.0: 3.0}, scale=1.0).iterations(0.1)
    300.0

    See docs/theory.md for the bounds with constants.
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
    """Bound asynchronous SGD by its maximum delay alone: 2r0/(η(T+1)) + 4Lησ² for η <= 1/(2L max(1, τ_max)).

    O(σ²/ε² + τ_max/ε), the best rate known before the paper (Stich and Karimireddy 2020; with other constants or
    assumptions also Agarwal and Duchi 2011 for convex f, Lian et al. 2015 and Arjevani et al. 2020). The constants are
    those of Theorem 1: its proof counts a gradient at most τ_C - 1 times among those that later ones missed; without
    the concurrency it is at most τ_max times. So the difference to `theorem1` is exactly what the paper improved.

    Args:
        delays: A trace, ``trace.delays``, or (τ_C, τ_max), of which τ_C is not used.
        smoothness: L, the Lipschitz constant of the gradient.
        gap: r0 = f(x_0) - f*, how far the first loss lies above the lowest one.
        noise_variance: σ², the variance of a stochastic gradient.

    >>> maximum_delay_only((2, 50), smoothness=1.0, gap=1.0, noise_variance=0.0).max_step
    0.01

    See docs/theory.md for the bounds that these rates stand beside.
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
        batch: n, the number of gradients per step.
        smoothness: L, the Lipschitz constant of the gradient.
        gap: r0 = f(x_0) - f*, how far the first loss lies above the lowest one.
        noise_variance: σ², the variance of a stochastic gradient.
        heterogeneity: ζ_i² or their mean, if a batch is drawn from the workers with replacement; 0 if every worker
            takes part in every batch.

    >>> minibatch_bound(10, smoothness=2.0, gap=1.0, noise_variance=0.0).iterations(0.1)
    (400, 0.05)

    See docs/theory.md for the bounds that these rates stand beside.
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

    Nguyen et al. (2022), with buffers and local steps left aside. Assumes ‖∇f_i‖ <= G, and that the arriving worker is
    uniformly distributed, which no server can ensure.

    Args:
        delays: A run, a trace, or (τ_C, τ_max).
        smoothness: L, the smoothness constant of f.
        gap: r0 = f(x_0) - f*, how far the first loss lies above the lowest one.
        noise_variance: σ², the variance of a stochastic gradient.
        heterogeneity: ζ², how much the workers' gradients differ; one number, or one per worker.
        gradient_bound: G, a bound on the norm of every gradient.

    >>> known = dict(smoothness=1.0, gap=1.0, noise_variance=1.0, heterogeneity=0.0, gradient_bound=2.0)
    >>> fedbuff_order((10, 100), **known).iterations(0.1)
    4100.0

    See docs/theory.md for the bounds that these rates stand beside.
    """
    _, longest = concurrency_and_maximum(delays)
    constants(smoothness, gap, noise_variance)
    nonnegative("gradient_bound", gradient_bound)
    scale = smoothness * gap
    noise, zeta, bound = noise_variance / scale, float(squares(heterogeneity).mean()) / scale, gradient_bound**2 / scale
    return Order("FedBuff", {2: noise + zeta, 1: (zeta + 1) * longest * bound}, scale)


@dataclass(frozen=True)
class Rate:
    """One row of the table: what a result promises."""

    name: str
    iterations: int | None
    """Gradients until the bound is at most ε; None if the result has no constants."""
    step: float | None
    """The step with which it gets there."""
    order: float
    """The same with all constants dropped (see `Order`). Compare it with other orders only."""
    bound: Bound | None = None


def rates(
    delays: Given,
    *,
    epsilon: float,
    smoothness: float,
    gap: float,
    noise_variance: float,
    heterogeneity: float | Sequence[float] | Floats | None = None,
    worker_delays: Sequence[float] | Floats | None = None,
    gradient_bound: float | None = None,
) -> tuple[Rate, ...]:
    """List what every result that applies here promises: prior rates first, then the paper's.

    With ``heterogeneity`` results for heterogeneous data are listed, without it those for homogeneous data; those that
    need bounded gradients only with ``gradient_bound``. Mini-batch SGD has batches of τ_C.

    Args:
        delays: A trace, ``trace.delays``, or (τ_C, τ_max).
        epsilon: The mean squared gradient norm to reach.
        smoothness: L, the Lipschitz constant of the gradient.
        gap: r0 = f(x_0) - f*, how far the first loss lies above the lowest one.
        noise_variance: σ², the variance of a stochastic gradient.
        heterogeneity: ζ_i², one per worker, or one for all.
        worker_delays: τ^i_avg, one per worker; from the run if one is given, else τ_C - 1 for every worker.
        gradient_bound: G, a bound on ‖∇f_i‖.

    >>> for rate in rates((10, 1000), epsilon=0.01, smoothness=1.0, gap=1.0, noise_variance=0.1):
    ...     print(f"{rate.name:30} {rate.iterations:7} {rate.order:9.0f}")
    the rate by the maximum delay   408163    101000
    mini-batch SGD                    8000      2000
    Theorem 1                        49999     11000
    Theorem 2                        41291      2000

    See docs/theory.md for the bounds that these rates stand beside.
    """
    positive("epsilon", epsilon)
    constants(smoothness, gap, noise_variance)
    concurrency, longest = concurrency_and_maximum(delays)
    known = {"smoothness": smoothness, "gap": gap, "noise_variance": noise_variance}
    noise, scale = noise_variance / (smoothness * gap), smoothness * gap
    batch = max(1, math.ceil(concurrency))
    rows: list[tuple[Bound | Order, dict[float, float]]] = []
    clipped = 0.0
    if gradient_bound is not None:
        nonnegative("gradient_bound", gradient_bound)
        clipped = gradient_bound / math.sqrt(scale)
    if heterogeneity is None:
        rows += [
            (maximum_delay_only(delays, **known), {2: noise, 1: max(1.0, longest)}),
            (minibatch_bound(batch, **known), {2: noise, 1: batch}),
            (theorem1(delays, **known), {2: noise, 1: root(concurrency, longest)}),
        ]
        if gradient_bound is not None:
            bound = theorem1_bounded(delays, **known, gradient_bound=gradient_bound)
            rows.append((bound, {2: noise, 1.5: concurrency * clipped, 1: concurrency}))
        adaptive = theorem2(delays, smoothness=smoothness, gap=gap, noise_variance=noise_variance)
        rows.append((adaptive, {2: noise, 1: concurrency}))
    else:
        zeta = squares(heterogeneity)
        own, zeta = _own(delays, zeta, worker_delays, concurrency)
        spread = float(zeta.mean()) / scale
        middle = math.sqrt(concurrency * float((zeta * (own + 1)).mean()) / scale)
        if gradient_bound is not None:
            order = fedbuff_order(delays, **known, heterogeneity=zeta, gradient_bound=gradient_bound)
            rows.append((order, dict(order.terms)))
        rows += [
            (minibatch_bound(batch, **known, heterogeneity=zeta), {2: noise + spread, 1: batch}),
            (
                theorem3(delays, **known, heterogeneity=zeta, worker_delays=own),
                {2: noise + spread, 1.5: middle, 1: root(concurrency, longest)},
            ),
        ]
        if gradient_bound is not None:
            bound = theorem3_bounded(delays, **known, heterogeneity=zeta, gradient_bound=gradient_bound)
            rows.append((bound, {2: noise + spread, 1.5: concurrency * clipped, 1: concurrency}))
    return tuple(_row(result, Order("", terms, scale).iterations(epsilon), epsilon) for result, terms in rows)


def _row(result: Bound | Order, order: float, epsilon: float) -> Rate:
    if isinstance(result, Order):
        return Rate(result.name, None, None, order)
    iterations, step = result.iterations(epsilon)
    return Rate(result.theorem, iterations, step, order, result)


def _own(
    delays: Given, zeta: Floats, worker_delays: Sequence[float] | Floats | None, concurrency: float
) -> tuple[Floats, Floats]:
    """Return (τ^i_avg, ζ_i²), one of each per worker."""
    found = measured(delays)
    if worker_delays is not None:
        own = np.atleast_1d(numbers("worker_delays", worker_delays))
    elif found is not None:
        workers = max(len(zeta), 1 + max(found.per_worker, default=0))
        own = np.array([found.per_worker.get(worker, 0.0) for worker in range(workers)])
    else:
        own = np.full(len(zeta), max(concurrency - 1, 0.0))
    if len(zeta) == 1:
        zeta = np.full(len(own), zeta[0])
    if zeta.shape != own.shape:
        fix = "pass one ζ_i² per worker, or one for all"
        raise BadParameter("heterogeneity", f"{zeta.size} values", f"do not fit {own.size} workers", fix)
    return own, zeta
