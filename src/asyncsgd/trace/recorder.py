"""The recorder, which builds a trace during a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from asyncsgd.core.errors import TraceError
from asyncsgd.core.events import Assign, Command, Ended, Job, Outcome
from asyncsgd.core.validate import is_id
from asyncsgd.trace.columns import DTYPES, IN_FLIGHT, Ints, Jobs
from asyncsgd.trace.trace import Trace


class Recorder:
    """Record each event's assignments and ended jobs; ``trace()`` returns a snapshot at any moment.

        >>> from asyncsgd.core.events import Job
        >>> recorder = Recorder(metadata={"method": "async_sgd"})
        >>> job = Job(id=0, worker=3, iteration=0, version=0, entered=0, seed=1)
        >>> recorder.record(0.0, [Assign(job, np.zeros(2), 0)], [])
        >>> recorder.record(1.5, [], [Ended(job, Outcome.APPLIED, 0, 0, step=0.1, concurrency=1, workers=1)])
        >>> recorder.trace(final_concurrency=0).check()
        Identity(delays=1, in_flight=0, others=0, concurrency=1)

    Once a `TraceLog` has written the rows, the recorder can `forget` those that have ended. It then holds only the jobs
    in flight and later ones, however long the run is.
    """

    def __init__(self, metadata: Mapping[str, str] | None = None, capacity: int = 1024) -> None:
        self.metadata = dict(metadata or {})
        self._count = 0  # jobs so far
        self._used = 0  # rows here: those of `_kept`, then all jobs from `_base` on
        self._base = 0
        self._kept: dict[int, int] = {}  # job -> its row, of those that were in flight when the rest was forgotten
        self._columns = {name: np.empty(0, dtype) for name, dtype in DTYPES.items()}
        self._reserve(max(1, capacity))

    @classmethod
    def resume(cls, trace: Trace) -> Recorder:
        """Return a recorder that continues an earlier trace; jobs in flight there can end here."""
        recorder = cls(trace.metadata, capacity=2 * len(trace) + 1024)
        for name in DTYPES:
            recorder._columns[name][: len(trace)] = getattr(trace.jobs, name)
        recorder._count = recorder._used = len(trace)
        return recorder

    def __len__(self) -> int:
        return self._count

    def record(self, time: float, commands: Iterable[Command], ended: Sequence[Ended]) -> None:
        """Record one event: the commands of the server's reply, and the jobs that the event ended.

        If this raises, the recorder is unchanged.
        """
        count, used, done = self._count, self._used, 0
        try:
            for command in commands:
                if type(command) is Assign:
                    self._assign(time, command)
            for end in ended:
                self._end(time, end)
                done += 1
        except BaseException as error:
            self._undo(ended[: done + 1], whole=done)
            self._count, self._used = count, used
            if isinstance(error, TypeError | ValueError | OverflowError):
                fix = "ids and counts are whole numbers below 2**63, times and steps are numbers"
                raise TraceError(f"the event at time {time!r} cannot be recorded ({error}); {fix}") from error
            raise

    def _assign(self, time: float, command: Assign) -> None:
        job, row = command.job, self._used
        if type(job.id) is not int or type(job.worker) is not int:
            _check_ids(job)
        if job.id != self._count:
            order = "jobs are numbered in order of assignment"
            raise TraceError(f"job {job.id} was assigned after {self._count} others; {order}")
        if row == self._capacity:
            self._reserve(2 * row)
        self._job[row] = job.id
        self._worker[row] = job.worker
        self._assigned_iteration[row] = job.iteration
        self._assigned_version[row] = job.version
        self._entered[row] = job.entered
        self._assigned_time[row] = time
        self._steps[row] = job.steps
        self._batch[row] = job.batch
        self._used = row + 1
        self._count += 1

    def _end(self, time: float, end: Ended) -> None:
        job = end.job.id
        if type(job) is not int:
            _check_ids(end.job)
        if type(end.outcome) is not Outcome:
            _check_outcome(end)
        if not 0 <= job < self._count:
            raise TraceError(f"job {job} ended, but only jobs 0..{self._count - 1} were assigned; record that first")
        row = self._row(job)
        if row < 0:
            raise TraceError(f"job {job} of worker {end.job.worker} ended twice: its end is on disk already")
        if self._outcome[row]:
            was = Outcome(self._outcome[row]).name.lower()
            raise TraceError(f"job {job} of worker {self._worker[row]} ended twice: it was {was} already")
        if not end.outcome:
            raise TraceError(f"job {job} of worker {end.job.worker} cannot end as in flight; pass how it ended")
        self._ended_iteration[row] = end.iteration
        self._ended_version[row] = end.version
        self._ended_time[row] = time
        self._step[row] = end.step
        self._concurrency[row] = end.concurrency
        self._workers[row] = end.workers
        if end.examples is not None:
            self._examples[row] = end.examples
        if end.seconds is not None:
            self._seconds[row] = end.seconds
        self._outcome[row] = end.outcome  # last, so that a row that could not be filled is still in flight

    def rows(self, jobs: Ints) -> Jobs:
        """Return a copy of the rows of some jobs."""
        places = np.where(jobs < self._base, -1, jobs - self._base + len(self._kept))
        for which in np.flatnonzero(places < 0):
            places[which] = self._row(int(jobs[which]))
        if (places < 0).any() or (places >= self._used).any():
            raise TraceError("the recorder has forgotten some of these jobs, or never had them; read the run's log")
        return Jobs(**{name: column[: self._used][places] for name, column in self._columns.items()})

    def trace(self, final_concurrency: int | None = None) -> Trace:
        """Return all rows so far, as a copy; ``final_concurrency`` is |C_T| by the server's own count."""
        if self._used != self._count:
            raise TraceError("the recorder has forgotten jobs that have ended; read the run's log: Trace.read(path)")
        columns = {name: column[: self._used].copy() for name, column in self._columns.items()}
        return Trace(Jobs(**columns), self.metadata, final_concurrency)

    def forget(self) -> None:
        """Drop the rows of jobs that have ended, once a log has them; the jobs in flight stay."""
        flying = np.flatnonzero(self._columns["outcome"][: self._used] == Outcome.IN_FLIGHT)
        if len(flying) == self._used:
            return
        for name in DTYPES:
            self._columns[name] = self._columns[name][flying]
        self._used = len(flying)
        self._kept = {job: row for row, job in enumerate(self._columns["job"].tolist())}
        self._base = self._count
        self._reserve(max(1024, 2 * self._used))

    @property
    def nbytes(self) -> int:
        """The number of bytes that the rows take."""
        return sum(column.nbytes for column in self._columns.values())

    # --------------------------------------------------------------------------------------------- inside

    def _row(self, job: int) -> int:
        """Return the row of a job that was assigned; -1 if it was forgotten."""
        return job - self._base + len(self._kept) if job >= self._base else self._kept.get(job, -1)

    def _reserve(self, capacity: int) -> None:
        for name, old in self._columns.items():
            new = np.full(capacity, IN_FLIGHT.get(name, 0), dtype=old.dtype)
            new[: self._used] = old[: self._used]
            self._columns[name] = new
        self._capacity = capacity
        # Writing one cell through a memoryview takes half the time of writing it through the array.
        views: dict[str, Any] = {name: column.data for name, column in self._columns.items()}
        self._job = views["job"]
        self._worker = views["worker"]
        self._assigned_iteration = views["assigned_iteration"]
        self._assigned_version = views["assigned_version"]
        self._entered = views["entered"]
        self._assigned_time = views["assigned_time"]
        self._outcome = views["outcome"]
        self._ended_iteration = views["ended_iteration"]
        self._ended_version = views["ended_version"]
        self._ended_time = views["ended_time"]
        self._step = views["step"]
        self._concurrency = views["concurrency"]
        self._workers = views["workers"]
        self._steps = views["steps"]
        self._batch = views["batch"]
        self._examples = views["examples"]
        self._seconds = views["seconds"]

    def _undo(self, ended: Sequence[Ended], whole: int) -> None:
        """Put jobs back in flight: the first ``whole`` of these had ended, the next one perhaps in part."""
        for which, end in enumerate(ended):
            row = self._row(end.job.id) if is_id(end.job.id) and end.job.id >= 0 else -1
            # If the job that failed had ended long ago, that was the failure: leave its row alone.
            if which < whole or (0 <= row < self._used and not self._outcome[row]):
                for name, value in IN_FLIGHT.items():
                    self._columns[name][row] = value


def _check_ids(job: Job) -> None:
    for name, value in (("job", job.id), ("worker", job.worker)):
        if not is_id(value):
            raise TraceError(f"{name} {value!r} is not a whole number; number jobs and workers from 0")


def _check_outcome(end: Ended) -> None:
    if not is_id(end.outcome) or end.outcome not in tuple(Outcome):
        raise TraceError(f"job {end.job.id} ended with outcome {end.outcome!r}; pass an Outcome, as Outcome.LOST")
