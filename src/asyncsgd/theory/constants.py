"""The constants that the theorems need, measured on a task or estimated from the gradients of a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive
from asyncsgd.core.validate import count, fraction, nonnegative
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks.base import Task
from asyncsgd.theory.inputs import numbers
from asyncsgd.theory.probing import (
    Figure,
    Probe,
    curvature,
    mean_squared_norm,
    normal_quantile,
    squared_norm,
    steepest,
    variance,
)

Floats = NDArray[np.float64]
ROUNDS = 16
"""Rounds of Lanczos' method at the point; later points need a quarter, because a good direction is known."""


@dataclass(frozen=True)
class Estimates:
    """L, σ², ζ_i², G and r0 as estimated from samples; None if the samples do not determine them.

    ``smoothness``, ``gradient_bound`` and ``gap`` are lower bounds: the largest value seen, while the theorems need one
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
    """G, from below: the largest ‖∇f_i‖ seen."""
    gap: Figure | None
    """r0 = f(x_0) - f*, from below: how far a short descent came down."""
    workers: tuple[int, ...]
    """The workers that were measured."""
    confidence: float
    """The confidence of each single interval. Nominal: tests found between 93 % and 100 % for 95 %."""

    @property
    def known(self) -> dict[str, float]:
        """L, r0 and σ² under the argument names of the bounds: ``theorem1(trace, **found.known)``."""
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

    σ² and ζ_i² are those *at the point*; if they change with x, estimate them elsewhere too, for example at ``run.x``.
    L is the curvature along the direction that Lanczos' method finds, at the point and along a short descent from it; G
    is the largest gradient norm along the same descent. One half of the draws chooses the largest value and the other
    half measures it, so that noise does not push it up. docs/theory.md explains the constants. The cost is about
    workers · samples + 60 · samples + 8 · steps updates (several times that if the data differ from worker to worker)
    and memory for workers · samples gradients.

    Args:
        task: A task with ``initial``, ``update`` and ``evaluate``.
        at: The point; ``task.initial()`` by default.
        workers: The number of workers to measure, or a list of them; by default all, at most 64 at random.
        samples: Stochastic gradients per worker, at least 4.
        steps: The number of steps of the descent.
        lowest: A known lower bound on the loss, such as 0. It bounds r0 from above; without it r0 has no upper bound.
        confidence: The confidence of the intervals.
        seed: Seed for every random choice.

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
        raise BadParameter("samples", samples, "are too few to separate noise from signal", "pass at least 4")
    x = np.array(task.initial() if at is None else at)
    if x.ndim != 1 or not x.size or x.dtype not in (np.float32, np.float64) or not np.isfinite(x).all():
        raise BadParameter("at", at, "is not a point", "pass one flat vector of finite float64 (or float32)")

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
    """Return gradients at x, by worker, sample and coordinate."""
    return np.array(
        [[probe.gradient(x, *draw) for draw in probe.draws(stream + 16 * w, [w], samples)] for w in probe.workers],
        dtype=np.float64,
    )


@dataclass(frozen=True)
class _Steep:
    """The point and direction in which one family's function is most curved, and the draws that found it."""

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
    """Return the largest ‖∇f_i‖, chosen with a few draws and measured with others."""
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
    """Return r0 from the loss at the start, the lowest loss seen and a lower bound, as far as they are known."""
    if start is None or seen is None:
        return None
    if lowest is not None:
        if not lowest <= seen + 1e-9 * abs(start):  # a loss may round to a little less
            fix = "pass a lower one, or None"
            raise BadParameter("lowest", lowest, f"is above a loss that was seen, {seen:.6g}", fix)
        seen = max(seen, lowest)
    return Figure(start - seen, start - seen, math.inf if lowest is None else start - lowest)


POINTS = 300
"""The largest number of points, spread over all, that are compared pair by pair."""


def estimate_from_gradients(
    points: ArrayLike,
    gradients: ArrayLike,
    *,
    workers: Sequence[int] | NDArray[Any] | None = None,
    losses: Sequence[float] | Floats | None = None,
    noise_variance: float | None = None,
    lowest: float | None = None,
    confidence: float = 0.95,
) -> Estimates:
    """Estimate L, σ², ζ_i², G and r0 from gradients of a run.

    - σ² needs repeats: two or more gradients of one worker at one point, whose scatter is pooled. Otherwise pass it.
    - ζ_i² needs points where every worker has three or more gradients.
    - L ≥ √(‖g_a - g_b‖² - noise) / ‖x_a - x_b‖ for all pairs of points, with means of repeats; the pair with the
      largest lower end is taken, its interval made wide enough for all pairs looked at. Needs σ². Points of one run
      depend on the noise of earlier gradients, which this estimate ignores: use points that are many steps apart.
    - G is at least √(‖g‖² - noise), in the same way.
    - r0 is at least the first loss less the lowest.

    Args:
        points: The points x, one row per gradient.
        gradients: The vectors that ``update`` returned there.
        workers: The worker of each gradient; by default all gradients are of one worker.
        losses: The losses f(x), one per row.
        noise_variance: σ² if it is known, 0 for exact gradients.
        lowest: A known lower bound on the loss.
        confidence: The confidence of the intervals.

    >>> x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> found = estimate_from_gradients(x, x * [1.0, 3.0], losses=[5.0, 5.5, 11.0], noise_variance=0.0)
    >>> found.smoothness.value, found.gradient_bound.value, found.heterogeneity
    (3.0, 6.0, None)

    See docs/users/researcher.md for what the theory does with the estimates.
    """
    x, g = _table("points", points), _table("gradients", gradients)
    if x.shape != g.shape:
        raise BadParameter("gradients", g.shape, f"do not fit points {x.shape}", "pass one gradient per point")
    who = np.zeros(len(x), np.int64) if workers is None else np.asarray(workers)
    if who.shape != (len(x),) or who.dtype.kind not in "iu":
        raise BadParameter(
            "workers", workers, f"are not one number for each of {len(x)} gradients", "pass the worker of each"
        )
    fraction("confidence", confidence)
    if noise_variance is not None:
        nonnegative("noise_variance", noise_variance)
    given = np.asarray(gradients).dtype
    precision = float(np.finfo(given if given.kind == "f" else np.float64).eps)
    names = tuple(np.unique(who).tolist())
    places = _places(x, g, who)
    repeats = [rows for place in places for rows in place.by_worker.values() if len(rows) > 1]
    noise = variance(repeats, confidence) if repeats else None
    if noise_variance is not None:
        noise = Figure(noise_variance, noise_variance, noise_variance)
    apart = _heterogeneity(places, names, confidence)
    return Estimates(
        smoothness=None if noise is None or len(places) < 2 else _largest_secant(places, noise, confidence, precision),
        noise_variance=noise,
        heterogeneity=None if apart is None else apart[0],
        mean_heterogeneity=None if apart is None else apart[1],
        gradient_bound=None if noise is None else _largest(places, noise, confidence),
        gap=_gap(losses, len(x), lowest),
        workers=names,
        confidence=confidence,
    )


@dataclass(frozen=True)
class _Place:
    """One point, and the gradients computed there, by worker."""

    point: Floats
    by_worker: dict[int, Floats]

    @property
    def mean(self) -> Floats:
        """The mean over workers of each worker's mean gradient."""
        return np.asarray(np.mean([rows.mean(axis=0) for rows in self.by_worker.values()], axis=0))

    @property
    def share(self) -> float:
        """The share of σ² that is left in the mean."""
        return sum(1 / len(rows) for rows in self.by_worker.values()) / len(self.by_worker) ** 2


def _places(x: Floats, g: Floats, who: NDArray[Any]) -> list[_Place]:
    rows: dict[bytes, dict[int, list[int]]] = {}
    for row, (point, worker) in enumerate(zip(x, who.tolist(), strict=True)):
        rows.setdefault((point + 0.0).tobytes(), {}).setdefault(worker, []).append(row)  # + 0.0: -0.0 is 0.0
    return [
        _Place(x[next(iter(there.values()))[0]], {worker: g[index] for worker, index in there.items()})
        for there in rows.values()
    ]


def _heterogeneity(
    places: list[_Place], names: tuple[int, ...], confidence: float
) -> tuple[tuple[Figure, ...], Figure] | None:
    """Return ζ_i² and ζ², averaged over the points where every worker has enough gradients."""
    full = [place for place in places if len(place.by_worker) == len(names) > 1]
    copies = []
    for place in full:
        often = min(len(rows) for rows in place.by_worker.values())
        if often > 2:
            equal = np.array([place.by_worker[worker][:often] for worker in names])
            copies.append(equal - equal.mean(axis=0))  # by worker, copy and coordinate; copies are independent
    if not copies:
        return None
    each = tuple(mean_squared_norm([[spread[i]] for spread in copies], confidence) for i in range(len(names)))
    return each, mean_squared_norm([list(spread) for spread in copies], confidence)


def _largest_secant(places: list[_Place], noise: Figure, confidence: float, precision: float) -> Figure:
    """Return the largest secant, without the contribution of noise."""
    chosen = [places[i] for i in np.unique(np.linspace(0, len(places) - 1, POINTS).astype(int))]
    x, g = np.array([place.point for place in chosen]), np.array([place.mean for place in chosen])
    share = np.array([place.share for place in chosen])
    a, b = np.triu_indices(len(chosen), 1)
    distance, change = _squares(x)[a, b], _squares(g)[a, b]
    rounding = (4 * precision) ** 2 * float((g**2).sum(axis=1).max())
    value, low = _less_noise(change, share[a] + share[b], noise, rounding, confidence)
    best = int(np.argmax(low / distance))
    if not low[best] > 0:  # no pair exceeds the noise: take the one that comes closest
        best = int(np.argmax(value / distance))
    return Figure(math.sqrt(value[best] / distance[best]), math.sqrt(low[best] / distance[best]), math.inf)


def _largest(places: list[_Place], noise: Figure, confidence: float) -> Figure:
    """Return the largest gradient of one worker, without the contribution of noise."""
    means = [(rows.mean(axis=0), 1 / len(rows)) for place in places for rows in place.by_worker.values()]
    squares = np.array([float(mean @ mean) for mean, _ in means])
    value, low = _less_noise(squares, np.array([share for _, share in means]), noise, 0.0, confidence)
    best = int(np.argmax(low)) if low.any() else int(np.argmax(value))
    return Figure(math.sqrt(value[best]), math.sqrt(low[best]), math.inf)


def _less_noise(
    squares: Floats, share: Floats, noise: Figure, rounding: float, confidence: float
) -> tuple[Floats, Floats]:
    """Return (‖E d‖² without the contribution of noise, its lower end), for all at once.

    ‖d‖² has at most the variance 4 ‖E d‖² v + 2 v² if d is Gaussian with E‖d - E d‖² = v. All lower ends hold together
    (Bonferroni).
    """
    value = np.maximum(squares - share * noise.value - rounding, 0.0)
    most = share * noise.high
    sure = np.maximum(squares - most - rounding, 0.0)
    reach = normal_quantile((1 - confidence) / len(squares)) * np.sqrt(4 * sure * most + 2 * most**2)
    return value, np.maximum(sure - reach, 0.0)


def _squares(rows: Floats) -> Floats:
    """Return ‖r_a - r_b‖² for all pairs of rows."""
    return np.array([((rows - row) ** 2).sum(axis=1) for row in rows])


def _gap(losses: Sequence[float] | Floats | None, rows: int, lowest: float | None) -> Figure | None:
    if losses is None:
        return None
    values = numbers("losses", losses)
    if values.shape != (rows,) or not np.isfinite(values).all():
        raise BadParameter("losses", losses, f"are not {rows} finite numbers", "pass f(x) for every point")
    return gap_between(float(values[0]), float(values.min()), lowest)


def _table(name: str, values: ArrayLike) -> Floats:
    table = numbers(name, values)
    if table.ndim != 2 or not table.size:
        raise BadParameter(name, f"shape {table.shape}", "is not a table", "pass one row per gradient")
    if not np.isfinite(table).all():
        row = int(np.argmin(np.isfinite(table).all(axis=1)))
        raise BadParameter(name, f"row {row}", "holds NaN or infinity", "leave that row out")
    return table
