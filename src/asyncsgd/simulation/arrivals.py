"""The arrivals of a schedule or of a recorded trace, weighed by a method: all that the numbers depend on."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.arrival import Arrival
from asyncsgd.core.errors import BadStep
from asyncsgd.core.events import Outcome
from asyncsgd.core.gather import Buffer, Each
from asyncsgd.core.method import Method
from asyncsgd.simulation.schedule import Schedule
from asyncsgd.trace import Jobs, Trace

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Arrivals:
    """One row per arrival, in order; and where it comes from."""

    job: Ints
    worker: NDArray[Any]
    iteration: Ints
    """s of the point x^(s) that the gradient was computed at."""
    time: Floats
    concurrency: Ints
    workers: Ints
    source: Schedule | Trace

    @classmethod
    def of(cls, source: Schedule | Trace) -> Arrivals:
        """Read them off a schedule or a trace."""
        if isinstance(source, Trace):
            columns = (source.job, source.worker, source.assigned_iteration, source.time)
            return cls(*columns, source.concurrency, source.workers, source)
        job = source.arrival_job
        return cls(
            job=job,
            worker=source.job_worker[job],
            iteration=source.job_iteration[job],
            time=source.arrival_time,
            concurrency=source.arrival_concurrency,
            workers=np.broadcast_to(np.int64(source.workers), job.shape),
            source=source,
        )

    def __len__(self) -> int:
        return len(self.job)

    def first(self, iterations: int) -> Arrivals:
        """Only the first so many, as if the run had ended there."""
        if iterations == len(self):
            return self
        return replace(
            self,
            **{f.name: getattr(self, f.name)[:iterations] for f in fields(self) if f.name != "source"},
            source=cut(self.source, iterations),
        )

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
    """What a method's step rule and buffer make of the arrivals; nothing here depends on the model."""

    weight: Floats
    version: Ints
    """Of x^(0), ..., x^(T)."""
    flush: NDArray[np.uint8]

    def first(self, iterations: int) -> Weighed:
        """Only the first so many."""
        return Weighed(self.weight[:iterations], self.version[: iterations + 1], self.flush[:iterations])


def cut(source: Schedule | Trace, iterations: int) -> Schedule | Trace:
    """The same run, ended after so many arrivals: later jobs were never handed out, later ends never came."""
    if isinstance(source, Trace):
        return source.until(iterations)
    handed_out = source.entered <= iterations
    jobs = int(handed_out.sum())
    cancelled = source.job_cancelled[:jobs]
    cancelled = np.where(cancelled > iterations, -1, cancelled)
    arrived = source.arrival_job[:iterations]
    return replace(
        source,
        job_worker=source.job_worker[:jobs],
        job_iteration=source.job_iteration[:jobs],
        job_time=source.job_time[:jobs],
        job_cancelled=cancelled,
        arrival_job=arrived,
        arrival_time=source.arrival_time[:iterations],
        arrival_concurrency=source.arrival_concurrency[:iterations],
        in_flight=jobs - len(arrived) - int((cancelled >= 0).sum()),
        early_from=min(source.early_from, jobs),
    )


def weighs(method: Method) -> bool:
    """Whether the weights and versions of this method depend on the trace alone."""
    return sees(method) != "everything" and type(method.aggregation) in (Each, Buffer)


def sees(method: Method) -> str:
    """What the weight depends on, as the class that defines it says; a subclass with another weight says it anew."""
    for kind in type(method.step).__mro__:
        if "weight" in vars(kind):
            return str(vars(kind).get("sees", "everything"))
    return "everything"


def weigh(arrivals: Arrivals, method: Method) -> Weighed:
    """Ask the method's own step rule, once for every combination that it can tell apart."""
    from asyncsgd.simulation.path_kernel import versions

    total = len(arrivals)
    size = method.aggregation.size if isinstance(method.aggregation, Buffer) else 1
    weight, table = np.ones(total), np.empty(0)
    if sees(method) == "delay":
        weight = _by_delay(arrivals, method)
    elif sees(method) == "staleness":
        longest = int(arrivals.delay.max(initial=0))
        table = np.array([_ask(method, staleness=s) for s in range(longest + 1)])
    version, flush = np.empty(total + 1, np.int64), np.empty(total, np.uint8)
    versions(arrivals.iteration, weight, table, size, version, flush)
    return Weighed(weight, version, flush)


def _by_delay(arrivals: Arrivals, method: Method) -> Floats:
    keys = np.stack([arrivals.delay, arrivals.max_concurrency, arrivals.workers])
    change = np.flatnonzero((np.diff(keys[1:], axis=1) != 0).any(axis=0)) + 1
    weight = np.empty(len(arrivals))
    for begin, end in zip((0, *change), (*change, len(arrivals)), strict=True):
        _, concurrency, workers = (int(k) for k in keys[:, begin])
        delays, inverse = np.unique(keys[0, begin:end], return_inverse=True)
        asked = [_ask(method, delay=int(d), max_concurrency=concurrency, workers=workers) for d in delays]
        weight[begin:end] = np.array(asked)[inverse]
    return weight


def _ask(method: Method, **known: int) -> float:
    facts: dict[str, Any] = dict.fromkeys(Arrival.__slots__, 0)
    empty = np.empty(0)
    weight = float(method.step.weight(Arrival(**{**facts, "x": empty, "point": empty, **known})))
    if not (np.isfinite(weight) and weight >= 0):
        name = type(method.step).__name__
        raise BadStep(f"the step rule {name} gave weight {weight!r} for {known}; return a finite number >= 0")
    return weight


def to_trace(arrivals: Arrivals, weighed: Weighed, steps: Floats, metadata: dict[str, str]) -> Trace:
    """The full record: who worked when, and what the method made of it."""
    source, version = arrivals.source, weighed.version
    outcome = np.where(weighed.weight != 0, Outcome.APPLIED, Outcome.DROPPED).astype(np.uint8)
    t = np.arange(len(arrivals), dtype=np.int64)
    if isinstance(source, Trace):
        columns = {name: getattr(source.jobs, name).copy() for name in Jobs.__dataclass_fields__}
        columns["assigned_version"] = version[columns["assigned_iteration"]]
        ended = columns["ended_iteration"] >= 0
        columns["ended_version"][ended] = version[columns["ended_iteration"][ended]]
        columns["outcome"][arrivals.job], columns["step"][arrivals.job] = outcome, steps
        return Trace(Jobs(**columns), {**source.metadata, **metadata}, source.final_concurrency)
    jobs = source.jobs
    columns = {
        "job": np.arange(jobs, dtype=np.int64),
        "worker": source.job_worker.astype(np.int64),
        "assigned_iteration": source.job_iteration,
        "assigned_version": version[source.job_iteration],
        "entered": source.entered,
        "assigned_time": source.job_time,
        "outcome": np.zeros(jobs, np.uint8),
        "ended_iteration": np.full(jobs, -1, np.int64),
        "ended_version": np.full(jobs, -1, np.int64),
        "ended_time": np.full(jobs, np.nan),
        "step": np.full(jobs, np.nan),
        "concurrency": np.full(jobs, -1, np.int64),
        "workers": np.full(jobs, -1, np.int64),
    }

    def end(rows: Ints, **cells: Any) -> None:
        for name, cell in cells.items():
            columns[name][rows] = cell

    end(
        arrivals.job,
        outcome=outcome,
        ended_iteration=t,
        ended_version=version[:-1],
        ended_time=arrivals.time,
        step=steps,
        concurrency=arrivals.concurrency,
        workers=source.workers,
    )
    cancelled = np.flatnonzero(source.job_cancelled >= 0)
    if cancelled.size:
        # Whoever is left of a round is cancelled in order of assignment, when arrival `at - 1` has filled it.
        at = source.job_cancelled[cancelled]
        first_of_round = np.flatnonzero(np.r_[True, at[1:] != at[:-1]])
        rank = np.arange(len(at)) - np.repeat(first_of_round, np.diff(np.r_[first_of_round, len(at)]))
        end(
            cancelled,
            outcome=Outcome.CANCELLED,
            ended_iteration=at,
            ended_version=version[at],
            ended_time=arrivals.time[at - 1],
            step=0.0,
            concurrency=arrivals.concurrency[at - 1] - 1 - rank,
            workers=source.workers,
        )
    return Trace(Jobs(**columns), metadata, source.in_flight)
