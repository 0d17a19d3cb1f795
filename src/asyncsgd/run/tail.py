"""What was appended to a file since the last look. Every byte is read once, however long the run."""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadTraceFile, Damage, Torn
from asyncsgd.core.events import Outcome
from asyncsgd.trace import Jobs
from asyncsgd.trace.columns import Floats, Ints
from asyncsgd.trace.log import MAGIC, batch, metadata
from asyncsgd.trace.sealed import Mark, blocks, lines

SECONDS = 5.0
"""The speed is measured over at least this time,"""
EACH, FEW = 4, 10
"""and over at least this many updates of each worker, and in all: so slow workers count too."""
TOGETHER = 0.2
"""Seconds."""
MOST = 10_000
"""Moments that are remembered."""


class Pace:
    """Moments at which updates had arrived, and the speed that follows from them.

    >>> pace = Pace(0.0)
    >>> for update in range(1, 5):
    ...     pace.add(25.0 * update, update)
    >>> pace.per_second(110.0, workers=1)
    0.04
    """

    def __init__(self, time: float, iteration: int = 0) -> None:
        self._seen = deque([(time, iteration)], maxlen=MOST)
        self._moment = -math.inf  # when the newest moment began
        self._from_start = True

    def add(self, time: float, iteration: int) -> None:
        """Note how many updates had arrived at this time. Those that come together, as a batch does, are one moment."""
        if iteration <= self._seen[-1][1]:
            return
        if time < self._moment + TOGETHER:
            self._seen.pop()
        else:
            self._moment = time
        self._seen.append((time, iteration))

    def per_second(self, now: float, workers: int) -> float:
        """Return updates per second up to now; 0 before the first one.

        Between two moments the speed stays what it was. It falls once the next one is later than the mean.
        The time before the first update, in which workers may have started, counts only until enough came after it.
        """
        seen, last = self._seen, self._seen[-1]
        least = max(FEW, EACH * workers)
        while len(seen) > 2 and last[1] - seen[1][1] >= least and (self._from_start or seen[1][0] <= now - SECONDS):
            seen.popleft()
            self._from_start = False
        first = seen[0]
        updates = last[1] - first[1]
        if not updates:
            return 0.0
        took = last[0] - first[0]
        between = took / (len(seen) - 1)
        return updates / max(took, now - between - first[0], 1e-9)


# --------------------------------------------------------------------------------------------------------------
# Counts over the jobs of a run that grow with every batch; their size does not depend on the length of the run.


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


CHUNK = 1 << 20


class Tail:
    """A file that grows, or is not there yet. The file stays open, so that its number cannot become another's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._offset = self._chain = 0

    def look(self) -> bool:
        """Open the file if it is there by now; whether what was read before is void (replaced, shortened)."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return self._file is not None
        if self._file is None:
            with suppress(FileNotFoundError):  # gone in between
                self._file = self.path.open("rb", buffering=0)  # a buffer would keep what is no longer there
            return False
        mine = os.fstat(self._file.fileno())
        return (mine.st_dev, mine.st_ino) != (now.st_dev, now.st_ino) or now.st_size < self._offset

    @property
    def changed(self) -> float | None:
        """When the file last grew, on the clock of its disk; None if it is not there."""
        return None if self._file is None else os.fstat(self._file.fileno()).st_mtime

    def close(self) -> None:
        """Let go of the file, to begin anew with whatever is there then."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._offset = self._chain = 0


class Lines(Tail):
    """Lines of JSON. A last one without its end has not been written whole yet."""

    def news(self) -> Iterator[dict[str, Any]]:
        """The lines that are new."""
        if self._file is None:
            return
        rest = b""
        while chunk := os.pread(self._file.fileno(), CHUNK, self._offset + len(rest)):
            rest += chunk
            seen = self._offset
            try:
                for row, mark in lines(rest, Mark(self._offset, self._chain)):
                    self._offset, self._chain = mark.size, mark.chain
                    yield row
            except (Damage, ValueError) as error:
                raise Torn(f"{self.path} is damaged ({error})") from error
            rest = rest[self._offset - seen :]


class Log(Tail):
    """Blocks of a running trace; see `asyncsgd.trace.TraceLog`. A torn last one is tried again at the next look."""

    def news(self) -> Iterator[Jobs]:
        """The blocks that are new: jobs as they were assigned, and jobs that have ended."""
        if self._file is None:
            return
        if self._offset == 0:
            self._file.seek(0)
            begin = self._file.read(len(MAGIC))
            if begin != MAGIC:
                if MAGIC.startswith(begin):
                    return  # it has not been written yet
                fix = "use the asyncsgd that writes it"
                raise BadTraceFile(f"{self.path} is not a log of this version of asyncsgd; {fix}")
            self._offset = len(MAGIC)
        size = os.fstat(self._file.fileno()).st_size
        self._file.seek(self._offset)
        data = self._file.read(max(0, size - self._offset))
        try:
            for payload, mark in blocks(data, Mark(self._offset, self._chain)):
                first, self._offset, self._chain = self._offset == len(MAGIC), mark.size, mark.chain
                if first:
                    metadata(self.path, payload)  # refuses another format
                elif payload:
                    yield batch(self.path, payload)
        except Damage as error:
            raise Torn(f"{self.path} is damaged ({error})") from error
