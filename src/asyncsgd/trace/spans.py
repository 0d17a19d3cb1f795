"""When each job waited and when it was computed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from asyncsgd.trace.columns import Floats, Mask
from asyncsgd.trace.trace import Trace


@dataclass(frozen=True, eq=False)
class Spans:
    """One row per job: assigned, then computed from ``begin`` to ``end``; in seconds, or in iterations without a clock.

    A worker does its jobs first in, first out: it began one when that was assigned, or when those before it had
    ended if that was later. A job in flight goes on to the ``horizon``; one that never began has ``begin == end``.
    """

    assigned: Floats
    begin: Floats
    end: Floats
    horizon: float
    """Where the record ends."""
    timed: bool
    """Whether these are seconds."""

    @property
    def waited(self) -> Mask:
        """Which jobs stood in a queue."""
        mask: Mask = self.begin > self.assigned
        return mask


def spans(trace: Trace, horizon: float | None = None) -> Spans:
    """Tell waiting from computing; ``horizon`` is where the record ends, by default with the last thing that it knows.

    Worker 0 is given two jobs at once and so begins the second when the first has ended:

    >>> found = spans(Trace.from_history(workers=[0, 0, 1], assigned=[0, 0, 0], arrived=[0, 2, 1]))
    >>> found.begin, found.end, found.timed
    (array([0., 1., 0.]), array([1., 3., 2.]), False)
    """
    jobs = trace.jobs
    timed = bool(len(jobs)) and bool(np.isfinite(jobs.assigned_time).all())
    if timed:
        assigned, ended = jobs.assigned_time, jobs.ended_time
    else:  # arrival t takes the time from t to t + 1
        assigned = jobs.assigned_iteration.astype(float)
        ended = np.where(jobs.in_flight, np.nan, jobs.ended_iteration + jobs.arrived)
    if horizon is None:
        known = ended[~jobs.in_flight]
        horizon = float(max(assigned.max(initial=0.0), known.max(initial=0.0)))
    end = np.where(jobs.in_flight, max(horizon, float(assigned.max(initial=0.0))), ended)
    if not len(jobs):
        return Spans(assigned, assigned, end, horizon, timed)

    # Of each worker, the latest end among the jobs before: a running maximum that begins anew with every worker. Ends
    # stand there by rank, so that a worker's place in front of it makes one whole number of the two.
    worker = np.unique(jobs.worker, return_inverse=True)[1]
    order = np.lexsort((jobs.job, worker))
    ranked = np.argsort(end, kind="stable")
    rank = np.empty(len(end), np.int64)
    rank[ranked] = np.arange(len(end))
    latest = np.maximum.accumulate((worker * len(end) + rank)[order])
    again = np.flatnonzero(worker[order[1:]] == worker[order[:-1]]) + 1  # rows whose worker had a job before
    free = np.full(len(end), -np.inf)
    free[order[again]] = end[ranked[latest[again - 1] % len(end)]]
    begin = np.minimum(np.maximum(assigned, free), end)
    return Spans(assigned, begin, end, float(horizon), timed)
