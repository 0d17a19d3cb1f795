"""Measure a task through its gradients and its loss: curvature, variances with intervals, and a short descent."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter, BadTask
from asyncsgd.core.random import derive
from asyncsgd.core.validate import count
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks.base import Task, gradient_of, is_heterogeneous

Floats = NDArray[np.float64]
Draw = tuple[int, int]
"""(worker, seed) of one stochastic gradient."""
Gradient = Callable[[Vector, int, int], Vector]


def steepest(gradient: Gradient, x: Vector, draws: Sequence[Draw], direction: Floats, rounds: int) -> Floats:
    """Return the unit direction in which the mean gradient of these draws changes fastest at x: Lanczos' method.

    H v comes from the difference of gradients at x ± h v with the same seeds, so that additive noise cancels. Lanczos'
    method takes the combination of v, Hv, H²v, ... with the largest |vᵀHv|. Power iteration would need many more
    rounds.
    """
    basis, images = [direction], []
    for _ in range(min(rounds, len(x))):
        moved, change, _ = differences(gradient, x, draws, basis[-1])
        image = change.mean(axis=0) / float(np.linalg.norm(moved))
        images.append(image)
        known = np.array(basis)
        rest = image - known.T @ (known @ image)
        rest -= known.T @ (known @ rest)  # twice is enough (Parlett)
        length = float(np.linalg.norm(rest))
        if not length > float(np.sqrt(np.finfo(x.dtype).eps)) * float(np.linalg.norm(image)):
            break  # only rounding errors are left
        basis.append(rest / length)
    known = np.array(basis[: len(images)])
    small = known @ np.array(images).T
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    best: Floats = known.T @ vectors[:, np.argmax(np.abs(values))]
    return best / np.linalg.norm(best)


def curvature(gradient: Gradient, x: Vector, draws: Sequence[Draw], direction: Floats, confidence: float) -> Figure:
    """Return |vᵀHv| over a short line through x, from draws that did not choose v: at most L on average.

    By the mean value theorem vᵀ(∇f(x + hv) - ∇f(x - hv))/(2h) is a mean of vᵀHv, and no eigenvalue exceeds L.
    """
    moved, change, size = differences(gradient, x, draws, direction)
    mean, reach = student(change @ moved / float(moved @ moved), confidence)
    precision = float(np.finfo(x.dtype).eps)
    rounding = 4 * precision * size / float(np.linalg.norm(moved)) + precision ** (2 / 3) * abs(mean)
    return Figure(abs(mean), max(abs(mean) - reach - rounding, 0.0), np.inf)


def differences(
    gradient: Gradient, x: Vector, draws: Sequence[Draw], direction: Floats
) -> tuple[Floats, Floats, float]:
    """Return (the rounded difference of x + hv and x - hv, each draw's change of gradient, their mean length)."""
    # The third root of the precision balances the truncation error against the rounding error of ∇f / h.
    h = float(np.cbrt(np.finfo(x.dtype).eps)) * (1.0 + float(np.linalg.norm(x)))
    forth: Vector = (x + h * direction).astype(x.dtype)
    back: Vector = (x - h * direction).astype(x.dtype)
    moved = forth.astype(np.float64) - back.astype(np.float64)
    ends = np.array([[gradient(forth, *draw), gradient(back, *draw)] for draw in draws], dtype=np.float64)
    return moved, ends[:, 0] - ends[:, 1], float(np.sqrt((ends**2).sum(axis=2)).mean())


# ------------------------------------------------------------------------------------- numbers with their uncertainty


ENOUGH = 8
"""From this many repeats on, their scatter gives the uncertainty of a variance; below, the worst Gaussian noise."""


@dataclass(frozen=True)
class Figure:
    """A number estimated from samples, and its confidence interval.

    ``high`` is infinite if the samples give only a lower bound.

    >>> print(Figure(2.0, 1.8, 2.3)), print(Figure(4.0, 3.9, float("inf")))
    2 (1.8 to 2.3)
    at least 4 (3.9 with its uncertainty)
    (None, None)
    """

    value: float
    low: float
    high: float

    def __str__(self) -> str:
        if math.isinf(self.high):
            return f"at least {self.value:.4g} ({self.low:.4g} with its uncertainty)"
        return f"{self.value:.4g} ({self.low:.4g} to {self.high:.4g})"

    @property
    def is_lower_bound(self) -> bool:
        """Whether there is no upper bound."""
        return math.isinf(self.high)

    def __contains__(self, truth: float) -> bool:
        return self.low <= truth <= self.high


def variance(groups: Sequence[NDArray[Any]], confidence: float, *, rounding: float = 0.0, alike: bool = True) -> Figure:
    """Estimate E‖g - E g‖² from groups of repeated gradients, unbiased (each divided by repeats - 1).

    The interval is that of a χ² variable with 2 v²/se² degrees of freedom (Satterthwaite 1946), with the standard error
    se from the scatter of ‖g - ḡ‖².

    Args:
        groups: One array of gradients, row by row, for each point and worker; at least two rows each.
        confidence: The confidence of the interval, such as 0.95.
        rounding: The variance that rounding alone causes.
        alike: Whether all groups have the same variance and are pooled; otherwise the result is the mean over groups.
    """
    values, errors, free = [], [], []
    for rows in groups:
        gradients = np.asarray(rows, dtype=np.float64)
        repeats = len(gradients)
        squares = ((gradients - gradients.mean(axis=0)) ** 2).sum(axis=1)
        values.append(float(squares.sum()) / (repeats - 1))
        # The jackknife's error, which is rather too large than too small.
        errors.append(repeats / max(repeats - 2, 1) ** 2 * float(squares.var(ddof=1)))
        free.append(repeats - 1)
    weights = np.array(free, dtype=float) if alike else np.ones(len(free))
    weights /= weights.sum()
    value = float(weights @ values)
    if value <= rounding:
        return Figure(0.0, 0.0, rounding)
    if min(free) + 1 >= ENOUGH:
        wider = _quantile(sum(free), confidence) / _quantile(10**9, confidence)  # the error is itself estimated
        error = wider**2 * float(weights**2 @ errors)
        freedom = 2 * value**2 / error if error > 0 else math.inf
    else:  # noise in one direction only has the fewest degrees of freedom
        freedom = 1 / float((weights**2 / np.array(free)).sum())
    low, high = _chi_square(freedom, confidence)
    return Figure(value, value * low, value * high)


def squared_norm(rows: NDArray[Any], confidence: float, rounding: float = 0.0) -> Figure:
    """Estimate ‖E d‖² from independent copies of d: the mean of ⟨d_s, d_t⟩ over s ≠ t.

    Noise adds 0 to it on average. The interval is Student's. Its variance is that of the jackknife, plus 2
    tr(C²)/(S(S-1)) with the covariance C of d: near 0 the jackknife alone gives too short intervals. Value and interval
    are cut off at 0 if noise pushes them below. An interval that begins at 0 does not exclude 0.

    Args:
        rows: The S copies, at least three for a finite interval.
        confidence: The confidence of the interval.
        rounding: The error that all copies have in common.
    """
    return mean_squared_norm([[rows]], confidence, rounding)


def mean_squared_norm(groups: Sequence[Sequence[NDArray[Any]]], confidence: float, rounding: float = 0.0) -> Figure:
    """Estimate the mean of ‖E d‖² over several d; s-th copies may depend on each other within a group, not across."""
    parts = [_jackknife([_pairs(np.asarray(rows, dtype=np.float64)) for rows in group]) for group in groups]
    value = float(np.mean([value for value, _, _ in parts]))
    error = math.sqrt(sum(scatter for _, scatter, _ in parts)) / len(parts)
    many = min(many for _, _, many in parts)
    reach = _quantile(many - 1, confidence) * error + rounding if many > 2 else math.inf
    return Figure(max(value, 0.0), max(value - reach, 0.0), max(value + reach, 0.0))


def student(values: Floats, confidence: float) -> tuple[float, float]:
    """Return (mean, half the width of its interval)."""
    if len(values) < 2:
        return float(values.mean()), math.inf
    error = float(values.std(ddof=1)) / math.sqrt(len(values))
    return float(values.mean()), _quantile(len(values) - 1, confidence) * error


def _jackknife(family: Sequence[tuple[float, Floats, float]]) -> tuple[float, float, int]:
    """Return (mean over the family, its variance, the number of copies)."""
    value = float(np.mean([value for value, _, _ in family]))
    left_out = np.mean([without for _, without, _ in family], axis=0)
    many = len(left_out)
    if many < 3:
        return value, math.inf, many
    jackknife = (many - 1) / many * float(((left_out - left_out.mean()) ** 2).sum())
    near_zero = float(np.mean([math.sqrt(scatter) for _, _, scatter in family])) ** 2
    return value, jackknife + near_zero, many


def _pairs(copies: Floats) -> tuple[float, Floats, float]:
    """Return the mean over pairs, the mean without each copy, and its variance if E d is 0."""
    many = len(copies)
    products = copies @ copies.T
    others = products.sum(axis=1) - np.diag(products)
    total = float(others.sum())
    value = total / (many * (many - 1))
    if many < 3:
        return value, np.empty(0), math.inf
    centred = copies - copies.mean(axis=0)
    cross = centred @ centred.T
    squares = float((cross**2).sum() - (np.diag(cross) ** 2).sum())  # many (many - 1) tr(C²), nearly
    left_out = (total - 2 * others) / ((many - 1) * (many - 2))
    return value, left_out, 2 * squares / (many * (many - 1)) ** 2


def normal_quantile(chance: float) -> float:
    """Return the value that a standard normal number exceeds with this probability."""
    from scipy.special import ndtri

    return -float(ndtri(chance))


def _quantile(freedom: int, confidence: float) -> float:
    from scipy.special import stdtrit  # scipy takes a while to load

    return float(stdtrit(freedom, (1 + confidence) / 2))


def _chi_square(freedom: float, confidence: float) -> tuple[float, float]:
    """Return the factors from a variance with these degrees of freedom to the ends of its interval."""
    from scipy.special import gammaincinv

    if math.isinf(freedom):
        return 1.0, 1.0
    half, tail = freedom / 2, (1 - confidence) / 2
    few = float(gammaincinv(half, tail))
    return half / float(gammaincinv(half, 1 - tail)), half / few if few > 0 else math.inf


MANY = 64
"""The number of workers that are measured by default."""
BATCH = 8
"""Gradients of one step of the descent."""
MOMENTUM = 0.9


@dataclass(frozen=True)
class Probe:
    """Some workers of a task, and seeds to draw their gradients with: one stream of seeds per purpose."""

    task: Task
    workers: tuple[int, ...]
    seed: int

    @classmethod
    def of(cls, task: Task, workers: int | Sequence[int] | None, seed: int) -> Probe:
        """Check the task and choose the workers."""
        for name in ("initial", "update", "evaluate"):
            if not callable(getattr(task, name, None)):
                raise BadTask(f"the task has no method {name}(); add it, see asyncsgd.tasks.Task")
        total = int(getattr(task, "workers", None) or 1)
        if workers is None or isinstance(workers, int | np.integer):
            wanted = min(total, MANY) if workers is None else workers
            count("workers", wanted)
            if wanted > total:
                raise BadParameter("workers", wanted, f"is more than the task has ({total})", f"pass at most {total}")
            random = np.random.Generator(np.random.Philox(key=derive(seed, 0)))
            return cls(task, tuple(sorted(random.choice(total, int(wanted), replace=False).tolist())), seed)
        chosen = tuple(workers)
        if not chosen or len(set(chosen)) < len(chosen) or not all(w in range(total) for w in chosen):
            fix = f"name each at most once, from 0 to {total - 1}"
            raise BadParameter("workers", chosen, f"are not workers of a task with {total}", fix)
        return cls(task, tuple(int(w) for w in chosen), seed)

    @property
    def families(self) -> tuple[tuple[int, ...], ...]:
        """Groups of workers with the same function: all of them, or each alone if data differ."""
        return tuple((w,) for w in self.workers) if is_heterogeneous(self.task) else (self.workers,)

    def draws(self, stream: int, among: Sequence[int], many: int, skip: int = 0) -> list[Draw]:
        """Return ``many`` pairs (worker, seed), workers in turn; the same for the same stream."""
        return [(among[k % len(among)], derive(self.seed, stream, k)) for k in range(skip, skip + many)]

    def gradient(self, x: Vector, worker: int, seed: int) -> Vector:
        """Return ``task.update``; raise unless it is a finite vector like x."""
        found: Any = gradient_of(self.task)(x, worker, seed)
        if not isinstance(found, np.ndarray) or found.shape != x.shape:
            raise BadTask(f"update(x, {worker}, {seed}) is not a vector like x; return an array of shape {x.shape}")
        if not np.isfinite(found).all():
            raise BadTask(
                f"update(x, {worker}, {seed}) holds NaN or infinity at a point with |x| <= {np.abs(x).max():.3g}"
            )
        return found

    def loss(self, x: Vector) -> float | None:
        """Return ``task.evaluate(x)["loss"]``, or None if there is none."""
        values = self.task.evaluate(x)
        return float(values["loss"]) if "loss" in values else None

    def descend(self, x: Vector, step: float, steps: int) -> tuple[list[Vector], float | None]:
        """Return (some points of a descent from x, the lowest loss on it).

        The descent uses Nesterov's momentum on gradients of a few workers. If the loss rises, it returns to the best
        point with half the step.
        """
        best, lowest = x, self.loss(x)
        here, velocity, points = x.astype(np.float64), np.zeros(len(x)), []
        for k in range(steps):
            ahead: Vector = (here + MOMENTUM * velocity).astype(x.dtype)
            batch = self.draws(5, self.workers, BATCH, skip=BATCH * k)
            slope = np.mean([np.asarray(self.gradient(ahead, *draw), np.float64) for draw in batch], axis=0)
            velocity = MOMENTUM * velocity - step * slope
            here = here + velocity
            if k % 5 == 4 or k == steps - 1:
                point: Vector = here.astype(x.dtype)
                now = self.loss(point) if np.isfinite(point).all() else np.inf
                if now is not None and lowest is not None:
                    if not now <= lowest:
                        step, velocity, here = step / 2, np.zeros(len(x)), best.astype(np.float64)
                    else:
                        best, lowest = point, now
            if k in (steps // 4, steps // 2, steps - 1):
                points.append(here.astype(x.dtype))
        return points, lowest
