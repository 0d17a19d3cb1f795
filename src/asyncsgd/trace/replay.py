"""Compute the numbers along given arrivals with the core's own code.

A simulation and the replay of a recorded run both use it: for methods without compiled code, and as the reference that
compiled code is tested against.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import NotFinite
from asyncsgd.core.events import Arrival, Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.random import derive, output
from asyncsgd.core.server import JOB
from asyncsgd.core.update import Update
from asyncsgd.core.validate import check_model
from asyncsgd.core.vectors import Vector
from asyncsgd.core.worker import Workers
from asyncsgd.trace.columns import Floats, Ints


class Computes(Protocol):
    """What a replay needs from a task."""

    def initial(self) -> Vector:
        """Return the model to start from."""

    @property
    def update(self) -> Callable[..., Vector]:
        """The function of (x, worker, seed), or of (x, worker, seed, batch), that returns an update."""


@dataclass(frozen=True, eq=False)
class Arrivals:
    """The arrivals of a schedule or of a trace, one row each, in order."""

    job: Ints
    worker: NDArray[Any]
    iteration: Ints
    """s of the point x^(s) that the gradient was computed at."""
    time: Floats
    concurrency: Ints
    workers: Ints
    steps: Ints
    """The number of mini-batches of the job."""
    batch: Ints
    """The number of the first of them."""
    examples: Ints | None = None
    """The number of rows that the job used, -1 if unknown; None if all are unknown."""

    def __len__(self) -> int:
        return len(self.job)

    def first(self, iterations: int) -> Arrivals:
        """Return the first ``iterations`` arrivals alone, as if the run had ended there."""
        columns: dict[str, Any] = {column.name: getattr(self, column.name) for column in fields(self)}
        for name, column in columns.items():
            columns[name] = None if column is None else column[:iterations]
        return Arrivals(**columns)

    @cached_property
    def delay(self) -> Ints:
        """τ_t = t - s."""
        delay: Ints = np.arange(len(self), dtype=np.int64) - self.iteration
        return delay

    @cached_property
    def max_concurrency(self) -> Ints:
        """The largest |C_t| so far, t included."""
        largest: Ints = np.maximum.accumulate(self.concurrency)
        return largest


@dataclass(frozen=True, eq=False)
class Weighed:
    """The weights, versions and moves that a method's step rule and buffer give to the arrivals."""

    weight: Floats
    version: Ints
    """The versions of x^(0), ..., x^(T)."""
    flush: NDArray[np.uint8]
    """Whether the arrival moved the model."""

    @property
    def outcome(self) -> NDArray[np.uint8]:
        """The outcome of each arrival: applied or dropped."""
        return np.where(self.weight != 0, Outcome.APPLIED, Outcome.DROPPED).astype(np.uint8)

    def first(self, iterations: int) -> Weighed:
        """Return those of the first ``iterations`` arrivals alone."""
        return Weighed(self.weight[:iterations], self.version[: iterations + 1], self.flush[:iterations])


@dataclass(frozen=True, eq=False)
class Surroundings:
    """What a recorded run adds to its arrivals. A simulation needs none of it."""

    watch: Callable[[Arrival, Vector], bool] | None = None
    """A function called with every arrival and its update before the update is used; it returns True to stop there."""
    present: Callable[[int], Collection[int]] | None = None
    """The workers present at an iteration."""
    afresh: Callable[[int], Collection[int | None]] | None = None
    """The workers whose state starts afresh before this arrival, with None for all; it is asked for every arrival."""
    noise: Mapping[int, int] | None = None
    """Seeds of noise, by the iteration at which each was first used."""
    factors: Mapping[int, Sequence[float]] | None = None
    """Factors that the step size was multiplied by, by the iteration of the first arrival that they apply to."""


class Replayed(NamedTuple):
    """What a replay leaves behind."""

    update: Update
    """The half of the server that moves the model, as it is at the end."""
    weighed: Weighed
    steps: Floats
    """The step that each arrival got."""
    diverged: int | None
    """The iteration whose update was not finite, or None."""
    workers: Workers
    """What the workers keep from job to job."""


def workers_of(method: Method, x: Vector) -> Workers:
    """Return what all workers of a run keep, computed in compiled code; ``x`` is the model that the run starts from."""
    from asyncsgd.compiled.compression import fast  # here, because a reader of traces does not need numba
    from asyncsgd.compiled.kernels import CompiledKernels

    return Workers(method.job, x, CompiledKernels(1), fast)


def replay_core(
    arrivals: Arrivals,
    task: Computes,
    method: Method,
    *,
    seed: int,
    after: Callable[[int, Update], bool] | None = None,
    around: Surroundings | None = None,
) -> Replayed:
    """Compute every update along the arrivals and apply it with the code that a real server runs.

    Args:
        arrivals: The arrivals in order, each with its worker and the point that its job read.
        task: The task that computes the updates.
        method: Any method. Its dispatch rule is ignored, because the arrivals are given.
        seed: The seed of the run.
        after: Called after each arrival with the number of arrivals and the `Update`; returns True to stop.
        around: What a recorded run adds.
    """
    around = Surroundings() if around is None else around
    start = task.initial()
    check_model(start)
    update = Update(method, start, derive(seed))
    workers = workers_of(method, start)
    seeds = derive(seed, JOB)
    total = len(arrivals)
    steps, weights, version = np.zeros(total), np.zeros(total), np.zeros(total + 1, np.int64)
    flush = np.zeros(total, np.uint8)
    lent: dict[int, tuple[int, int]] = {}  # job -> (slot, version)
    by_point = np.argsort(arrivals.iteration, kind="stable")
    next_lent = 0
    diverged: int | None = None
    for t in range(total):
        if around.noise is not None and t in around.noise:
            update.reseed(around.noise[t])
        if around.factors is not None:
            for factor in around.factors.get(t, ()):
                update.factor *= factor
        while next_lent < total and arrivals.iteration[by_point[next_lent]] == t:
            lent[int(arrivals.job[by_point[next_lent]])] = (update.points.lend(), update.version)
            next_lent += 1
        job, worker = int(arrivals.job[t]), int(arrivals.worker[t])
        slot, assigned_version = lent.pop(job)
        point = update.points[slot]
        arrival = Arrival(
            worker=worker,
            job=job,
            iteration=t,
            delay=t - int(arrivals.iteration[t]),
            staleness=update.version - assigned_version,
            version=update.version,
            concurrency=int(arrivals.concurrency[t]),
            max_concurrency=int(arrivals.max_concurrency[t]),
            workers=int(arrivals.workers[t]),
            x=update.points.current,
            point=point,
            present=None if around.present is None else around.present(t),
            steps=int(arrivals.steps[t]),
            examples=None if arrivals.examples is None or arrivals.examples[t] < 0 else int(arrivals.examples[t]),
        )
        if around.afresh is not None:
            for gone in around.afresh(t):
                workers.forget(gone)
        try:
            g = workers.compute(task, point, worker, output(seeds, job), arrival.steps, int(arrivals.batch[t]))
        except NotFinite:
            diverged = t
            break
        if around.watch is not None and around.watch(arrival, g):
            break
        before = update.version
        # A plain float: with a NumPy float64, arithmetic on a float32 model would run in float64.
        weight = update.weigh(arrival)
        weights[t] = weight
        outcome, steps[t] = update.apply(arrival, g, weight)
        workers.settle(worker, outcome is Outcome.APPLIED)
        update.points.give_back(slot)
        version[t + 1] = update.version
        flush[t] = update.version != before
        if after is not None and after(t + 1, update):
            break
    return Replayed(update, Weighed(weights, version, flush), steps, diverged, workers)
