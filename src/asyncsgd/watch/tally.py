"""Counts over the jobs of a run that grow with every batch; their size does not depend on the length of the run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from asyncsgd.core.events import Outcome
from asyncsgd.run.pace import MOST, TOGETHER, Pace
from asyncsgd.trace import Jobs
from asyncsgd.trace.columns import Floats, Ints


@dataclass
class Doing:
    """What one worker has done so far."""

    jobs: int = 0
    """Arrivals."""
    delay_sum: int = 0
    faults: int = 0
    """Jobs that were lost or rejected."""
    last: float | None = None
    """When its last update arrived, on the clock of the run."""


class Tally:
    """Takes batches of a trace's log; what it then says is what `Trace.delays` would say of the whole trace."""

    def __init__(self) -> None:
        self.iterations = 0
        self.outcomes = dict.fromkeys((o for o in Outcome if o is not Outcome.IN_FLIGHT), 0)
        self.in_flight: dict[int, tuple[int, int, float]] = {}
        """job: (worker, the s of its x^(s), when it was assigned); in the order of assignment."""
        self.workers: dict[int, Doing] = {}
        self.latest = 0.0
        """The last that the trace knows of, on the clock of the run."""
        self._delays = np.zeros(1, np.int64)  # how many arrivals had delay 0, 1, ...
        self._pace = Pace(0.0)

    # ------------------------------------------------------------------------------------------ batches in

    def add(self, batch: Jobs) -> None:
        """Take one batch. The log writes every end once, and every job before its end or with it."""
        flying = batch.in_flight
        ended = ~flying
        for job, worker in zip(batch.job[ended].tolist(), batch.worker[ended].tolist(), strict=True):
            self.in_flight.pop(job, None)
            self.workers.setdefault(worker, Doing())
        columns = (batch.job, batch.worker, batch.assigned_iteration, batch.assigned_time)
        for job, worker, read, time in zip(*(column[flying].tolist() for column in columns), strict=True):
            self.in_flight[job] = (worker, read, time)
            self.workers.setdefault(worker, Doing())
        for outcome in self.outcomes:
            self.outcomes[outcome] += int(np.count_nonzero(batch.outcome == outcome))
        self._arrivals(batch)
        faulty = (batch.outcome == Outcome.LOST) | (batch.outcome == Outcome.REJECTED)
        for worker in batch.worker[faulty].tolist():
            self.workers[worker].faults += 1
        times = np.concatenate((batch.assigned_time, batch.ended_time))
        self.latest = max(self.latest, float(times[np.isfinite(times)].max(initial=0.0)))

    def _arrivals(self, batch: Jobs) -> None:
        arrived = batch.arrived
        if not arrived.any():
            return
        worker, time = batch.worker[arrived], batch.ended_time[arrived]
        delay = batch.ended_iteration[arrived] - batch.assigned_iteration[arrived]
        self._keep_pace(time[np.isfinite(time)])
        self.iterations += len(delay)
        self._delays = _plus(self._delays, np.bincount(delay))
        names, rank = np.unique(worker, return_inverse=True)
        jobs, sums = np.bincount(rank), np.bincount(rank, delay)
        last = np.full(len(names), -np.inf)
        np.maximum.at(last, rank, time)
        for place, name in enumerate(names.tolist()):
            doing = self.workers[name]
            doing.jobs += int(jobs[place])
            doing.delay_sum += int(sums[place])
            if np.isfinite(last[place]):
                doing.last = float(last[place])

    def _keep_pace(self, times: Floats) -> None:
        """Of updates that came together the last one will do: a batch may be the whole log, as after a resume."""
        times = np.sort(times)
        last = np.append(np.diff(np.floor(times / TOGETHER)) > 0, True)
        for place in np.flatnonzero(last[: len(times)])[-MOST:].tolist():
            self._pace.add(float(times[place]), self.iterations + place + 1)

    # ------------------------------------------------------------------------------------------ figures out

    def _flying(self, *, all_of_them: bool) -> Iterator[tuple[int, int]]:
        """Worker and delay so far of the jobs in flight; the one assigned last counts only for its worker."""
        last = max(self.in_flight, default=-1)
        for job, (worker, read, _) in self.in_flight.items():
            if all_of_them or job != last:
                yield worker, self.iterations - read

    def histogram(self) -> Ints:
        """How many jobs have delay 0, 1, ...: arrivals, and jobs in flight but for the last; as `Delays.histogram`."""
        flying = [delay for _, delay in self._flying(all_of_them=False)]
        counts = _plus(self._delays, np.bincount(np.array(flying, np.int64))) if flying else self._delays
        return counts[: int(np.flatnonzero(counts).max(initial=-1)) + 1]

    def per_worker(self) -> dict[int, float | None]:
        """τ^i_avg: over arrivals and jobs in flight of worker i; None if it has neither."""
        sums = {worker: [doing.delay_sum, doing.jobs] for worker, doing in self.workers.items()}
        for worker, delay in self._flying(all_of_them=True):
            sums[worker][0] += delay
            sums[worker][1] += 1
        return {worker: total / count if count else None for worker, (total, count) in sorted(sums.items())}

    def speed(self, now: float, workers: int) -> float:
        """Updates per second, lately, with so many workers."""
        return self._pace.per_second(now, workers)


def _plus(one: Ints, other: Ints) -> Ints:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total
