"""The candidates of a plan, their speed by formula, and their simulated runs (without a model)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from asyncsgd import methods
from asyncsgd.core.method import Method
from asyncsgd.planning.workers import GROUPS, MeasuredWorkers
from asyncsgd.simulation.lowering import weigh
from asyncsgd.simulation.schedule import Schedule, schedule
from asyncsgd.theory import Speedup, over_selection_time
from asyncsgd.trace import Delays, Trace

MINIBATCH, ASYNC, ALGORITHM2 = "minibatch_sgd", "async_sgd", "federated_async_sgd"
ADAPTIVE, OVER = "delay_adaptive", "fedavg"
SIMPLEST_FIRST = (MINIBATCH, ASYNC, ALGORITHM2, ADAPTIVE, OVER)
"""Methods from simple to complex: of two that are about as fast, the earlier one is recommended."""

LABELS = {
    MINIBATCH: "mini-batch",
    OVER: "over-selection",
    ASYNC: "asynchronous",
    ADAPTIVE: "delay-adaptive",
    ALGORITHM2: "Algorithm 2",
}
POINTS = 7
"""The number of concurrencies tried if none are given."""


@dataclass(frozen=True)
class Candidate:
    """A method with a number of jobs in flight, on all workers or only on the fastest."""

    method: str
    concurrency: int
    """Jobs in flight: the batch of mini-batch SGD, the workers that a round of over-selection asks."""
    workers: int
    """The number of workers that take part: the fastest ones, if not all do."""
    total: int
    """n, the number of all workers."""
    goal: int | None = None
    """The number of answers that a round of over-selection keeps."""

    @property
    def rounds(self) -> bool:
        """Whether all workers start together in rounds."""
        return self.method in (MINIBATCH, OVER)

    @property
    def batch(self) -> int:
        """Gradients of a round."""
        return self.concurrency if self.goal is None else self.goal

    @property
    def label(self) -> str:
        """The candidate's name in a table."""
        name = LABELS[self.method]
        if self.goal is not None:
            name += f", first {self.goal}"
        if self.workers < self.total:
            name += f", {self.workers} fastest" if self.workers > 1 else ", fastest alone"
        return name

    def build(self, stepsize: float = 1.0) -> Method:
        """Return the method. ``stepsize`` is per gradient; a round multiplies it by its size."""
        everybody = self.concurrency == self.workers
        if self.method == OVER or (self.method == MINIBATCH and not everybody):
            return methods.fedavg(self.batch * stepsize, clients=self.batch, ask=self.concurrency)
        if self.method == MINIBATCH:
            return methods.minibatch_sgd(stepsize)
        if self.method == ALGORITHM2:
            return methods.federated_async_sgd(stepsize, concurrency=self.concurrency)
        make = methods.async_sgd if self.method == ASYNC else methods.delay_adaptive
        return make(stepsize, concurrency=None if everybody else self.concurrency)

    def recipe(self, step: float) -> str:
        """Return the call that makes the method, with the step as a multiple of 1/L.

        >>> Candidate("async_sgd", concurrency=3, workers=8, total=8).recipe(0.05)
        'asgd.async_sgd(stepsize=0.05 / L, concurrency=3)'
        """
        everybody = self.concurrency == self.workers
        name, arguments = self.method, f", concurrency={self.concurrency}"
        if self.method == OVER or (self.method == MINIBATCH and not everybody):
            name, step = OVER, self.batch * step
            arguments = f", clients={self.batch}, ask={self.concurrency}"
        elif self.method != ALGORITHM2 and everybody:
            arguments = ""
        return f"asgd.{name}(stepsize={step:.3g} / L{arguments})"


def concurrencies(workers: int, points: int = POINTS) -> list[int]:
    """Return concurrencies from one job in flight to one per worker, in equal ratios.

    >>> concurrencies(12), concurrencies(1000)
    ([1, 2, 3, 5, 8, 12], [1, 3, 10, 32, 100, 316, 1000])
    """
    return [int(c) for c in np.unique(np.rint(np.geomspace(1, workers, points)))]


def on_everybody(workers: int, wanted: Iterable[int]) -> list[Candidate]:
    """Return every method at every concurrency. Only Algorithm 2 can have more jobs in flight than workers."""
    jobs = sorted(set(wanted))
    each = [Candidate(ALGORITHM2, c, workers, workers) for c in jobs]
    for c in sorted({min(c, workers) for c in jobs}):
        each += [Candidate(method, c, workers, workers) for method in (MINIBATCH, ASYNC, ADAPTIVE)]
    return each


def on_the_fastest(workers: int, wanted: Iterable[int]) -> list[Candidate]:
    """Return candidates that use only the fastest workers, which helps if some are much slower."""
    each = []
    for m in sorted(set(wanted)):
        if m < workers:
            each += [Candidate(method, m, m, workers) for method in (MINIBATCH, ASYNC, ADAPTIVE)]
    return each


@dataclass(frozen=True)
class Formula:
    """Seconds per gradient by formula; None if there is no formula."""

    lemma: float | None = None
    """For fixed durations, without queues: the speed-up lemma for Algorithm 2 and for batches that are drawn, the
    slowest worker for a batch of all workers, the goal-th answer for over-selection, 1/Σ(1/Δ_i) if all are busy."""
    queued: float | None = None
    """Algorithm 2 with its queues, for durations that vary as measured."""
    least: float | None = None
    """The same with variability limited to 1 (exponential); beyond that, ``queued`` can be much too long."""
    floor: float | None = None
    """Algorithm 2: the limit set by the slowest worker, which gets as many jobs as every other."""


@dataclass(frozen=True)
class Formulas:
    """The formulas by concurrency: seconds for c gradients with c jobs in flight."""

    speedups: dict[int, Speedup]
    queued: dict[int, float]
    least: dict[int, float]

    def of(self, candidate: Candidate, workers: MeasuredWorkers) -> Formula:
        """Return the formulas for a candidate on these workers."""
        c = candidate.concurrency
        everybody = c == candidate.workers
        if candidate.method == ALGORITHM2:
            known = self.speedups[c]
            return Formula(known.asynchronous / c, self.queued[c] / c, self.least[c] / c, known.floor / c)
        if candidate.method == OVER:
            return Formula(over_selection_time(workers.means, candidate.batch, c) / candidate.batch)
        if candidate.method == MINIBATCH:
            return Formula((float(workers.means.max()) if everybody else self.speedups[c].minibatch) / c)
        return Formula(1 / float((1 / workers.means).sum())) if everybody else Formula()


Floats = NDArray[np.float64]

FEWEST, MOST = 50_000, 300_000
"""Gradients that are simulated: enough for 1 % and few enough for a second."""
ROUNDS = (30, 20_000)
BLOCKS = 20
WARM_UP = 5
"""The number of first blocks that are not measured, because queues build up in them."""
DRIFT = 0.03
"""Later blocks slower than earlier ones by more than this, and by more than chance explains: not settled."""


@dataclass(frozen=True)
class WorkerGroup:
    """What the workers of one group contribute."""

    name: str
    workers: int
    share: float
    """Their share of all gradients that reach the model."""
    average_delay: float | None
    """None if none of their jobs arrives."""
    maximum_delay: int | None


@dataclass(frozen=True, eq=False)
class SimulatedRun:
    """The results of a candidate's simulated run."""

    iterations: int
    seconds: float
    """Seconds per gradient that reaches the model."""
    error: float
    """One standard error of that."""
    settled: bool
    """Whether later parts of the run were as fast as earlier ones and the slowest worker had several turns; if not,
    expect the run to get slower, with longer delays."""
    delays: Delays = field(repr=False)
    groups: tuple[WorkerGroup, ...] = ()
    waits: Floats | None = field(default=None, repr=False)
    """For rounds: mean seconds until the first, second, ... answer of a round."""


def length(candidate: Candidate, workers: MeasuredWorkers) -> int:
    """Return how many gradients to simulate: whole rounds, or thirty turns of the slowest worker up to a limit."""
    jobs = candidate.concurrency
    if candidate.rounds:
        fewest, most = ROUNDS
        rounds = min(max(2 * FEWEST // candidate.batch, fewest), most, max(3, MOST // candidate.batch))
        return candidate.batch * rounds
    wanted = min(max(30 * turn(candidate, workers), FEWEST), MOST)
    whole = BLOCKS * jobs if BLOCKS * jobs <= MOST else BLOCKS
    return whole * math.ceil(wanted / whole)


def turn(candidate: Candidate, workers: MeasuredWorkers) -> float:
    """Return about how many gradients arrive while the slowest worker computes one."""
    slowest = float(workers.means.max())
    if candidate.method == ALGORITHM2:  # all workers get the same number of jobs
        return max(candidate.concurrency * slowest / float(workers.means.mean()), workers.count)
    return candidate.concurrency * slowest * float((1 / workers.means).mean())


def simulate_candidate(candidate: Candidate, workers: MeasuredWorkers, seed: int) -> SimulatedRun:
    """Simulate the candidate long enough for its speed and its delays; the delay identity is checked."""
    method = candidate.build()
    plan = schedule(method.dispatch, workers.durations, iterations=length(candidate, workers), seed=seed)
    weighed = weigh(plan.arrivals(), method)
    trace = plan.with_outcomes(weighed, weighed.weight, {"method": method.name})
    trace.check(early=False)
    settled, waits = True, None
    if candidate.rounds:
        seconds, error, waits = _by_rounds(plan, candidate.batch)
    else:
        seconds, error, settled = _by_blocks(plan)
        settled = settled and plan.iterations >= turn(candidate, workers)
    return SimulatedRun(
        iterations=plan.iterations,
        seconds=seconds,
        error=error,
        settled=settled,
        delays=trace.delays,
        groups=_groups(trace, workers),
        waits=waits,
    )


def _by_rounds(plan: Schedule, batch: int) -> tuple[float, float, Floats]:
    """Return the speed from rounds, which are alike and independent, so that all of them count."""
    time = plan.arrival_time.reshape(-1, batch)
    begin = np.concatenate([[0.0], time[:-1, -1]])
    took = time[:, -1] - begin
    waits = (time - begin[:, None]).mean(axis=0)
    return float(took.mean() / batch), float(took.std() / math.sqrt(len(took)) / batch), waits


def _by_blocks(plan: Schedule) -> tuple[float, float, bool]:
    """Return the speed from blocks of whole turns, so that equal durations, which arrive in bursts, give no error."""
    ends = plan.arrival_time[:: -(plan.iterations // BLOCKS)][::-1]
    blocks = np.diff(ends)[WARM_UP - 1 :] / (plan.iterations // BLOCKS)
    half = len(blocks) // 2
    early, late = blocks[:half].mean(), blocks[-half:].mean()
    error = float(blocks.std(ddof=1) / math.sqrt(len(blocks)))
    settled = bool(late - early <= max(DRIFT * early, 4 * error))
    return float(blocks.mean()), error, settled


def _groups(trace: Trace, workers: MeasuredWorkers) -> tuple[WorkerGroup, ...]:
    jobs = trace.jobs
    counted = jobs.arrived | jobs.in_flight
    delay = np.where(jobs.in_flight, trace.iterations, jobs.ended_iteration) - jobs.assigned_iteration
    owner, member = workers.group[jobs.worker], np.bincount(workers.group, minlength=len(GROUPS))
    groups = []
    for place, name in enumerate(GROUPS):
        if member[place]:
            arrived = jobs.arrived & (owner == place)
            theirs = delay[counted & (owner == place)]
            some = bool(arrived.any())
            groups.append(
                WorkerGroup(
                    name=name,
                    workers=int(member[place]),
                    share=int(arrived.sum()) / trace.iterations,
                    average_delay=float(theirs.mean()) if some else None,
                    maximum_delay=int(theirs.max()) if some else None,
                )
            )
    return tuple(groups)
