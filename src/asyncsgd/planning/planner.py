"""From measured durations to a plan: simulate every candidate, apply the theorems, recommend one."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from asyncsgd.core.dispatch import Dispatch
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, integer
from asyncsgd.methods import async_sgd
from asyncsgd.planning.accuracy import Target, accuracy, gradients
from asyncsgd.planning.advice import Row, advise
from asyncsgd.planning.candidates import (
    LABELS,
    MINIBATCH,
    OVER,
    Candidate,
    Formulas,
    SimulatedRun,
    concurrencies,
    length,
    on_everybody,
    on_the_fastest,
    simulate_candidate,
)
from asyncsgd.planning.network import DTYPE, advise_network
from asyncsgd.planning.result import Limit, Plan
from asyncsgd.planning.workers import MeasuredWorkers, Source, measured_workers
from asyncsgd.simulation.compiled_replay import shown
from asyncsgd.theory import Limits, limits, queued_times, speedup

WHOLE = 1000
"""The total of the progress bar."""
PER_WORKER = 10.0
"""The default noise σ²/ε per worker: a batch of all workers is then still noisy, as in most tasks."""
LEAST_KEPT = 0.5
"""Over-selection keeps at least this share of the answers: cancelling more helps only if long jobs are long by chance,
independently each time, and cancelling costs nothing."""


def plan(
    durations: Source | MeasuredWorkers,
    *,
    heterogeneous: bool = False,
    concurrency: Sequence[int] | int | None = None,
    epsilon: float = 0.01,
    noise: float | None = None,
    heterogeneity: float | None = None,
    parameters: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Plan:
    """Compare mini-batch, over-selection, asynchronous and delay-adaptive SGD and Algorithm 2 on measured durations.

    Time to accuracy is seconds per gradient (simulated) times gradients to the target (the theorems, up to
    constants). A method is preferred to a simpler one if it saves 10 %.

    Args:
        durations: A file (CSV, Parquet, the trace of a run), a trace, durations, or numbers per worker.
        heterogeneous: Whether the data differ between workers. If so, methods that favour fast workers are excluded.
        concurrency: The numbers of jobs in flight to try; by default several up to the number of workers.
        epsilon: The mean squared gradient norm to reach, in units of L r0 = L (f(x_0) - f*).
        noise: The noise σ²/ε. If it is small, delays matter; if it is large, only gradients per second matter. The
            default is ten times the number of workers, so that all of them can help.
        heterogeneity: The spread ζ²/ε of heterogeneous data; by default as large as the noise.
        parameters: The number of parameters of the model, in float32, if the durations have a network. The plan then
            also finds the local steps and the compression with which communication takes little of the time.
        seed: Seed for the simulated runs.
        progress: Whether to show a progress bar on the terminal.

    >>> found = plan([1.0] * 9 + [10.0])
    >>> found.recommended.candidate.method, found.recommended.concurrency
    ('minibatch_sgd', 9)
    >>> from asyncsgd.simulation.durations import fixed
    >>> far = plan(fixed([1.0] * 8).with_network(100e6, latency=0.1), parameters=10**7)
    >>> far.network.chosen.recipe
    '.local(50, stepsize).compressed("bfloat16", down="bfloat16")'

    Reference: Koloskova, Stich and Jaggi (2022), the speed-up lemma and Theorems 1 to 3. docs/users/planner.md explains
    how to read a plan.
    """
    given = measured_workers(durations)
    workers = _plain_messages(given, parameters)
    target = _target(epsilon, PER_WORKER * workers.count if noise is None else noise, heterogeneous, heterogeneity)
    jobs = _concurrencies(concurrency, workers.count)
    integer("seed", seed)
    most = min(max(jobs), workers.count)
    known = _limits(workers, target, most)
    candidates = on_everybody(workers.count, jobs)
    if not heterogeneous:
        candidates += on_the_fastest(workers.count, (known.optimum_workers, known.best_synchronous_workers))
    speedups = {c: speedup(workers.means, c) for c in jobs}
    queued = _queued(workers, jobs, np.inf)
    formulas = Formulas(speedups, queued, queued if workers.variability.max() <= 1 else _queued(workers, jobs, 1.0))
    with shown(progress, WHOLE, "simulating") as advance:
        rows = _simulate_all(candidates, workers, target, formulas, int(seed), advance or (lambda _: None))
    advice = advise(rows, workers, heterogeneous=heterogeneous)
    network = None
    if parameters is not None:
        chosen = advice.row.candidate
        members = workers.order(chosen.workers)
        network = advise_network(chosen, given.durations, members, int(parameters), int(seed))
    time = advice.row.seconds_to_target
    assert time is not None
    best = known.heterogeneous_optimum if heterogeneous else known.optimum
    limit = Limit(best, None if heterogeneous else known.optimum_workers, time / best)
    return Plan(workers, target, tuple(rows), formulas, advice, limit, int(seed), network)


def _plain_messages(given: MeasuredWorkers, parameters: int | None) -> MeasuredWorkers:
    """Return the workers with messages that hold the model as it is, if they are behind a network."""
    if not given.durations.networked:
        if parameters is not None:
            fix = "add the network to the durations: durations.with_network(bandwidth)"
            raise BadParameter("parameters", parameters, "has no meaning without a network", fix)
        return given
    if parameters is None:
        fix = "pass parameters, the number of parameters of the model"
        raise BadParameter("parameters", None, "is missing: over a network, times depend on the model's size", fix)
    count("parameters", parameters)
    up, down = async_sgd(1.0).message_bytes(int(parameters), DTYPE)
    return replace(given, durations=given.durations.for_messages(up=up, down=down))


def _target(epsilon: float, noise: float, heterogeneous: bool, heterogeneity: float | None) -> Target:
    if heterogeneity is not None and not heterogeneous:
        fix = "pass heterogeneous=True too"
        raise BadParameter("heterogeneity", heterogeneity, "has no meaning if the data are alike", fix)
    if heterogeneous and heterogeneity is None:
        heterogeneity = noise
    return Target(epsilon, noise, heterogeneity)


def _concurrencies(wanted: Sequence[int] | int | None, workers: int) -> list[int]:
    if wanted is None:
        return concurrencies(workers)
    listed = [wanted] if isinstance(wanted, int | np.integer) else list(wanted)
    if not listed:
        raise BadParameter("concurrency", wanted, "is empty", "pass numbers such as [10, 100]")
    for c in listed:
        count("concurrency", c)
        if c > max(1000, 10 * workers):
            raise BadParameter("concurrency", c, f"is far more than {workers} workers", "pass a smaller one")
    return sorted({int(c) for c in listed})


def _limits(workers: MeasuredWorkers, target: Target, most: int) -> Limits:
    """Return the limits. If at most ``most`` jobs can be in flight and the data are alike, only the fastest count."""
    means = workers.means if target.heterogeneous else np.sort(workers.means)[:most]
    return limits(means, smoothness=1.0, gap=target.gap, epsilon=1.0, noise_variance=target.noise)


def _queued(workers: MeasuredWorkers, jobs: Sequence[int], cut: float) -> dict[int, float]:
    """Return the seconds for c gradients of Algorithm 2 by concurrency c, with the variability limited."""
    times = queued_times(workers.means, jobs, variability=np.minimum(workers.variability, cut))
    return {c: float(seconds) for c, seconds in zip(jobs, times, strict=True)}


def _simulate_all(
    candidates: Iterable[Candidate],
    workers: MeasuredWorkers,
    target: Target,
    formulas: Formulas,
    seed: int,
    progress: Callable[[int], None],
) -> list[Row]:
    """Simulate all candidates; over-selection last, because the rounds of mini-batch SGD decide its goal."""
    planned = list(candidates)
    batches = [c for c in planned if c.method == MINIBATCH and c.workers == c.total and c.concurrency > 1]
    costs = [length(c, workers) for c in planned + batches]
    ended = np.rint(WHOLE * np.cumsum([0, *costs]) / sum(costs)).astype(int)
    groups = {m: workers.fastest(m) for m in {c.workers for c in planned}}
    known: dict[tuple[Dispatch, int], SimulatedRun] = {}  # constant and delay-adaptive steps make the same schedule
    rows: list[Row] = []
    for candidate in [*planned, *batches]:
        if len(rows) >= len(planned):
            waits = known[candidate.build().dispatch, candidate.workers].waits
            candidate = _over_selection(candidate, waits, target)
        own, key = groups[candidate.workers], (candidate.build().dispatch, candidate.workers)
        if key not in known:
            known[key] = simulate_candidate(candidate, own, seed)
        reached = accuracy(candidate, known[key], target)
        rows.append(Row(candidate, known[key], formulas.of(candidate, own), reached))
        progress(int(ended[len(rows)] - ended[len(rows) - 1]))
    order = list(LABELS)
    return sorted(rows, key=lambda r: (order.index(r.candidate.method), -r.candidate.workers, r.concurrency))


def _over_selection(batch: Candidate, waits: Any, target: Target) -> Candidate:
    """Return over-selection that asks as many workers as the batch and keeps the best number of answers."""
    alike = Target(target.epsilon, target.noise)
    least = max(1, math.ceil(LEAST_KEPT * batch.concurrency))
    goals = range(least, batch.concurrency + 1)
    tried = [Candidate(OVER, batch.concurrency, batch.workers, batch.total, goal=goal) for goal in goals]
    return min(tried, key=lambda one: waits[one.batch - 1] / one.batch * gradients(one, None, alike))
