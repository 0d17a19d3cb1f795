"""Who finishes when, without any numbers of the model: compiled, and equal to the core server on a plain clock."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import count
from asyncsgd.core.dispatch import STREAM, AlwaysBusy, Batch, Dispatch, FirstOf, Shuffled, Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive
from asyncsgd.simulation.durations import Durations

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Schedule:
    """Jobs in order of assignment and arrivals in order of time. A few bytes per job; no model anywhere."""

    workers: int
    """n, all there from the start to the end."""
    job_worker: NDArray[np.int32]
    job_iteration: Ints
    """s: the iteration of the point that the job was given."""
    job_time: Floats
    job_cancelled: Ints
    """First iteration without the job if it was cancelled, else -1; empty if no job was."""
    arrival_job: Ints
    arrival_time: Floats
    arrival_concurrency: Ints
    """|C_t| just before iteration t."""
    in_flight: int
    """|C_T|."""
    early_from: int
    """From this job on, jobs left with x^(t) while arrival t was being handled (the number of jobs if none did)."""

    @property
    def iterations(self) -> int:
        """T: gradients that arrive."""
        return len(self.arrival_job)

    @property
    def jobs(self) -> int:
        """How many jobs were handed out."""
        return len(self.job_worker)

    @property
    def entered(self) -> Ints:
        """The first t whose active set C_t holds the job."""
        entered: Ints = self.job_iteration.copy()
        entered[self.early_from :] += 1
        return entered


def compiles(dispatch: Dispatch) -> bool:
    """Whether the compiled schedule knows this rule."""
    return type(dispatch) in (AlwaysBusy, Batch, Uniform, Shuffled, FirstOf) and dispatch.restart_after is None


def schedule(dispatch: Dispatch, durations: Durations, *, iterations: int, seed: int = 0) -> Schedule:
    """Let all workers join at time 0 and hand out jobs by the rule until ``iterations`` gradients have arrived.

    >>> from asyncsgd.simulation import durations
    >>> plan = schedule(AlwaysBusy(), durations.fixed([1.0, 2.0]), iterations=4)
    >>> plan.arrival_time, plan.job_worker[plan.arrival_job]
    (array([1., 2., 2., 3.]), array([0, 1, 0, 0], dtype=int32))
    """
    from asyncsgd.simulation import schedule_kernel as kernel

    count("iterations", iterations)
    n = durations.workers
    if not compiles(dispatch):
        fix = "simulate through the core server (asgd.simulate does so by itself)"
        raise BadParameter("dispatch", type(dispatch).__name__, "has no compiled schedule", fix)
    limit, goal, jobs = dispatch.limit(n), 1, dispatch.limit(n) + iterations
    order = np.arange(n, dtype=np.int32)
    if isinstance(dispatch, FirstOf):
        limit, goal = dispatch.asked, dispatch.clients
        asked = min(limit, n)
        jobs = iterations + (iterations // goal + 2) * asked
    elif isinstance(dispatch, Batch):
        jobs = iterations + 2 * n
    rules = {
        AlwaysBusy: kernel.ALWAYS_BUSY,
        Batch: kernel.BATCH,
        Uniform: kernel.UNIFORM,
        Shuffled: kernel.SHUFFLED,
        FirstOf: kernel.FIRST_OF,
    }
    leaves = 1 << max(0, min(dispatch.limit(n), jobs) - 1).bit_length()
    room = min(dispatch.limit(n), jobs) if limit > kernel.SMALL else 1
    number = np.zeros(1)
    tree = _aligned(2 * leaves, 2).view(np.int64)
    job_worker = np.empty(jobs, np.int32)
    job_iteration = np.empty(jobs, np.int64)
    job_time = np.empty(jobs)
    job_cancelled = np.full(jobs if isinstance(dispatch, FirstOf) else 0, -1, np.int64)
    arrival_job = np.empty(iterations, np.int64)
    arrival_time = np.empty(iterations)
    arrival_concurrency = np.empty(iterations, np.int64)
    handed_out, arrived, in_flight, initial = kernel.run(
        rules[type(dispatch)],
        limit,
        goal,
        dispatch.early,
        durations.lowered,
        iterations,
        np.uint64(seed % 2**64),
        np.uint64(derive(seed, STREAM)),
        number,
        number.view(np.int64),
        tree,
        np.full((leaves, 2), kernel.NOBODY, np.int64),
        np.empty(leaves, np.int64),
        np.empty((2, room), np.int64),
        np.empty((2, room, 2), np.int64),
        np.zeros(2, np.int64),
        np.empty(kernel.SAMPLE, np.int64),
        _rows(durations),
        order,
        job_worker,
        job_iteration,
        job_time,
        job_cancelled,
        arrival_job,
        arrival_time,
        arrival_concurrency,
    )
    if arrived < iterations:
        raise BadParameter(
            "durations",
            f"{arrived} arrivals",
            f"were all that ever came of {iterations} asked for: the workers left are stopped for good",
            "give some worker a speed above 0 at the end, or ask for fewer iterations",
        )
    return Schedule(
        workers=n,
        job_worker=_trim(job_worker, handed_out),
        job_iteration=_trim(job_iteration, handed_out),
        job_time=_trim(job_time, handed_out),
        job_cancelled=_trim(job_cancelled, min(handed_out, len(job_cancelled))),
        arrival_job=arrival_job,
        arrival_time=arrival_time,
        arrival_concurrency=arrival_concurrency,
        in_flight=in_flight,
        early_from=initial if dispatch.early else handed_out,
    )


def _trim(column: NDArray[Any], length: int) -> NDArray[Any]:
    return column[:length] if length >= len(column) * 0.9 else column[:length].copy()


def _rows(durations: Durations) -> Floats:
    """What a hand-out reads and writes of a worker, side by side: one cache line."""
    from asyncsgd.simulation import schedule_kernel as kernel

    rows, lowered = _aligned(durations.workers, 8), durations.lowered
    rows[:] = 0.0
    rows[:, kernel.DOWN], rows[:, kernel.UP] = lowered.down, lowered.up
    rows[:, kernel.KIND] = lowered.kind
    rows[:, kernel.SECONDS], rows[:, kernel.SECOND] = lowered.p[:, 0], lowered.p[:, 1]
    return rows


def _aligned(rows: int, columns: int) -> Floats:
    """Room that begins on a cache line."""
    raw = np.empty(rows * columns + 8)
    start = (-raw.ctypes.data % 64) // 8
    return raw[start : start + rows * columns].reshape(rows, columns)
