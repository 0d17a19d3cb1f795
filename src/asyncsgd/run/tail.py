"""Read what was appended to the files of a run since the last look. Every byte is read once."""

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
"""Minimum time over which the speed is measured."""
EACH, FEW = 4, 10
"""Minimum number of updates per worker, and in all, over which the speed is measured: slow workers count too."""
TOGETHER = 0.2
"""Updates within this many seconds count as one moment."""
MOST = 10_000
"""Maximum number of moments to keep."""


class Pace:
    """Recent speed, from the moments at which updates arrived.

    >>> pace = Pace(0.0)
    >>> for update in range(1, 5):
    ...     pace.add(25.0 * update, update)
    >>> pace.per_second(110.0, workers=1)
    0.04
    """

    def __init__(self, time: float, iteration: int = 0) -> None:
        self._seen = deque([(time, iteration)], maxlen=MOST)
        self._moment = -math.inf  # start of the newest moment
        self._from_start = True

    def add(self, time: float, iteration: int) -> None:
        """Add the number of updates that had arrived at this time. A batch that arrives together is one moment."""
        if iteration <= self._seen[-1][1]:
            return
        if time < self._moment + TOGETHER:
            self._seen.pop()
        else:
            self._moment = time
        self._seen.append((time, iteration))

    def per_second(self, now: float, workers: int) -> float:
        """Return updates per second up to now; 0 before the first one.

        Between two moments the speed stays constant. It falls once the next moment is later than the mean interval.
        The time before the first update, when workers may still start, counts only until enough updates arrived.
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


@dataclass
class Doing:
    """Counts of one worker so far."""

    jobs: int = 0
    """Number of updates that arrived."""
    delay_sum: int = 0
    faults: int = 0
    """Number of jobs that were lost or rejected."""
    last: float | None = None
    """Time of its last update, on the clock of the run."""


class Tally:
    """Statistics of a growing trace, batch by batch. They equal those of `Trace.delays` for the whole trace.

    Memory does not depend on the length of the run.
    """

    def __init__(self) -> None:
        self.iterations = 0
        self.outcomes = dict.fromkeys((o for o in Outcome if o is not Outcome.IN_FLIGHT), 0)
        self.in_flight: dict[int, tuple[int, int, float]] = {}
        """Worker, version read and time of assignment by job, in the order of assignment."""
        self.workers: dict[int, Doing] = {}
        self.latest = 0.0
        """Time of the last event, on the clock of the run."""
        self._delays = np.zeros(1, np.int64)  # number of arrivals with delay 0, 1, ...
        self._pace = Pace(0.0)

    def add(self, batch: Jobs) -> None:
        """Add one batch. The log holds every end once, and every job before its end or together with it."""
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
        """Add the last update of each moment: a batch may be the whole log, for instance after a resume."""
        times = np.sort(times)
        last = np.append(np.diff(np.floor(times / TOGETHER)) > 0, True)
        for place in np.flatnonzero(last[: len(times)])[-MOST:].tolist():
            self._pace.add(float(times[place]), self.iterations + place + 1)

    def _flying(self, *, all_of_them: bool) -> Iterator[tuple[int, int]]:
        """Yield worker and current delay of the jobs in flight; the newest job only if ``all_of_them``."""
        last = max(self.in_flight, default=-1)
        for job, (worker, read, _) in self.in_flight.items():
            if all_of_them or job != last:
                yield worker, self.iterations - read

    def histogram(self) -> Ints:
        """Return the number of jobs with delay 0, 1, ..., as `Delays.histogram`: all but the newest job."""
        flying = [delay for _, delay in self._flying(all_of_them=False)]
        counts = _plus(self._delays, np.bincount(np.array(flying, np.int64))) if flying else self._delays
        return counts[: int(np.flatnonzero(counts).max(initial=-1)) + 1]

    def per_worker(self) -> dict[int, float | None]:
        """Return the mean delay of each worker over its arrivals and jobs in flight; None if it has neither."""
        sums = {worker: [doing.delay_sum, doing.jobs] for worker, doing in self.workers.items()}
        for worker, delay in self._flying(all_of_them=True):
            sums[worker][0] += delay
            sums[worker][1] += 1
        return {worker: total / count if count else None for worker, (total, count) in sorted(sums.items())}

    def speed(self, now: float, workers: int) -> float:
        """Return the recent number of updates per second."""
        return self._pace.per_second(now, workers)


def _plus(one: Ints, other: Ints) -> Ints:
    longer, shorter = (one, other) if len(one) >= len(other) else (other, one)
    total = longer.copy()
    total[: len(shorter)] += shorter
    return total


CHUNK = 1 << 20


class Tail:
    """A file that grows, or does not exist yet. It stays open, so that its inode number cannot be reused."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._offset = self._chain = 0

    def look(self) -> bool:
        """Open the file once it exists; return whether it was replaced or shortened: then read it from the start."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return self._file is not None
        if self._file is None:
            with suppress(FileNotFoundError):  # deleted meanwhile
                self._file = self.path.open("rb", buffering=0)  # a buffer could return data that was cut off
            return False
        mine = os.fstat(self._file.fileno())
        return (mine.st_dev, mine.st_ino) != (now.st_dev, now.st_ino) or now.st_size < self._offset

    @property
    def changed(self) -> float | None:
        """Time of the file's last change; None if it does not exist."""
        return None if self._file is None else os.fstat(self._file.fileno()).st_mtime

    def close(self) -> None:
        """Close the file; the next look starts from its beginning."""
        if self._file is not None:
            self._file.close()
        self._file = None
        self._offset = self._chain = 0


class Lines(Tail):
    """Lines of JSON. An incomplete last line is read later, when it is complete."""

    def news(self) -> Iterator[dict[str, Any]]:
        """Yield the new lines."""
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
    """Blocks of a running trace, see `asyncsgd.trace.TraceLog`. An incomplete last block is read at a later look."""

    def news(self) -> Iterator[Jobs]:
        """Yield the new blocks: jobs that were assigned, and jobs that have ended."""
        if self._file is None:
            return
        if self._offset == 0:
            self._file.seek(0)
            begin = self._file.read(len(MAGIC))
            if begin != MAGIC:
                if MAGIC.startswith(begin):
                    return  # not completely written yet
                fix = "use the version that wrote it"
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
