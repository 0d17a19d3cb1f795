"""How curved a function is, seen through its stochastic gradients: Lanczos' method with common random numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.events import Vector
from asyncsgd.theory.statistics import Figure, student

Floats = NDArray[np.float64]
Draw = tuple[int, int]
"""(worker, seed): what one stochastic gradient is drawn with."""
Gradient = Callable[[Vector, int, int], Vector]


def steepest(gradient: Gradient, x: Vector, draws: Sequence[Draw], direction: Floats, rounds: int) -> Floats:
    """The unit direction in which the mean gradient of these draws changes fastest at x: Lanczos' method.

    H v comes from the difference of gradients at x ± h v with the same seeds, so that additive noise cancels. Among all
    combinations of v, Hv, H²v, ... the one with the largest |vᵀHv| is taken, which power iteration needs far more
    rounds to come near.
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
            break  # nothing new but rounding
        basis.append(rest / length)
    known = np.array(basis[: len(images)])
    small = known @ np.array(images).T
    values, vectors = np.linalg.eigh((small + small.T) / 2)
    best: Floats = known.T @ vectors[:, np.argmax(np.abs(values))]
    return best / np.linalg.norm(best)


def curvature(gradient: Gradient, x: Vector, draws: Sequence[Draw], direction: Floats, confidence: float) -> Figure:
    """|vᵀHv| over a short piece through x, from draws that did not choose v: at most L on average.

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
    """(the way from x - hv to x + hv as rounded, the change of each draw's gradient along it, their mean length)."""
    # The third root of the precision balances what h³ leaves of the fourth derivative against rounding in ∇f / h.
    h = float(np.cbrt(np.finfo(x.dtype).eps)) * (1.0 + float(np.linalg.norm(x)))
    forth: Vector = (x + h * direction).astype(x.dtype)
    back: Vector = (x - h * direction).astype(x.dtype)
    moved = forth.astype(np.float64) - back.astype(np.float64)
    ends = np.array([[gradient(forth, *draw), gradient(back, *draw)] for draw in draws], dtype=np.float64)
    return moved, ends[:, 0] - ends[:, 1], float(np.sqrt((ends**2).sum(axis=2)).mean())
