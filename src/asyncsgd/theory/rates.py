"""All results side by side: how many iterations each promises for the same delays and constants."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import nonnegative, positive
from asyncsgd.core.errors import BadParameter
from asyncsgd.theory.bounds import Bound, theorem1, theorem1_bounded, theorem2, theorem3, theorem3_bounded
from asyncsgd.theory.inputs import Given, concurrency_and_maximum, constants, measured, numbers, root, squares
from asyncsgd.theory.prior import Order, fedbuff_order, maximum_delay_only, minibatch_bound

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rate:
    """One row: what a result promises."""

    name: str
    iterations: int | None
    """Gradients until the bound is at most ε; None where the result comes without constants."""
    step: float | None
    """The step with which it gets there."""
    order: float
    """The same with all constants dropped, see `Order`: to be compared with other orders only."""
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
    """What every result promises that holds here: prior rates first, then the paper's.

    With ``heterogeneity`` results for heterogeneous data are listed, without it those for homogeneous data; those that
    need bounded gradients only with ``gradient_bound``. Mini-batch SGD has batches of τ_C.

    Args:
        delays: A trace, ``trace.delays``, or (τ_C, τ_max).
        epsilon: Mean squared gradient norm asked for.
        smoothness: L.
        gap: r0 = f(x_0) - f*.
        noise_variance: σ².
        heterogeneity: ζ_i², one per worker, or one for all.
        worker_delays: τ^i_avg, one per worker; from the run if one is given, else τ_C - 1 for everybody.
        gradient_bound: G, a bound on ‖∇f_i‖.

    >>> for rate in rates((10, 1000), epsilon=0.01, smoothness=1.0, gap=1.0, noise_variance=0.1):
    ...     print(f"{rate.name:30} {rate.iterations:7} {rate.order:9.0f}")
    the rate by the maximum delay   408163    101000
    mini-batch SGD                    8000      2000
    Theorem 1                        49999     11000
    Theorem 2                        41291      2000
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
    """(τ^i_avg, ζ_i²), one of each per worker."""
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
        fix = "give one ζ_i² per worker, or one for all"
        raise BadParameter("heterogeneity", f"{zeta.size} values", f"do not fit {own.size} workers", fix)
    return own, zeta
