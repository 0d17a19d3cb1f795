"""Who gets which rows. Every row goes to exactly one worker, and nobody is left without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncsgd.core.check import count, integer, nearest, positive
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive

Rows = NDArray[np.int64]
KINDS = ("iid", "dirichlet", "label")


@dataclass(frozen=True, eq=False)
class DataSplit:
    """How the rows of one dataset are shared out among workers; `split` makes and checks it."""

    kind: str | Sequence[ArrayLike]
    workers: int
    alpha: float = 0.3
    seed: int = 0

    @property
    def by_label(self) -> bool:
        """Whether the labels of the rows decide."""
        return isinstance(self.kind, str) and self.kind != "iid"

    def parts(self, n_rows: int, labels: Any = None) -> list[Rows]:
        """Return the row numbers of every worker; ``labels`` where `by_label`."""
        parts = split_rows(self.kind, n_rows, self.workers, labels, self.alpha, self.seed)
        assert parts is not None
        return parts


def split(
    kind: str | Sequence[ArrayLike], *, workers: int | None = None, alpha: float = 0.3, seed: int = 0
) -> DataSplit:
    """Say how one dataset is split among workers: every row goes to exactly one, and each worker gets at least one.

    Args:
        kind: "iid": at random, in equal parts. "dirichlet": each class in proportions drawn from Dirichlet(α). "label":
            sorted by label, in equal parts. Or one list of row numbers per worker.
        workers: Among how many workers; for lists of row numbers, as many as there are lists.
        alpha: α of "dirichlet": the smaller, the less alike the workers' data.
        seed: Seed for the random choices of the split.

    >>> split("dirichlet", workers=4, alpha=0.1)
    DataSplit(kind='dirichlet', workers=4, alpha=0.1, seed=0)
    >>> split([[0, 2], [1]]).workers
    2
    """
    if isinstance(kind, str):
        if kind not in KINDS:
            raise BadParameter("kind", kind, "is not a split", nearest(kind, KINDS))
        if workers is None:
            raise BadParameter("workers", None, f"is missing to split the data ({kind!r})", "say among how many")
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


def iid_split(n_rows: int, workers: int, seed: int = 0) -> list[Rows]:
    """At random, in parts that differ by at most one row.

    >>> [len(part) for part in iid_split(10, 3)]
    [4, 3, 3]
    """
    _enough(n_rows, workers)
    shuffled = np.random.Generator(np.random.Philox(key=derive(seed))).permutation(n_rows)
    return [np.sort(part) for part in np.array_split(shuffled, workers)]


def dirichlet_split(labels: ArrayLike, workers: int, alpha: float = 0.3, seed: int = 0) -> list[Rows]:
    """Each class is shared out in proportions drawn from Dirichlet(α): the smaller α, the less alike the workers.

    A worker that would end up with nothing takes one row from whoever has the most. Hsu, Qi and Brown,
    *Measuring the effects of non-identical data distribution*, 2019.
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


def label_split(labels: ArrayLike, workers: int) -> list[Rows]:
    """Sorted by label and cut into equal parts, so that each worker sees as few labels as possible.

    >>> label_split([1, 0, 1, 0], 2)
    [array([1, 3]), array([0, 2])]
    """
    classes = _one_dimensional(labels)
    _enough(len(classes), workers)
    return list(np.array_split(np.argsort(classes, kind="stable"), workers))


def split_rows(
    split: str | Sequence[ArrayLike], n_rows: int, workers: int, labels: Any, alpha: float, seed: int
) -> list[Rows] | None:
    """The parts that ``split`` names, or None if all workers share all rows."""
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


def _given(split: Sequence[ArrayLike], n_rows: int, workers: int) -> list[Rows]:
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
