"""How many iterations a method needs as delays grow, measured in three ways.

1. As in the theorem: the (weighted) mean of ‖∇f(x_t)‖² falls to ε, with the largest step that the theorem allows.
2. The same with the best step of a grid: what is needed, in contrast to what is guaranteed.
3. As in the paper's figures: the last gradient norm stays below a tiny target, with the best step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from asyncsgd import methods
from asyncsgd.core.method import Method
from asyncsgd.experiments.common import Floats, exponent, record, squares, tune
from asyncsgd.simulation import durations, grid
from asyncsgd.simulation.durations import Durations
from asyncsgd.tasks import logistic, quadratic
from asyncsgd.theory import Bound, theorem1, theorem1_bounded, theorem2, theorem3, theorem3_bounded
from asyncsgd.trace import Trace

# Compare measured means of ‖∇f‖² with the bounds of asyncsgd.theory, for many delays, noises and steps.


WORKERS = 8
NOISES = (0.0, 1.0, 3.0, 10.0)
HETEROGENEITIES = (0.0, 1.0, 5.0)
BATCHES = (None, 5, 1)
SHARES = (1.0, 0.25, 0.0625)
"""Steps, as shares of the largest that the theorem allows."""


@dataclass(frozen=True)
class Cell:
    """One measured mean, averaged over seeds, and its bound."""

    theorem: str
    delays: str
    noise: float
    heterogeneity: float
    stepsize: float
    measured: float
    bound: float


def patterns(n: int = WORKERS) -> dict[str, Durations]:
    """Return kinds of durations; a typical job takes a second."""
    return {
        "equal": durations.fixed(1.0, workers=n),
        "one 10× slower": durations.fixed([1.0] * (n - 1) + [10.0]),
        "half 5× slower": durations.fixed([1.0] * (n // 2) + [5.0] * (n - n // 2)),
        "exponential": durations.exponential(1.0, workers=n),
        "Pareto, shape 1.2": durations.pareto(1.0, 1.2, workers=n),
    }


def quadratics(iterations: int, seeds: Sequence[int]) -> Iterator[Cell]:
    """Measure the three theorems without bounded gradients, on quadratics, whose constants are known exactly."""
    sampled = partial(methods.federated_async_sgd, concurrency=WORKERS)
    for name, speeds in patterns().items():
        for noise in NOISES:
            for spread in HETEROGENEITIES:
                task = quadratic(dim=10, workers=WORKERS, noise=noise, heterogeneity=spread)
                known, cell = _known(task), partial(Cell, delays=name, noise=noise, heterogeneity=spread)
                trace, _ = record(task, sampled, speeds, iterations)
                bound = theorem3(trace.delays, **known, heterogeneity=task.heterogeneity)
                yield from _cells(cell, bound, trace, task, sampled, np.ones(iterations + 1), seeds)
            task = quadratic(dim=10, workers=WORKERS, noise=noise)
            known, cell = _known(task), partial(Cell, delays=name, noise=noise, heterogeneity=0.0)
            trace, _ = record(task, methods.async_sgd, speeds, iterations)
            bound = theorem1(trace.delays, **known)
            yield from _cells(cell, bound, trace, task, methods.async_sgd, np.ones(iterations + 1), seeds)
            trace, weights = record(task, methods.delay_adaptive, speeds, iterations)
            bound = theorem2(trace, **known, weights=weights)
            yield from _cells(cell, bound, trace, task, methods.delay_adaptive, weights, seeds)


def bounded(iterations: int, seeds: Sequence[int]) -> Iterator[Cell]:
    """Measure the two variants with bounded gradients, on logistic regression: ‖∇f_i‖ is at most the mean of ‖a_j‖."""
    sampled = partial(methods.federated_async_sgd, concurrency=WORKERS)
    for name, speeds in patterns().items():
        for batch in BATCHES:
            for split in ("shared", "label"):
                task = logistic(m=96, dim=10, workers=WORKERS, batch=batch, split=split)
                lengths = np.linalg.norm(task.features, axis=1)
                own = [lengths[part] for part in task.rows.parts()]
                # What holds at every x: the slopes of the logistic loss lie between 0 and 1.
                largest = max(float(rows.mean()) for rows in own)
                variance = max(float((rows**2).mean()) for rows in own) / batch if batch else 0.0
                apart = [float(rows.mean() + largest) ** 2 if split == "label" else 0.0 for rows in own]
                known = {**_known(task), "noise_variance": variance, "gradient_bound": largest}
                cell = partial(Cell, delays=name, noise=variance**0.5, heterogeneity=float(np.mean(apart)) ** 0.5)
                trace, _ = record(task, sampled, speeds, iterations)
                bound = theorem3_bounded(WORKERS, **known, heterogeneity=apart)
                yield from _cells(cell, bound, trace, task, sampled, np.ones(iterations + 1), seeds)
                if split == "shared":
                    trace, _ = record(task, methods.async_sgd, speeds, iterations)
                    assigned = np.bincount(trace.jobs.assigned_iteration, minlength=iterations + 1).astype(float)
                    bound = theorem1_bounded(WORKERS, **known)
                    yield from _cells(cell, bound, trace, task, methods.async_sgd, assigned, seeds)


def literal(workers: int = 64, iterations: int = 4000) -> float:
    """Return measured mean over bound for Theorem 2 at the step of its statement, 1/(4L); inf if the run diverges."""
    task, speeds = quadratic(dim=10, workers=workers), durations.fixed(1.0, workers=workers)
    step = 1 / (4 * task.smoothness)
    trace, weights = record(task, methods.delay_adaptive, speeds, iterations)
    mean = weights @ squares(trace, task, methods.delay_adaptive(1.0), [step])[:-1, 0, 0] / weights.sum()
    bound = 2 * _known(task)["gap"] / (step * weights.sum())
    return float(mean / bound) if np.isfinite(mean) else float("inf")


def _known(task: Any) -> dict[str, Any]:
    gap = task.evaluate(task.initial())["loss"]
    return {"smoothness": task.smoothness, "gap": gap, "noise_variance": task.noise_variance}


def _cells(
    cell: Callable[..., Cell],
    bound: Bound,
    trace: Trace,
    task: Any,
    recipe: Callable[[float], Method],
    weights: Floats,
    seeds: Sequence[int],
) -> Iterator[Cell]:
    steps = [share * bound.max_step for share in SHARES]
    path = squares(trace, task, recipe(1.0), steps, seeds)[: len(weights)]
    means = np.einsum("t,tsk->s", weights, path) / weights.sum() / len(seeds)
    for step, mean in zip(steps, means.tolist(), strict=True):
        yield cell(theorem=bound.theorem, stepsize=step, measured=mean, bound=bound.at(trace.iterations, step))


EPSILON = 0.005
"""Of ‖∇f(x_0)‖², for the first two readings."""
TINY = 1e-12
"""For the third."""
RULES: dict[str, Callable[[float], Method]] = {
    "constant": methods.async_sgd,
    "delay-adaptive": methods.delay_adaptive,
    "drop": lambda stepsize: methods.delay_adaptive(stepsize, rule="drop"),
}


@dataclass(frozen=True)
class Need:
    """Iterations that one rule needs under one pattern of delays."""

    rule: str
    varied: float
    """The τ_max or the τ_C that is being varied."""
    promised: float
    """By the first reading."""
    tuned: float
    """By the second."""
    tiny: float
    """By the third."""


def need(rule: str, speeds: Durations, varied: str, iterations: int, tiny_iterations: int, points: int = 41) -> Need:
    """Run one rule without noise under these durations; ``varied`` names the delay on the axis of the plot."""
    task = quadratic(dim=10, workers=speeds.workers)
    recipe = RULES[rule]
    trace, weights = record(task, recipe, speeds, iterations)
    delays = trace.delays
    known: dict[str, Any] = {"smoothness": task.smoothness, "gap": 1.0, "noise_variance": 0.0}
    constant = rule == "constant"
    allowed = (theorem1(delays, **known) if constant else theorem2(trace, **known, weights=weights)).max_step
    tried = grid(0.02 / delays.concurrency / task.smoothness, 4.0 / task.smoothness, points)
    path = squares(trace, task, recipe(1.0), [allowed, *tried])[:-1, :, 0]
    means = np.cumsum(weights[:, None] * path, axis=0) / np.maximum(np.cumsum(weights), 1e-300)[:, None]
    reached = _stays_below(means, EPSILON * path[0, 0])
    slowest = int(delays.maximum)
    found = tune(
        task,
        recipe,
        speeds,
        stepsizes=grid(1e-3 / delays.concurrency, 4.0, points),
        iterations=tiny_iterations,
        target=TINY,
        window=3 * (slowest + 1),
        sustained=True,
    )
    x = slowest if varied == "τ_max" else delays.concurrency
    return Need(rule, float(x), float(reached[0]), float(reached[1:].min()), found.best_iterations)


def _stays_below(means: Floats, epsilon: float) -> Floats:
    """Return, per column, the iterations after which the mean stays at most ε; inf if it is above ε at the end."""
    above = ~(means <= epsilon)
    last = len(means) - np.argmax(above[::-1], axis=0)
    return np.where(above[-1], np.inf, np.where(above.any(axis=0), last, 0.0))


def one_slow(slow: float, workers: int = 4) -> Durations:
    """Return durations of one second, and ``slow`` for one worker: τ_C stays, τ_max grows."""
    return durations.fixed([1.0] * (workers - 1) + [slow])


def exponents(needs: Sequence[Need]) -> dict[str, tuple[float, float, float]]:
    """Return, per rule, the exponent of each measurement in what was varied."""
    found = {}
    for rule in dict.fromkeys(need.rule for need in needs):
        mine = [need for need in needs if need.rule == rule]
        x = [need.varied for need in mine]
        columns = zip(*((need.promised, need.tuned, need.tiny) for need in mine), strict=True)
        found[rule] = tuple(exponent(x, column) for column in columns)
    return found  # type: ignore[return-value]
