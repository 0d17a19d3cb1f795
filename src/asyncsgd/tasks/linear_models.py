"""Linear regression, and logistic regression with two classes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive
from asyncsgd.core.validate import count
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks.base import LEAST_SQUARES, LOGISTIC, NO_INTEGERS, BuiltIn, Floats, Integers, scratch_rows
from asyncsgd.tasks.data import Rows, Split, column, constants, linear_moments, newton, share_out, table


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class LeastSquares(BuiltIn):
    """f_i(x) = mean over the worker's rows of ½(a·x - y)², plus ridge/2 ‖x‖²; f is the mean of the f_i.

    L, x* and f* are exact (x* is the one of least norm if there are several); σ² and ζ_i² are those at x*, by
    enumerating the rows, and `exact` only where they are 0 everywhere.
    """

    features: Floats
    """Sorted by worker, see ``rows``."""
    targets: Floats
    rows: Rows


def least_squares(
    features: ArrayLike,
    targets: ArrayLike,
    workers: int = 1,
    batch: int | None = None,
    ridge: float = 0.0,
    split: Split = "shared",
    seed: int = 0,
) -> LeastSquares:
    """Make a linear regression task from given rows.

    Args:
        features: One row per example.
        targets: One number per example.
        workers: The number of workers.
        batch: Size of the mini-batches, drawn with replacement from the worker's rows; None: all its rows.
        ridge: Weight of ½‖x‖².
        split: "shared" (every worker holds all rows), "iid", or one list of rows per worker.
        seed: Seed for the split.

    >>> task = least_squares([[1.0, 0.0], [0.0, 2.0]], [1.0, 4.0])
    >>> task.optimum.round(12).tolist(), task.smoothness
    ([1.0, 2.0], 2.0)

    See docs/users/researcher.md for simulations, sweeps and comparisons on such a task.
    """
    a = table("features", features)
    y = column("targets", targets, len(a)).astype(np.float64)
    rows = share_out(len(a), workers, split, batch=batch, ridge=ridge, seed=seed)
    a, y = np.ascontiguousarray(a[rows.order]), y[rows.order]
    dim, root = a.shape[1], np.sqrt(rows.weights)
    system = np.vstack([root[:, None] * a, np.sqrt(rows.ridge) * np.eye(dim)])
    best = np.linalg.lstsq(system, np.concatenate([root * y, np.zeros(dim)]), rcond=None)[0]
    minimum = float(0.5 * rows.weights @ (a @ best - y) ** 2 + 0.5 * rows.ridge * best @ best)
    known = constants(
        rows,
        lambda part: float(np.linalg.norm(a[part], 2) ** 2 / (part.stop - part.start)),
        lambda x, part: linear_moments(a[part], a[part] @ x - y[part]),
        best,
        minimum,
        dim,
    )
    params = np.concatenate([[rows.ridge, rows.batch, minimum, 0.0], rows.weights, -y])
    return LeastSquares(
        **known,
        lowered=(LEAST_SQUARES, params, a, np.ascontiguousarray(a.T), NO_INTEGERS, rows.bounds),
        scratch_rows=scratch_rows(LEAST_SQUARES, dim),
        features=a,
        targets=y,
        rows=rows,
    )


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Logistic(BuiltIn):
    """f_i(x) = mean over the worker's rows of log(1 + exp(-y a·x)), y = ±1, plus ridge/2 ‖x‖²; f is their mean.

    L = λ_max(AᵀA)/(4m) + ridge of the worst worker is exact as an upper bound. x* and f* come from Newton's method and
    are `exact` since ‖∇f(x*)‖ ≤ 1e-12 times the longest row; separable data without ridge have none. σ² and ζ_i² are
    those at x* (at x_0 without x*), by enumerating the rows, and `exact` only where they are 0 everywhere.

    See docs/users/researcher.md for simulations on such a task.
    """

    features: Floats
    """Sorted by worker, see ``rows``."""
    signs: Integers
    """±1 per row."""
    rows: Rows

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return the usual metrics and "accuracy", the share of rows on the right side."""
        right = float(np.mean((self.features @ np.asarray(x)) * self.signs > 0))
        return {**super().evaluate(x), "accuracy": right}


def logistic(
    m: int = 100,
    dim: int = 20,
    workers: int = 1,
    batch: int | None = None,
    ridge: float = 0.0,
    seed: int = 0,
    *,
    features: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    split: Split = "shared",
    alpha: float = 0.3,
) -> Logistic:
    """Make a logistic regression task from given rows, or from random ones with random labels (paper's function (ii)).

    Args:
        m: Number of random rows, N(0, 1) each.
        dim: Number of their features.
        workers: The number of workers.
        batch: Size of the mini-batches, drawn with replacement from the worker's rows; None: all its rows.
        ridge: Weight of ½‖x‖².
        seed: Seed for the random rows and the split.
        features: One row per example, in place of random ones.
        labels: One per row of ``features``, of two kinds; the larger one counts as 1.
        split: "shared" (every worker holds all rows), "iid", "label", "dirichlet", or one list of rows per worker.
        alpha: For "dirichlet", see `asyncsgd.tasks.dirichlet_split`.

    >>> task = logistic(m=100, dim=20, workers=2)
    >>> sorted(task.exact), task.evaluate(task.optimum)["gradient_norm"] < 1e-14
    (['heterogeneity', 'minimum', 'noise_variance', 'optimum', 'smoothness'], True)

    See docs/users/researcher.md for simulations, sweeps and comparisons on such a task.
    """
    if (features is None) != (labels is None):
        missing = "features" if features is None else "labels"
        raise BadParameter(missing, None, "is missing", "give features and labels, or neither")
    if features is None:
        count("m", m)
        count("dim", dim)
        random = np.random.Generator(np.random.Philox(key=derive(seed)))
        a, positive = random.standard_normal((m, dim)), random.integers(0, 2, m) == 1
    else:
        a = table("features", features)
        classes = column("labels", labels, len(a))  # type: ignore[arg-type]
        kinds = np.unique(classes)
        if len(kinds) != 2:
            raise BadParameter("labels", f"{len(kinds)} kinds", "are not two", "use asgd.tasks.softmax for more")
        positive = classes == kinds[1]
    signs = np.where(positive, 1, -1)
    rows = share_out(len(a), workers, split, batch=batch, ridge=ridge, labels=signs, alpha=alpha, seed=seed)
    return _build(np.ascontiguousarray(a[rows.order]), signs[rows.order], rows)


def _build(a: Floats, signs: Integers, rows: Rows) -> Logistic:
    m, dim = a.shape
    signed = np.ascontiguousarray(-signs[:, None] * a)

    def slopes(x: Floats, part: slice) -> Floats:
        z = signed[part] @ x
        e = np.exp(-np.abs(z))
        slope: Floats = np.where(z > 0, 1.0, e) / (1.0 + e)
        return slope

    def loss(x: Floats) -> float:
        return float(rows.weights @ np.logaddexp(0.0, signed @ x) + 0.5 * rows.ridge * x @ x)

    def hessian(x: Floats) -> Floats:
        s = slopes(x, slice(0, m))
        curved: Floats = (signed.T * (rows.weights * s * (1 - s))) @ signed + rows.ridge * np.eye(dim)
        return curved

    best = None
    if rows.ridge or not separable(signed):
        best = newton(
            lambda x: signed.T @ (rows.weights * slopes(x, slice(0, m))) + rows.ridge * x,
            hessian,
            loss,
            dim,
            float(np.linalg.norm(a, axis=1).max()),
            rows.ridge > 0,
        )
    minimum = None if best is None else loss(best)
    known = constants(
        rows,
        lambda part: float(np.linalg.norm(a[part], 2) ** 2 / (4 * (part.stop - part.start))),
        lambda x, part: linear_moments(signed[part], slopes(x, part)),
        best,
        minimum,
        dim,
    )
    params = np.concatenate([[rows.ridge, rows.batch, minimum or 0.0, 0.0], rows.weights, np.zeros(m)])
    return Logistic(
        **known,
        lowered=(LOGISTIC, params, signed, np.ascontiguousarray(signed.T), NO_INTEGERS, rows.bounds),
        scratch_rows=scratch_rows(LOGISTIC, dim),
        features=a,
        signs=signs,
        rows=rows,
    )


def separable(signed: Floats) -> bool:
    """Return whether some x has signed·x ≤ 0 and not all 0: then the loss falls for ever along x."""
    from scipy.optimize import linprog

    dim = signed.shape[1]
    answer = linprog(signed.sum(axis=0), A_ub=signed, b_ub=np.zeros(len(signed)), bounds=[(-1.0, 1.0)] * dim)
    return bool(answer.fun < -1e-9 * np.abs(signed).sum())
