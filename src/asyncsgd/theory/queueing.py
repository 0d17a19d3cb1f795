"""Predict queues and delays of a run from durations, by mean value analysis of a closed network of workers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count
from asyncsgd.theory.inputs import numbers, sorted_durations

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

ALONE = 1024
"""The number of slowest workers that keep their own duration; faster workers of similar speed share a class."""
SHARED = 1024
"""The number of classes that the others share, of equal width in log(duration)."""


@dataclass(frozen=True)
class Queues:
    """Where the jobs of Algorithm 2 are in the long run, for a number of jobs in flight."""

    concurrency: int
    seconds: float
    """Expected time for ``concurrency`` gradients."""
    response: Floats
    """Seconds from assignment to arrival per worker, waiting included; in the order of the durations given."""
    utilisation: Floats
    """The share of time in which each worker computes."""

    @property
    def throughput(self) -> float:
        """Gradients per second."""
        return self.concurrency / self.seconds

    @property
    def length(self) -> Floats:
        """Mean number of jobs on each worker, the one in work included (Little's law)."""
        return self.throughput / len(self.response) * self.response


def queues(
    durations: Sequence[float] | Floats, concurrency: int, *, variability: float | Sequence[float] | Floats = 0.0
) -> Queues:
    """Predict Algorithm 2 in the long run: seconds for ``concurrency`` gradients, and each worker's queue.

    Mean value analysis: with k jobs, a job that reaches worker i finds the average queue of a network with k - 1 jobs,

        R_i(k) = Δ_i (1 + Q_i - (1 - c²)/2 · U_i · (1 - M_i)),   X(k) = k / mean R(k),   Q_i(k) = X(k)/n · R_i(k),

    with Q_i, U_i = XΔ_i/n and M_i = Q_i(k-1) - Q_i(k-2) of k - 1 jobs. c² is the squared coefficient of variation of a
    worker's durations. c² = 1, exponential, is exact (Reiser and Lavenberg 1980). Otherwise the job in work has (1 +
    c²)/2 · Δ_i left on average rather than Δ_i (Reiser 1979). The factor 1 - M_i is new here: if nearly every further
    job ends up at worker i, arrivals there follow its departures and find a job that has just begun. Without this
    factor the throughput can exceed what the slowest worker can do. n = 1, and one job in flight, are exact for all c².

    Error of the seconds against simulated fixed durations, over 336 networks (2 to 1000 workers, 1 to 10 n jobs; equal,
    nearly equal, two speeds, exponential and log-normal spread): median 0.04 %, nine in ten below 0.4 %, at most 3.1 %
    (2 equal workers with 2 jobs; 1 % from 5 workers on). Gamma durations, 39 networks each: at most 0.8 % for c² up to
    1, 2.3 % for c² = 2, 10 % for c² = 4. For c² from 8 to 50 the seconds are rough, 31 % off at worst over 33 networks,
    mostly too long and with few jobs in flight. There the throughput is kept from falling below that with one job
    fewer, because one more job never lowers it (Adan and van der Wal 1989). All this is about the long run: the queue
    of a slow worker can take some n · concurrency arrivals to fill, and until then a run is faster.

    Args:
        durations: Mean seconds per gradient, one per worker.
        concurrency: The number of jobs in flight.
        variability: c², one number or one per worker: 0 for fixed durations, 1 for exponential ones.

    >>> found = queues([10.0] * 900 + [60.0] * 100, 300)
    >>> round(found.seconds, 1), round(float(found.utilisation[-1]), 2)
    (24.2, 0.74)

    See docs/theory.md for times with and without queues side by side.
    """
    count("concurrency", concurrency)
    network = Network.of(durations, variability)
    *_, (seconds, response) = network.steps([concurrency])
    n = len(network.member)
    each = (response / network.duration)[network.member] * network.own
    return Queues(int(concurrency), seconds, each, concurrency / seconds / n * network.own)


def queued_times(
    durations: Sequence[float] | Floats,
    concurrencies: Sequence[int] | Ints,
    *,
    variability: float | Sequence[float] | Floats = 0.0,
) -> Floats:
    """Return ``queues(durations, c).seconds`` for many concurrencies c at the cost of the largest.

    Args:
        durations: The mean seconds of a job of each worker.
        concurrencies: The numbers of jobs in flight.
        variability: The squared coefficient of variation of the durations, as in `queues`.

    >>> queued_times([10.0] * 900 + [60.0] * 100, [10, 100, 1000]).round(1)
    array([15.1, 16.9, 63.7])

    See docs/theory.md for times with and without queues side by side.
    """
    wanted = [int(c) if isinstance(c, np.integer) else c for c in concurrencies]
    for concurrency in wanted:
        count("concurrency", concurrency)
    if not wanted:
        raise BadParameter("concurrencies", concurrencies, "is empty", "pass at least one")
    order = sorted(set(wanted))
    steps = Network.of(durations, variability).steps(order)
    found = {concurrency: seconds for concurrency, (seconds, _) in zip(order, steps, strict=True)}
    return np.array([found[concurrency] for concurrency in wanted])


@dataclass(frozen=True)
class Network:
    """Workers in classes of equal duration, the slowest class last."""

    duration: Floats
    share: Floats
    """The share of workers in each class."""
    correction: Floats
    """(1 - c²)/2."""
    member: Ints
    """The class of each worker, in the order given."""
    own: Floats
    """The duration of each worker, in the order given."""

    @classmethod
    def of(cls, durations: Sequence[float] | Floats, variability: float | Sequence[float] | Floats) -> Network:
        """Put the workers into classes.

        Up to 2048 distinct durations each have their own class. Beyond that the 1024 slowest do, and the others share
        1024 classes of equal width in log Δ, each with its mean. As the throughput of exponential workers falls with
        every Δ_i and scales with all of them, the error is at most the relative width of a class, about
        log(Δ_max/Δ_min)/1024. Being of second order it is smaller: at most 3e-6 with 20,000 workers of six spreads.
        """
        sorted_durations(durations)
        own, varied = numbers("durations", durations), numbers("variability", variability)
        if varied.shape not in ((), own.shape) or not (np.isfinite(varied).all() and (varied >= 0).all()):
            fix = "pass a number that is not negative, or one per worker"
            raise BadParameter("variability", variability, "is not a squared coefficient of variation", fix)
        values, member = np.unique(own, return_inverse=True)
        if len(values) > ALONE + SHARED:
            logs = np.log(values[:-ALONE])
            place = (SHARED * ((logs - logs[0]) / (logs[-1] - logs[0]))).astype(np.int64).clip(max=SHARED - 1)
            places = np.concatenate([place, SHARED + np.arange(ALONE)])
            member = np.unique(places, return_inverse=True)[1][member]
        many = np.bincount(member)
        correction = np.bincount(member, weights=np.broadcast_to((1 - varied) / 2, own.shape)) / many
        return cls(np.bincount(member, weights=own) / many, many / len(own), correction, member, own)

    def steps(self, concurrencies: Sequence[int]) -> list[tuple[float, Floats]]:
        """Return (seconds for c gradients, seconds per job and class) for each concurrency c, in growing order."""
        n = len(self.member)
        exact = not self.correction.any()
        alone = float(self.duration @ self.share)
        fastest = n / self.duration[-1]  # the slowest worker gets its share of the jobs and does one at a time
        before, length = np.zeros_like(self.duration), np.zeros_like(self.duration)
        throughput, jobs, found = 0.0, 0, []
        for concurrency in concurrencies:
            while jobs < concurrency:
                jobs += 1
                waiting = 1 + length
                if not exact:
                    marginal = np.clip(length - before, 0.0, 1.0)
                    waiting -= self.correction * (throughput / n * self.duration) * (1 - marginal)
                response = self.duration * waiting
                mean = float(response @ self.share)
                if jobs / mean < throughput:  # happens for large c², but one more job never lowers the throughput
                    waited, mean = mean - alone, jobs / throughput
                    response = self.duration + (response - self.duration) * (mean - alone) / waited
                throughput = min(jobs / mean, fastest)
                # Little's law; under the cap above, the remaining jobs wait like the others.
                before, length = length, jobs / (n * mean) * response
            found.append((jobs / throughput, response * (jobs / (throughput * mean))))
        return found


@dataclass(frozen=True)
class ExpectedDelays:
    """The expected delays of a long run, as a theorem would read them from its trace."""

    concurrency: int
    """τ_C."""
    average: float
    """The mean over arrivals: τ_C - 1 for every constant concurrency, whatever the durations are."""
    per_worker: Floats
    """τ^i_avg, in the order of the durations given."""
    maximum: int | None
    """An upper bound on τ_max; None if there is none."""


def async_delays(durations: Sequence[float] | Floats) -> ExpectedDelays:
    """Predict the delays of Algorithm 1 with every worker always busy: τ^i_avg = Δ_i Σ_j 1/Δ_j - 1.

    Exact in the long run for durations of mean Δ_i, fixed or random: worker i is in every C_t, so its delays plus 1 add
    up to the number of iterations. The maximum is for fixed durations: while the slowest computes, worker j can arrive
    ⌈Δ_n/Δ_j⌉ times (once more if that quotient is an integer and rounding or chance breaks a tie).

    Args:
        durations: The mean seconds of a job of each worker.

    >>> found = async_delays([1.0, 1.0, 10.0])
    >>> found.per_worker.round(1), found.maximum
    (array([ 1.1,  1.1, 20. ]), 20)

    See docs/theory.md for times with and without queues side by side.
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
    """Predict the delays of Algorithm 2: τ^i_avg = n Q_i(τ_C - 1), the queue with one job fewer in flight, times n.

    Exact for exponential durations: an arriving job finds the queues of τ_C - 1 jobs, and the delays of worker i add up
    to the queues that arrivals find there. For fixed durations (τ_C - 1) R_i / mean R is closer, with R_i the seconds
    from assignment to arrival; in between, the two are mixed by ``variability``. Both have the exact mean. For fixed
    durations simulated delays per worker differ by some 10 % with 30 workers of different speeds; with fewer, the small
    delays of fast workers can be less than half of this prediction. A job can wait behind any number of others, so the
    maximum has no bound.

    Args:
        durations: Mean seconds per gradient, one per worker.
        concurrency: τ_C, the number of jobs in flight.
        variability: c², the squared coefficient of variation of the durations; see `queues`.

    >>> federated_delays([10.0] * 900 + [60.0] * 100, 10).per_worker[[0, -1]].round(1)
    array([ 6. , 36.3])

    See docs/theory.md for times with and without queues side by side.
    """
    found = queues(durations, concurrency, variability=variability)
    average = concurrency - 1.0
    delay = average * found.response / found.response.mean()
    if concurrency > 1:
        weight = float(np.minimum(numbers("variability", variability), 1.0).mean())
        fewer = queues(durations, concurrency - 1, variability=variability)
        delay = (1 - weight) * delay + weight * len(delay) * fewer.length
    return ExpectedDelays(int(concurrency), average, delay, None)
