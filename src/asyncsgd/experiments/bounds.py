"""Measured means of ‖∇f‖² beside the bounds of asyncsgd.theory: many delays, noises, heterogeneities and steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from asyncsgd import methods
from asyncsgd.core.method import Method
from asyncsgd.experiments.paths import Floats, record, squares
from asyncsgd.simulation import durations
from asyncsgd.simulation.durations import Durations
from asyncsgd.tasks import logistic, quadratic
from asyncsgd.theory import Bound, theorem1, theorem1_bounded, theorem2, theorem3, theorem3_bounded
from asyncsgd.trace import Trace

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
    """Kinds of durations; a typical job takes a second."""
    return {
        "equal": durations.fixed(1.0, workers=n),
        "one 10× slower": durations.fixed([1.0] * (n - 1) + [10.0]),
        "half 5× slower": durations.fixed([1.0] * (n // 2) + [5.0] * (n - n // 2)),
        "exponential": durations.exponential(1.0, workers=n),
        "Pareto, shape 1.2": durations.pareto(1.0, 1.2, workers=n),
    }


def quadratics(iterations: int, seeds: Sequence[int]) -> Iterator[Cell]:
    """The three theorems without bounded gradients, on quadratics, whose constants are known exactly."""
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
    """The two variants with bounded gradients, on logistic regression, where ‖∇f_i‖ is at most the mean of ‖a_j‖."""
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
    """Theorem 2 at the step that its statement allows, 1/(4L): measured mean over bound; inf if the run diverges."""
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
