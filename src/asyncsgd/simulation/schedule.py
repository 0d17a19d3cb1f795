"""Which worker finishes when, without the model: compiled, and equal to the core server on a plain clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.dispatch import STREAM, Dispatch
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Outcome
from asyncsgd.core.parts import Reason
from asyncsgd.core.random import derive
from asyncsgd.core.validate import count
from asyncsgd.simulation.durations import Durations
from asyncsgd.simulation.lowering import FIRST_OF, lower_dispatch
from asyncsgd.trace import Jobs, Trace
from asyncsgd.trace.columns import Floats, Ints, batches_before
from asyncsgd.trace.replay import Arrivals, Weighed


@dataclass(frozen=True, eq=False)
class Schedule:
    """Jobs in order of assignment and arrivals in order of time. A few bytes per job; no model anywhere."""

    workers: int
    """n: the number of workers, all present from the start to the end."""
    job_worker: NDArray[np.int32]
    job_iteration: Ints
    """s: the iteration of the point that the job got."""
    job_time: Floats
    job_seconds: Floats
    """How long the worker computes."""
    job_cancelled: Ints
    """The first iteration without the job if it was cancelled, else -1; empty if no job was cancelled."""
    arrival_job: Ints
    arrival_time: Floats
    arrival_concurrency: Ints
    """|C_t| just before iteration t."""
    in_flight: int
    """|C_T|."""
    early_from: int
    """The first job that left with x^(t) while the server handled arrival t (the number of jobs if there is none)."""
    steps: int | Ints = 1
    """The number of mini-batches of a job, or one number for the jobs of each worker."""
    counted: str = "all"
    """Whether ``batch`` counts mini-batches over all workers, or for each "worker"."""

    @property
    def iterations(self) -> int:
        """T: the number of gradients that arrive."""
        return len(self.arrival_job)

    @property
    def jobs(self) -> int:
        """The number of jobs assigned."""
        return len(self.job_worker)

    @property
    def entered(self) -> Ints:
        """The first t whose active set C_t holds the job."""
        entered: Ints = self.job_iteration.copy()
        entered[self.early_from :] += 1
        return entered

    @cached_property
    def job_steps(self) -> Ints:
        """The number of mini-batches of each job."""
        if isinstance(self.steps, int):
            return np.broadcast_to(np.int64(self.steps), self.job_worker.shape)
        return self.steps[self.job_worker]

    @cached_property
    def batch(self) -> Ints:
        """The number of mini-batches handed out before each job."""
        return batches_before(self.job_worker, self.job_steps, self.counted)

    def arrivals(self) -> Arrivals:
        """Return the arrivals that a replay follows."""
        job = self.arrival_job
        return Arrivals(
            job=job,
            worker=self.job_worker[job],
            iteration=self.job_iteration[job],
            time=self.arrival_time,
            concurrency=self.arrival_concurrency,
            workers=np.broadcast_to(np.int64(self.workers), job.shape),
            steps=self.job_steps[job],
            batch=self.batch[job],
        )

    def until(self, iterations: int) -> Schedule:
        """Return the schedule as if it had ended after ``iterations`` arrivals."""
        jobs = int((self.entered <= iterations).sum())
        cancelled = self.job_cancelled[:jobs]
        cancelled = np.where(cancelled > iterations, -1, cancelled)
        arrived = self.arrival_job[:iterations]
        return replace(
            self,
            job_worker=self.job_worker[:jobs],
            job_iteration=self.job_iteration[:jobs],
            job_time=self.job_time[:jobs],
            job_seconds=self.job_seconds[:jobs],
            job_cancelled=cancelled,
            arrival_job=arrived,
            arrival_time=self.arrival_time[:iterations],
            arrival_concurrency=self.arrival_concurrency[:iterations],
            in_flight=jobs - len(arrived) - int((cancelled >= 0).sum()),
            early_from=min(self.early_from, jobs),
        )

    def with_outcomes(self, weighed: Weighed, steps: Floats, metadata: Mapping[str, str]) -> Trace:
        """Return the full trace: which worker worked when, and the outcomes and steps of a method."""
        columns: dict[str, NDArray[Any]] = {
            "job": np.arange(self.jobs, dtype=np.int64),
            "worker": self.job_worker.astype(np.int64),
            "assigned_iteration": self.job_iteration,
            "assigned_version": weighed.version[self.job_iteration],
            "entered": self.entered,
            "assigned_time": self.job_time,
            "outcome": np.zeros(self.jobs, np.uint8),
            "ended_iteration": np.full(self.jobs, -1, np.int64),
            "ended_version": np.full(self.jobs, -1, np.int64),
            "ended_time": np.full(self.jobs, np.nan),
            "step": np.full(self.jobs, np.nan),
            "concurrency": np.full(self.jobs, -1, np.int64),
            "workers": np.full(self.jobs, -1, np.int64),
            "steps": self.job_steps,
            "batch": self.batch,
            "seconds": np.full(self.jobs, np.nan),
        }

        def end(rows: Ints, **cells: Any) -> None:
            for name, cell in cells.items():
                columns[name][rows] = cell

        end(
            self.arrival_job,
            outcome=weighed.outcome,
            ended_iteration=np.arange(self.iterations, dtype=np.int64),
            ended_version=weighed.version[:-1],
            ended_time=self.arrival_time,
            step=steps,
            concurrency=self.arrival_concurrency,
            workers=self.workers,
            seconds=self.job_seconds[self.arrival_job],
        )
        cancelled = np.flatnonzero(self.job_cancelled >= 0)
        if cancelled.size:
            # The remaining jobs of a round are cancelled in order of assignment, when arrival `at - 1` has filled it.
            at = self.job_cancelled[cancelled]
            first_of_round = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
            rank = np.arange(len(at)) - np.repeat(first_of_round, np.diff(np.r_[first_of_round, len(at)]))
            end(
                cancelled,
                outcome=Outcome.CANCELLED,
                ended_iteration=at,
                ended_version=weighed.version[at],
                ended_time=self.arrival_time[at - 1],
                step=0.0,
                concurrency=self.arrival_concurrency[at - 1] - 1 - rank,
                workers=self.workers,
            )
        return Trace(Jobs(**columns), dict(metadata), self.in_flight)


def schedule(
    dispatch: Dispatch,
    durations: Durations,
    *,
    iterations: int,
    seed: int = 0,
    steps: int | Sequence[int] = 1,
    keeps: bool = False,
) -> Schedule:
    """Let all workers join at time 0 and assign jobs by the rule until ``iterations`` gradients have arrived.

    Args:
        dispatch: Who gets the next job.
        durations: Seconds per mini-batch.
        iterations: The number of updates that arrive.
        seed: Seed of the durations and of the dispatch rule.
        steps: The mini-batches of a job, or of the jobs of each worker: such a job takes that many times as long.
        keeps: Whether workers keep state from job to job. A worker then gets a job only when its last one has arrived.

    >>> from asyncsgd.core.dispatch import AlwaysBusy
    >>> from asyncsgd.simulation import durations
    >>> plan = schedule(AlwaysBusy(), durations.fixed([1.0, 2.0]), iterations=4)
    >>> plan.arrival_time, plan.job_worker[plan.arrival_job]
    (array([1., 2., 2., 3.]), array([0, 1, 0, 0], dtype=int32))
    """
    from asyncsgd.simulation import schedule_kernel as kernel

    count("iterations", iterations)
    durations.check_known()
    n = durations.workers
    rule = lower_dispatch(dispatch)
    if isinstance(rule, Reason):
        fix = "use asgd.simulate, which runs the core server for such rules"
        raise BadParameter("dispatch", type(dispatch).__name__, "has no compiled schedule", fix)
    limit, goal, jobs = rule.size(n, iterations)
    given = kernel.Given(
        rule=rule.code,
        limit=limit,
        goal=goal,
        early=dispatch.early,
        keeps=keeps,
        iterations=iterations,
        seed=np.uint64(seed % 2**64),
        stream=np.uint64(derive(seed, STREAM)),
        durations=durations.lowered,
    )
    each = steps if isinstance(steps, int) else np.array(steps, np.int64)
    room = _room(durations, given, min(dispatch.limit(n), jobs), jobs)
    room.rows[:, kernel.STEPS] = each
    handed_out, arrived, in_flight, initial = kernel.run(given, room)
    if arrived < iterations:
        raise BadParameter(
            "durations",
            f"{arrived} arrivals",
            f"were all that arrived of {iterations}: the other workers are stopped for good",
            "give some worker a speed above 0 at the end, or ask for fewer iterations",
        )
    return Schedule(
        workers=n,
        job_worker=_trim(room.job_worker, handed_out),
        job_iteration=_trim(room.job_iteration, handed_out),
        job_time=_trim(room.job_time, handed_out),
        job_seconds=_trim(room.job_seconds, handed_out),
        job_cancelled=_trim(room.job_cancelled, min(handed_out, len(room.job_cancelled))),
        arrival_job=room.arrival_job,
        arrival_time=room.arrival_time,
        arrival_concurrency=room.arrival_concurrency,
        in_flight=in_flight,
        early_from=initial if dispatch.early else handed_out,
        steps=each,
    )


def _room(durations: Durations, given: Any, flying: int, jobs: int) -> Any:
    """Return the arrays that the kernel writes to, for at most ``flying`` jobs at once and ``jobs`` in all."""
    from asyncsgd.simulation import schedule_kernel as kernel

    leaves = 1 << max(0, flying - 1).bit_length()
    later = flying if given.limit > kernel.SMALL else 1
    number = np.zeros(1)
    return kernel.Room(
        number=number,
        bits=number.view(np.int64),
        tree=_aligned(2 * leaves, 2).view(np.int64),
        places=np.full((leaves, 2), kernel.NO_JOB, np.int64),
        free=np.empty(leaves, np.int64),
        waiting=np.empty((2, later), np.int64),
        who=np.empty((2, later, 2), np.int64),
        sizes=np.zeros(2, np.int64),
        sample=np.empty(kernel.SAMPLE, np.int64),
        rows=_rows(durations),
        order=np.arange(durations.workers, dtype=np.int32),
        job_worker=np.empty(jobs, np.int32),
        job_iteration=np.empty(jobs, np.int64),
        job_time=np.empty(jobs),
        job_seconds=np.empty(jobs),
        job_cancelled=np.full(jobs if given.rule == FIRST_OF else 0, -1, np.int64),
        arrival_job=np.empty(given.iterations, np.int64),
        arrival_time=np.empty(given.iterations),
        arrival_concurrency=np.empty(given.iterations, np.int64),
    )


def _trim(column: NDArray[Any], length: int) -> NDArray[Any]:
    return column[:length] if length >= len(column) * 0.9 else column[:length].copy()


def _rows(durations: Durations) -> Floats:
    """Return, per worker and in one cache line, what assigning a job reads and writes."""
    from asyncsgd.simulation import schedule_kernel as kernel

    rows, lowered = _aligned(durations.workers, 8), durations.lowered
    rows[:] = 0.0
    rows[:, kernel.DOWN], rows[:, kernel.UP] = lowered.down, lowered.up
    rows[:, kernel.KIND] = lowered.kind
    rows[:, kernel.SECONDS], rows[:, kernel.SECOND] = lowered.p[:, 0], lowered.p[:, 1]
    return rows


def _aligned(rows: int, columns: int) -> Floats:
    """Return an array that begins on a cache line."""
    raw = np.empty(rows * columns + 8)
    start = (-raw.ctypes.data % 64) // 8
    return raw[start : start + rows * columns].reshape(rows, columns)
