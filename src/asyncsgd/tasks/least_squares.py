"""Linear regression."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from asyncsgd.tasks.builtin import NO_INTEGERS, BuiltIn, Floats
from asyncsgd.tasks.layout import LEAST_SQUARES, scratch_rows
from asyncsgd.tasks.rows import Rows, Split, column, constants, linear_moments, share_out, table


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
    """Linear regression on given rows.

    Args:
        features: One row per example.
        targets: One number per example.
        workers: How many there are.
        batch: Size of the mini-batches, drawn with replacement from the worker's rows; None: all its rows.
        ridge: Weight of ½‖x‖².
        split: "shared" (every worker holds all rows), "iid", or one list of rows per worker.
        seed: Draws the split.

    >>> task = least_squares([[1.0, 0.0], [0.0, 2.0]], [1.0, 4.0])
    >>> task.optimum.round(12).tolist(), task.smoothness
    ([1.0, 2.0], 2.0)
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
