"""The constants that the theorems ask for, measured on a task, with their uncertainty."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import count, fraction
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Vector
from asyncsgd.core.random import derive
from asyncsgd.tasks.base import Task
from asyncsgd.theory.curvature import curvature, steepest
from asyncsgd.theory.probe import Probe
from asyncsgd.theory.statistics import Figure, mean_squared_norm, squared_norm, variance

Floats = NDArray[np.float64]
ROUNDS = 16
"""Rounds of Lanczos' method at the point; a quarter as many further on, where a good direction is known."""


@dataclass(frozen=True)
class Estimates:
    """L, σ², ζ_i², G and r0 as far as samples tell; None where they tell nothing.

    ``smoothness``, ``gradient_bound`` and ``gap`` are lower bounds: the largest value seen, while the theorems want one
    that holds everywhere. ``noise_variance`` and ``heterogeneity`` are unbiased (the latter up to the cut at 0).
    """

    smoothness: Figure | None
    """L, from below."""
    noise_variance: Figure | None
    """σ²: the mean over the workers."""
    heterogeneity: tuple[Figure, ...] | None
    """ζ_i², one per worker in ``workers``, ∇f being the mean over these."""
    mean_heterogeneity: Figure | None
    """ζ²: their mean."""
    gradient_bound: Figure | None
    """G, from below: the largest ‖∇f_i‖ met."""
    gap: Figure | None
    """r0 = f(x_0) - f*, from below: how far a short descent came down."""
    workers: tuple[int, ...]
    """The workers looked at."""
    confidence: float
    """Of every interval, one at a time. Nominal: between 93 % and 100 % where 95 % was asked for and checked."""

    @property
    def known(self) -> dict[str, float]:
        """L, r0 and σ² by the names that the bounds give them: ``theorem1(trace, **found.known)``."""
        figures = {"smoothness": self.smoothness, "gap": self.gap, "noise_variance": self.noise_variance}
        return {name: figure.value for name, figure in figures.items() if figure is not None}


def estimate(
    task: Task,
    *,
    at: Vector | None = None,
    workers: int | Sequence[int] | None = None,
    samples: int = 32,
    steps: int = 200,
    lowest: float | None = None,
    confidence: float = 0.95,
    seed: int = 0,
) -> Estimates:
    """Measure the constants of a task around a point.

    σ² and ζ_i² are those *at the point*; where they change with x, ask again elsewhere, at ``run.x`` say. L is the
    curvature along the direction that Lanczos' method finds, at the point and along a short descent from it; G is the
    largest gradient norm on the same way. What is largest is chosen with one half of the draws and measured with the
    other, so that noise does not push it up. Costs about workers · samples + 60 · samples + 8 · steps updates (several
    times that if the data differ from worker to worker) and memory for workers · samples gradients.

    Args:
        task: With ``initial``, ``update`` and ``evaluate``.
        at: The point; ``task.initial()`` by default.
        workers: How many of the task's workers to look at, or which; by default all, at most 64 at random.
        samples: Stochastic gradients per worker, at least 4.
        steps: Length of the descent.
        lowest: A known lower bound on the loss, such as 0. It ends the interval of r0; without it nothing does.
        confidence: Of the intervals.
        seed: Draws everything.

    >>> from asyncsgd import tasks
    >>> found = estimate(tasks.quadratic(dim=5, eigenvalues=(1, 3), workers=2, noise=0.5, heterogeneity=1.0))
    >>> round(found.smoothness.value, 3), 0.25 in found.noise_variance, 1.0 in found.mean_heterogeneity
    (3.0, True, True)
    """
    probe = Probe.of(task, workers, seed)
    count("samples", samples)
    count("steps", steps)
    fraction("confidence", confidence)
    if samples < 4:
        raise BadParameter("samples", samples, "are too few to tell noise from signal", "pass at least 4")
    x = np.array(task.initial() if at is None else at)
    if x.ndim != 1 or not x.size or x.dtype not in (np.float32, np.float64) or not np.isfinite(x).all():
        raise BadParameter("at", at, "is no point", "pass one flat vector of finite float64 (or float32)")

    gradients = _drawn(probe, x, 1, samples)
    spread = gradients - gradients.mean(axis=0)
    precision = float(np.finfo(x.dtype).eps)
    size = float((gradients**2).sum(axis=2).mean())
    rounding = 4 * precision * size

    few = max(4, samples // (2 if len(probe.families) <= 8 else 8))
    guess = np.random.Generator(np.random.Philox(key=derive(seed, 2))).standard_normal(len(x))
    guess /= np.linalg.norm(guess)
    steep = [_steepness(probe, x, family, guess, few, ROUNDS) for family in probe.families]
    steepest_here = max(steep, key=lambda found: found.level)
    way, lowest_seen = probe.descend(x, 0.5 / steepest_here.level if steepest_here.level > 0 else 1.0, steps)
    steep += [
        _steepness(probe, point, steepest_here.family, steepest_here.direction, few, ROUNDS // 4) for point in way
    ]
    return Estimates(
        smoothness=_smoothness(probe, max(steep, key=lambda found: found.level), samples, confidence),
        noise_variance=variance(list(gradients), confidence, rounding=(4 * precision) ** 2 * size, alike=False),
        heterogeneity=tuple(squared_norm(rows, confidence, rounding) for rows in spread),
        mean_heterogeneity=mean_squared_norm([list(spread)], confidence, rounding),
        gradient_bound=_gradient_bound(probe, [x, *way], samples, confidence),
        gap=gap_between(probe.loss(x), lowest_seen, lowest),
        workers=probe.workers,
        confidence=confidence,
    )


def _drawn(probe: Probe, x: Vector, stream: int, samples: int) -> Floats:
    """Gradients at x: by worker, sample and coordinate."""
    return np.array(
        [[probe.gradient(x, *draw) for draw in probe.draws(stream + 16 * w, [w], samples)] for w in probe.workers],
        dtype=np.float64,
    )


@dataclass(frozen=True)
class _Steep:
    """Where and in which direction one family's function is most curved, by the draws that looked for it."""

    point: Vector
    family: tuple[int, ...]
    direction: Floats
    level: float


def _steepness(probe: Probe, x: Vector, family: tuple[int, ...], direction: Floats, draws: int, rounds: int) -> _Steep:
    chosen = probe.draws(3, family, draws)
    direction = steepest(probe.gradient, x, chosen, direction, rounds)
    return _Steep(x, family, direction, curvature(probe.gradient, x, chosen, direction, 0.0).value)


def _smoothness(probe: Probe, found: _Steep, samples: int, confidence: float) -> Figure:
    draws = probe.draws(4, found.family, samples)
    return curvature(probe.gradient, found.point, draws, found.direction, confidence)


def _gradient_bound(probe: Probe, points: Sequence[Vector], samples: int, confidence: float) -> Figure:
    """The largest ‖∇f_i‖, chosen with a few draws and measured with others."""
    candidates = []
    for point in points:
        for worker, rows in zip(probe.workers, _drawn(probe, point, 6, 4), strict=True):
            candidates.append((squared_norm(rows, confidence).value, worker, point))
    _, worker, point = max(candidates, key=lambda candidate: candidate[0])
    rows = np.array([probe.gradient(point, *draw) for draw in probe.draws(7, [worker], samples)], dtype=np.float64)
    rounding = 4 * float(np.finfo(point.dtype).eps) * float((rows**2).sum(axis=1).mean())
    square = squared_norm(rows, confidence, rounding)
    return Figure(math.sqrt(square.value), math.sqrt(square.low), math.inf)


def gap_between(start: float | None, seen: float | None, lowest: float | None) -> Figure | None:
    """r0 from the loss at the start, the lowest loss seen and a lower bound on it, as far as they are known."""
    if start is None or seen is None:
        return None
    if lowest is not None:
        if not lowest <= seen + 1e-9 * abs(start):  # a loss may round to a little less
            fix = "pass a lower one, or None"
            raise BadParameter("lowest", lowest, f"is above a loss that was met, {seen:.6g}", fix)
        seen = max(seen, lowest)
    return Figure(start - seen, start - seen, math.inf if lowest is None else start - lowest)
