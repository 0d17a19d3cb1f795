"""The delays to expect, before a run, from durations."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.theory.inputs import numbers, sorted_durations
from asyncsgd.theory.queues import queues

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ExpectedDelays:
    """Delays of a long run, as a theorem would read them from its trace."""

    concurrency: int
    """τ_C."""
    average: float
    """The mean over arrivals: τ_C - 1 wherever the concurrency is constant, whatever the durations."""
    per_worker: Floats
    """τ^i_avg, in the order of the durations given."""
    maximum: int | None
    """τ_max at most; None where no number bounds it."""


def async_delays(durations: Sequence[float] | Floats) -> ExpectedDelays:
    """Algorithm 1 with every worker always busy: τ^i_avg = Δ_i Σ_j 1/Δ_j - 1.

    Exact in the long run for durations of mean Δ_i, fixed or random: worker i is in every C_t, so its delays plus 1 add
    up to the number of iterations. The maximum is for fixed durations: while the slowest computes, worker j can arrive
    ⌈Δ_n/Δ_j⌉ times (once more where that quotient is whole, and rounding or chance breaks a tie).

    >>> found = async_delays([1.0, 1.0, 10.0])
    >>> found.per_worker.round(1), found.maximum
    (array([ 1.1,  1.1, 20. ]), 20)
    """
    tau = sorted_durations(durations)
    rate = float((1 / tau).sum())
    # Rounding must not turn a quotient that is an integer into the next one: 0.6 / 0.2 is 2.9999999999999996.
    often = np.ceil(tau[-1] / tau * (1 - 1e-12))
    own = np.asarray(durations, dtype=float)
    return ExpectedDelays(len(tau), len(tau) - 1.0, own * rate - 1, int(often.sum()) - 1)


def federated_delays(
    durations: Sequence[float] | Floats, concurrency: int, *, variability: float | Sequence[float] | Floats = 0.0
) -> ExpectedDelays:
    """Algorithm 2: τ^i_avg = n Q_i(τ_C - 1), the queue of worker i with one job fewer in flight, times n.

    Exact for exponential durations: whoever arrives finds the queues of τ_C - 1 jobs, and the delays of worker i add up
    to what arrivals find on it. For fixed durations (τ_C - 1) R_i / mean R is closer, with R_i the seconds from
    assignment to arrival; between, the two are mixed by ``variability``. Both have the exact mean. For fixed durations
    simulated delays per worker differ by some 10 % with 30 workers of different speeds; with fewer, the small delays of
    fast workers can be less than half of what stands here. A job can wait behind any number of others, so that nothing
    bounds the maximum.

    Args:
        durations: Mean seconds per gradient, one per worker.
        concurrency: τ_C.
        variability: c², see `queues`.

    >>> federated_delays([10.0] * 900 + [60.0] * 100, 10).per_worker[[0, -1]].round(1)
    array([ 6. , 36.3])
    """
    found = queues(durations, concurrency, variability=variability)
    average = concurrency - 1.0
    delay = average * found.response / found.response.mean()
    if concurrency > 1:
        weight = float(np.minimum(numbers("variability", variability), 1.0).mean())
        fewer = queues(durations, concurrency - 1, variability=variability)
        delay = (1 - weight) * delay + weight * len(delay) * fewer.length
    return ExpectedDelays(int(concurrency), average, delay, None)
