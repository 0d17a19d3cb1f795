"""Rows of data and who holds them: what least squares, logistic and softmax regression have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncsgd.core.check import count, nonnegative
from asyncsgd.core.errors import BadParameter
from asyncsgd.tasks.builtin import ALL, Floats, Integers
from asyncsgd.tasks.splits import split_rows

Split = str | Sequence[ArrayLike]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows sorted by the worker that holds them."""

    order: Integers
    """Where each row was in the data as given."""
    bounds: Integers
    """First and one past the last row of worker i at 2i and 2i + 1."""
    weights: Floats
    """What each row counts in f, the mean of the f_i, of which each is the mean over its rows."""
    shared: bool
    """Whether every worker holds all rows."""
    batch: int
    """Size of a mini-batch, 0 for all rows."""
    ridge: float

    @property
    def workers(self) -> int:
        """How many there are."""
        return len(self.bounds) // 2

    def parts(self) -> Iterator[slice]:
        """The rows of each worker; once only if all hold the same."""
        for i in range(1 if self.shared else self.workers):
            yield slice(int(self.bounds[2 * i]), int(self.bounds[2 * i + 1]))


def share_out(
    n_rows: int,
    workers: int,
    split: Split,
    *,
    batch: int | None,
    ridge: float,
    labels: Any = None,
    alpha: float = 0.3,
    seed: int = 0,
) -> Rows:
    """Give every worker its rows."""
    if batch is not None:
        count("batch", batch)
    nonnegative("ridge", ridge)
    parts = split_rows(split, n_rows, workers, labels, alpha, seed)
    if parts is None:
        bounds = np.tile(np.array([0, n_rows]), workers)
        order, weights = np.arange(n_rows), np.full(n_rows, 1.0 / n_rows)
    else:
        ends = np.cumsum([len(part) for part in parts])
        bounds = np.column_stack([ends - [len(part) for part in parts], ends]).ravel()
        order = np.concatenate(parts)
        weights = np.concatenate([np.full(len(part), 1.0 / (len(part) * workers)) for part in parts])
    return Rows(order, bounds.astype(np.int64), weights, parts is None or workers == 1, batch or 0, float(ridge))


def table(name: str, values: ArrayLike) -> Floats:
    """A matrix of finite numbers."""
    try:
        matrix = np.array(values, np.float64, order="C")
    except (TypeError, ValueError):
        raise BadParameter(name, type(values).__name__, "is not a table of numbers", "pass a 2-D array") from None
    if matrix.ndim != 2 or 0 in matrix.shape:
        raise BadParameter(name, f"shape {matrix.shape}", "is not a table with rows", "pass a 2-D array, one row each")
    if not np.isfinite(matrix).all():
        raise BadParameter(name, "NaN or infinity", "cannot be fitted", "drop or fill these rows")
    return matrix


def column(name: str, values: ArrayLike, n_rows: int) -> NDArray[Any]:
    """One value per row."""
    array = np.asarray(values)
    if array.shape != (n_rows,):
        raise BadParameter(name, f"shape {array.shape}", f"does not fit {n_rows} rows", "pass one value per row")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadParameter(name, "NaN or infinity", "cannot be fitted", "drop or fill these rows")
    return array


def linear_moments(a: Floats, slopes: Floats) -> tuple[Floats, float]:
    """(mean, mean squared norm) of the gradients slope_r · a_r."""
    return a.T @ slopes / len(a), float((slopes**2 * (a * a).sum(axis=1)).mean())


def constants(
    rows: Rows,
    smoothness: Callable[[slice], float],
    moments: Callable[[Floats, slice], tuple[Floats, float]],
    optimum: Floats | None,
    minimum: float | None,
    dimension: int,
) -> dict[str, Any]:
    """The fields of `BuiltIn` that follow from the rows in the same way for every task.

    L is the largest over workers. σ² and ζ_i² are those at x*, found by enumerating the rows (at x_0 if there is no
    x*): exact there, and a guide elsewhere, so `exact` holds them only where they are 0 everywhere.
    ``moments(x, part)``: mean and mean squared norm of the gradients of the rows of the part, without ridge.
    """
    at = np.zeros(dimension) if optimum is None else optimum
    parts = list(rows.parts())
    # Of one row, a mini-batch is no draw at all.
    noisy = bool(rows.batch) and any(part.stop - part.start > 1 for part in parts)
    both = [moments(at, part) for part in parts]
    means = np.array([mean for mean, _ in both])
    variance = max(max(0.0, square - float(mean @ mean)) for mean, square in both) / rows.batch if noisy else 0.0
    zeta = ((means - means.mean(axis=0)) ** 2).sum(axis=1)
    unsure = set()
    if noisy:
        unsure.add("noise_variance")
    if not rows.shared:
        unsure.add("heterogeneity")
    if optimum is None:
        unsure |= {"optimum", "minimum"}
    return {
        "workers": rows.workers,
        "dimension": dimension,
        "smoothness": max(smoothness(part) for part in parts) + rows.ridge,
        "noise_variance": variance,
        "heterogeneity": np.zeros(rows.workers) if rows.shared else zeta,
        "optimum": optimum,
        "minimum": minimum,
        "exact": ALL - unsure,
        "heterogeneous": not rows.shared,
        "deterministic": rows.shared and not rows.batch,
    }


def newton(
    gradient: Callable[[Floats], Floats],
    hessian: Callable[[Floats], Floats],
    loss: Callable[[Floats], float],
    dimension: int,
    scale: float,
    regular: bool,
) -> Floats | None:
    """The minimiser of a smooth convex function, or None if ‖gradient‖ ≤ 1e-12·scale cannot be reached.

    Unless the Hessian is ``regular``, steps are least-squares solutions, and the answer is the minimiser of least norm.
    """
    x = np.zeros(dimension)
    g = gradient(x)
    best, size = x, float(np.linalg.norm(g))
    for _ in range(100):
        curved = hessian(x)
        step = np.linalg.solve(curved, g) if regular else np.linalg.lstsq(curved, g, rcond=1e-13)[0]
        length, here, slope = 1.0, loss(x), float(g @ step)
        # Near the end the loss is all rounding; there the full step is right.
        while (
            slope > 1e-10 * abs(here) and length > 1e-8 and not loss(x - length * step) <= here - 0.25 * length * slope
        ):
            length *= 0.5
        x = x - length * step
        g = gradient(x)
        now = float(np.linalg.norm(g))
        if now < size:
            best, size = x, now
        elif size <= 1e-12 * scale:
            break
    return best if size <= 1e-12 * scale else None
