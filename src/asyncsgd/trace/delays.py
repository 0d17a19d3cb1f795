"""The delays of a trace by the paper's definitions, with τ = t - s (docs: "One convention for delays")."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from asyncsgd.trace.columns import Ints, Jobs


@dataclass(frozen=True, eq=False)
class Delays:
    """What the theorems ask of the delays.

    The average and the maximum run over the T arrivals and the jobs in flight at T except j_T, the one that
    would arrive next. A trace cannot know which that is, so the job assigned *last* is left out: that never
    hides a straggler. In-flight job i has τ_i = T - s_i. If nothing is in flight, the divisor is T.

    >>> from asyncsgd.trace import Trace
    >>> trace = Trace.from_history(workers=[0, 1, 1, 1], assigned=[0, 0, 1, 2], arrived=[-1, 0, 1, -1])
    >>> trace.delays.average, trace.delays.maximum, trace.delays.per_worker
    (0.6666666666666666, 2, {0: 2.0, 1: 0.0})
    >>> trace.delays.concurrency, trace.delays.mean_concurrency
    (2, 2.0)
    """

    average: float
    """τ_avg = (Σ_{t<T} τ_t + Σ_{i in C_T, i ≠ j_T} τ_i) / (T + |C_T| - 1); NaN if there is no such job."""
    maximum: int
    """τ_max over the same jobs; 0 if there are none."""
    concurrency: int
    """τ_C = max_t |C_t| over t = 0, ..., T."""
    mean_concurrency: float
    """τ̄_C = Σ_{t=0..T} |C_t| / (T + 1)."""
    per_worker: dict[int, float]
    """τ^i_avg: the mean over the arrived and in-flight jobs of worker i, all of these included."""
    values: Ints = field(repr=False)
    """The delays that ``average`` and ``maximum`` are made of: by job, in the order of assignment."""

    def histogram(self) -> Ints:
        """Count the jobs with each delay: entry d is the number of jobs with τ = d.

        >>> from asyncsgd.trace import Trace
        >>> Trace.from_history(workers=[0, 1, 1], assigned=[0, 0, 1], arrived=[1, 0, -1]).delays.histogram()
        array([1, 1])
        """
        return np.bincount(self.values)


def summarise(jobs: Jobs, iterations: int, active: Ints) -> Delays:
    """Compute every figure of ``Delays`` from the rows and |C_0|, ..., |C_T|."""
    in_flight = jobs.in_flight
    counted = jobs.arrived | in_flight
    delay = np.where(in_flight, iterations, jobs.ended_iteration) - jobs.assigned_iteration

    workers, rank = np.unique(jobs.worker[counted], return_inverse=True)
    totals = np.bincount(rank, weights=delay[counted], minlength=len(workers))  # exact below 2^53
    means = totals / np.bincount(rank, minlength=len(workers))

    flying = np.flatnonzero(in_flight)
    if len(flying):
        counted[flying[-1]] = False
    values = delay[counted]
    return Delays(
        average=int(values.sum()) / len(values) if len(values) else float("nan"),
        maximum=int(values.max(initial=0)),
        concurrency=int(active.max(initial=0)),
        mean_concurrency=int(active.sum()) / len(active),
        per_worker=dict(zip(workers.tolist(), means.tolist(), strict=True)),
        values=values,
    )


@dataclass(frozen=True)
class Remark5:
    """The paper's Remark 5 beside the exact figure.

    The remark counts every delay from 1, so on a plain run ``difference`` is
    (T + |C_T| + τ_{j_T}) / (T + |C_T| - 1), close to 1, and not 0.
    """

    paper: float
    """(T + 1) / (T + |C_T| - 1) · τ̄_C."""
    exact: float
    """τ_avg with τ = t - s."""

    @property
    def difference(self) -> float:
        """By how much the paper's form is larger."""
        return self.paper - self.exact


def remark5(delays: Delays, iterations: int, last: int) -> Remark5:
    """Compute both sides of Remark 5; ``last`` is |C_T|."""
    jobs = iterations + last - 1
    paper = (iterations + 1) * delays.mean_concurrency / jobs if jobs > 0 else float("nan")
    return Remark5(paper, delays.average)
