"""Rows of data, and which worker holds which: every row belongs to one worker, and every worker has rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive
from asyncsgd.core.validate import count, integer, nearest, nonnegative, positive
from asyncsgd.tasks.base import ALL, Floats, Integers

Split = str | Sequence[ArrayLike]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows sorted by the worker that holds them."""

    order: Integers
    """The place of each row in the given data."""
    bounds: Integers
    """First and one past the last row of worker i at 2i and 2i + 1."""
    weights: Floats
    """The weight of each row in f, the mean of the f_i, each of which is the mean over its rows."""
    shared: bool
    """Whether every worker holds all rows."""
    batch: int
    """Size of a mini-batch, 0 for all rows."""
    ridge: float

    @property
    def workers(self) -> int:
        """The number of workers."""
        return len(self.bounds) // 2

    def parts(self) -> Iterator[slice]:
        """Yield the rows of each worker; only once if all hold the same rows."""
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
    """Return the values as a matrix; raise unless they are finite numbers."""
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
    """Return the values as an array; raise unless there is one value per row."""
    array = np.asarray(values)
    if array.shape != (n_rows,):
        raise BadParameter(name, f"shape {array.shape}", f"does not fit {n_rows} rows", "pass one value per row")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise BadParameter(name, "NaN or infinity", "cannot be fitted", "drop or fill these rows")
    return array


def linear_moments(a: Floats, slopes: Floats) -> tuple[Floats, float]:
    """Return (mean, mean squared norm) of the gradients slope_r · a_r."""
    return a.T @ slopes / len(a), float((slopes**2 * (a * a).sum(axis=1)).mean())


def constants(
    rows: Rows,
    smoothness: Callable[[slice], float],
    moments: Callable[[Floats, slice], tuple[Floats, float]],
    optimum: Floats | None,
    minimum: float | None,
    dimension: int,
) -> dict[str, Any]:
    """Return the fields of `BuiltIn` that follow from the rows in the same way for every task.

    L is the largest over workers. σ² and ζ_i² are those at x*, found by enumerating the rows (at x_0 if there is no
    x*): exact there, and a guide elsewhere, so `exact` holds them only where they are 0 everywhere.
    ``moments(x, part)``: mean and mean squared norm of the gradients of the rows of the part, without ridge.
    """
    at = np.zeros(dimension) if optimum is None else optimum
    parts = list(rows.parts())
    # With one row, every mini-batch is the same, so there is no noise.
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
    """Return the minimiser of a smooth convex function, or None if ‖gradient‖ ≤ 1e-12·scale cannot be reached.

    Unless the Hessian is ``regular``, steps are least-squares solutions, and the answer is the minimiser of least norm.
    """
    x = np.zeros(dimension)
    g = gradient(x)
    best, size = x, float(np.linalg.norm(g))
    for _ in range(100):
        curved = hessian(x)
        step = np.linalg.solve(curved, g) if regular else np.linalg.lstsq(curved, g, rcond=1e-13)[0]
        length, here, slope = 1.0, loss(x), float(g @ step)
        # Near the minimum, differences of the loss are only rounding errors, and the full step is right.
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


RowNumbers = NDArray[np.int64]
KINDS = ("iid", "dirichlet", "label")


@dataclass(frozen=True, eq=False)
class DataSplit:
    """How the rows of one dataset are split among workers; `split` makes and checks it.

    >>> [len(part) for part in split("iid", workers=3).parts(9)]
    [3, 3, 3]

    See docs/users/federated.md for training on data that differ between workers.
    """

    kind: str | Sequence[ArrayLike]
    workers: int
    alpha: float = 0.3
    seed: int = 0

    @property
    def by_label(self) -> bool:
        """Whether the split depends on the labels of the rows."""
        return isinstance(self.kind, str) and self.kind != "iid"

    def parts(self, n_rows: int, labels: Any = None) -> list[RowNumbers]:
        """Return the row numbers of every worker; ``labels`` are needed if `by_label`."""
        parts = split_rows(self.kind, n_rows, self.workers, labels, self.alpha, self.seed)
        assert parts is not None
        return parts


def split(
    kind: str | Sequence[ArrayLike], *, workers: int | None = None, alpha: float = 0.3, seed: int = 0
) -> DataSplit:
    """Choose how one dataset is split among workers: every row goes to exactly one, and each worker gets at least one.

    Args:
        kind: "iid": at random, in equal parts. "dirichlet": each class in proportions drawn from Dirichlet(α). "label":
            sorted by label, in equal parts. Or one list of row numbers per worker.
        workers: The number of workers; for lists of row numbers it is the number of lists.
        alpha: α of "dirichlet": the smaller, the less alike the workers' data.
        seed: Seed for the random choices of the split.

    >>> split("dirichlet", workers=4, alpha=0.1)
    DataSplit(kind='dirichlet', workers=4, alpha=0.1, seed=0)
    >>> split([[0, 2], [1]]).workers
    2

    See docs/users/federated.md for training on data that differ between workers.
    """
    if isinstance(kind, str):
        if kind not in KINDS:
            raise BadParameter("kind", kind, "is not a split", nearest(kind, KINDS))
        if workers is None:
            raise BadParameter("workers", None, f"is missing to split the data ({kind!r})", "pass workers=4")
    elif not isinstance(kind, Sequence | np.ndarray):
        fix = "pass one list of row numbers per worker, or one of: " + ", ".join(KINDS)
        raise BadParameter("kind", kind, "is not a split", fix)
    elif workers not in (None, len(kind)):
        raise BadParameter("workers", workers, f"is not the number of lists, {len(kind)}", "leave it out")
    workers = len(kind) if workers is None else workers
    count("workers", workers)
    positive("alpha", alpha)
    integer("seed", seed)
    return DataSplit(kind, workers, alpha, seed)


def iid_split(n_rows: int, workers: int, seed: int = 0) -> list[RowNumbers]:
    """Split at random, in parts that differ by at most one row.

    Args:
        n_rows: The number of rows.
        workers: The number of workers.
        seed: Seed for the order of the rows.

    >>> [len(part) for part in iid_split(10, 3)]
    [4, 3, 3]

    See docs/users/federated.md for training on data that differ between workers.
    """
    _enough(n_rows, workers)
    shuffled = np.random.Generator(np.random.Philox(key=derive(seed))).permutation(n_rows)
    return [np.sort(part) for part in np.array_split(shuffled, workers)]


def dirichlet_split(labels: ArrayLike, workers: int, alpha: float = 0.3, seed: int = 0) -> list[RowNumbers]:
    """Split each class in proportions drawn from Dirichlet(α): the smaller α, the more the workers' data differ.

    A worker that would get no row takes one from the worker with the most rows. Hsu, Qi and Brown,
    *Measuring the effects of non-identical data distribution*, 2019.

    Args:
        labels: The label of each row.
        workers: The number of workers.
        alpha: The parameter α of the distribution: 0.1 gives workers few classes each, 100 nearly the same mixture.
        seed: Seed for the proportions and for the rows of each part.

    >>> parts = dirichlet_split([0, 1] * 50, workers=4, alpha=0.3)
    >>> len(parts), sum(len(part) for part in parts)
    (4, 100)

    See docs/users/federated.md for training on data that differ between workers.
    """
    classes = _one_dimensional(labels)
    _enough(len(classes), workers)
    positive("alpha", alpha)
    random = np.random.Generator(np.random.Philox(key=derive(seed)))
    parts: list[list[int]] = [[] for _ in range(workers)]
    for value in np.unique(classes):
        rows = random.permutation(np.flatnonzero(classes == value))
        cuts = np.rint(np.cumsum(random.dirichlet(np.full(workers, float(alpha))))[:-1] * len(rows)).astype(int)
        for part, some in zip(parts, np.split(rows, cuts), strict=True):
            part.extend(some.tolist())
    for part in parts:
        if not part:
            part.append(max(parts, key=len).pop())
    return [np.sort(np.array(part, np.int64)) for part in parts]


def label_split(labels: ArrayLike, workers: int) -> list[RowNumbers]:
    """Sort by label and cut into equal parts, so that each worker sees as few labels as possible.

    Args:
        labels: The label of each row.
        workers: The number of workers.

    >>> label_split([1, 0, 1, 0], 2)
    [array([1, 3]), array([0, 2])]

    See docs/users/federated.md for training on data that differ between workers.
    """
    classes = _one_dimensional(labels)
    _enough(len(classes), workers)
    return list(np.array_split(np.argsort(classes, kind="stable"), workers))


def split_rows(
    split: str | Sequence[ArrayLike], n_rows: int, workers: int, labels: Any, alpha: float, seed: int
) -> list[RowNumbers] | None:
    """Return the parts that ``split`` names, or None if all workers share all rows."""
    count("workers", workers)
    if not isinstance(split, str):
        return _given(split, n_rows, workers)
    if split == "shared":
        return None
    if split == "iid":
        return iid_split(n_rows, workers, seed)
    if split == "label" and labels is not None:
        return label_split(labels, workers)
    if split == "dirichlet" and labels is not None:
        return dirichlet_split(labels, workers, alpha, seed)
    names = "'shared', 'iid'" + (", 'label', 'dirichlet'" if labels is not None else "")
    raise BadParameter("split", split, "is unknown", f"pass {names} or one list of rows per worker")


def _given(split: Sequence[ArrayLike], n_rows: int, workers: int) -> list[RowNumbers]:
    parts = [np.atleast_1d(np.asarray(part)) for part in split]
    if len(parts) != workers:
        raise BadParameter("split", f"{len(parts)} parts", f"is not one per worker ({workers})", "give one list each")
    if not all(part.size and part.dtype.kind in "iu" for part in parts):
        raise BadParameter("split", split, "has a part without rows", "give each worker at least one row number")
    if not np.array_equal(np.sort(np.concatenate(parts)), np.arange(n_rows)):
        raise BadParameter("split", split, "uses a row twice or not at all", f"use each of 0..{n_rows - 1} once")
    return [part.astype(np.int64) for part in parts]


def _one_dimensional(labels: ArrayLike) -> NDArray[Any]:
    classes = np.asarray(labels)
    if classes.ndim != 1:
        raise BadParameter("labels", f"shape {classes.shape}", "is not a list of labels", "pass one label per row")
    return classes


def _enough(n_rows: int, workers: int) -> None:
    count("workers", workers)
    count("n_rows", n_rows)
    if n_rows < workers:
        raise BadParameter("workers", workers, f"is more than the {n_rows} rows", f"pass workers <= {n_rows}")
