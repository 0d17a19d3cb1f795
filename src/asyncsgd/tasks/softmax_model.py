"""Multinomial logistic regression, and scikit-learn's digits."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from asyncsgd.core.errors import BadParameter, MissingLibrary
from asyncsgd.core.random import derive
from asyncsgd.core.validate import count, fraction
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks.base import NO_FLOATS, SOFTMAX, BuiltIn, Floats, Integers, scratch_rows
from asyncsgd.tasks.data import Rows, Split, column, constants, newton, share_out, table

MOST = 1500
"""Newton's method is used up to this dimension: its Hessian is dense."""


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Softmax(BuiltIn):
    """f_i(X) = mean over the worker's rows of -log softmax(Xᵀa)[label], plus ridge/2 ‖X‖²; f is their mean.

    x holds the weight of feature j for class k at j·classes + k. L = λ_max(AᵀA)/(2m) + ridge of the worst worker is
    exact as an upper bound (Böhning 1992). x* and f* come from Newton's method and are `exact` since
    ‖∇f(x*)‖ ≤ 1e-12 times the longest row; they are unknown without ridge, and beyond 1,500 weights. σ² and ζ_i² are
    those at x* (at x_0 without x*), by enumerating the rows, and `exact` only where they are 0 everywhere.

    See docs/users/researcher.md for simulations on such a task.
    """

    features: Floats
    """Sorted by worker, see ``rows``; the last column is 1 with a bias."""
    labels: Integers
    """0..classes-1."""
    classes: int
    rows: Rows
    test_features: Floats
    test_labels: Integers

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return the usual metrics and "accuracy" on the held-out rows, or on the training rows if there are none."""
        scores = self.test_features @ np.asarray(x).reshape(-1, self.classes)
        return {**super().evaluate(x), "accuracy": float(np.mean(scores.argmax(axis=1) == self.test_labels))}


def softmax(
    features: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    classes: int | None = None,
    workers: int = 1,
    batch: int | None = None,
    ridge: float = 0.0,
    split: Split = "shared",
    alpha: float = 0.3,
    seed: int = 0,
    bias: bool = True,
    test: tuple[ArrayLike, ArrayLike] | None = None,
    m: int = 100,
    dim: int = 20,
) -> Softmax:
    """Make a multinomial logistic regression task from given rows, or from random ones with random labels.

    Args:
        features: One row per example.
        labels: One per row: integers from 0 to classes - 1.
        classes: The number of classes; by default the largest label plus one.
        workers: The number of workers.
        batch: Size of the mini-batches, drawn with replacement from the worker's rows; None: all its rows.
        ridge: Weight of ½‖x‖².
        split: "shared" (every worker holds all rows), "iid", "label", "dirichlet", or one list of rows per worker.
        alpha: For "dirichlet", see `asyncsgd.tasks.dirichlet_split`.
        seed: Seed for the split.
        bias: Whether to add a column of ones.
        test: (features, labels) on which "accuracy" is measured, instead of the training rows.
        m: Number of random rows, if no features are given.
        dim: Number of their features.

    >>> softmax([[1.0, 0.0], [0.0, 1.0]], [0, 1]).workers
    1

    See docs/users/researcher.md for simulations, sweeps and comparisons on such a task.
    """
    if features is None or labels is None:
        if features is not labels:
            missing = "features" if features is None else "labels"
            raise BadParameter(missing, None, "is missing", "give features and labels, or neither")
        count("m", m)
        count("dim", dim)
        random = np.random.Generator(np.random.Philox(key=derive(seed)))
        classes = 3 if classes is None else classes
        count("classes", classes)
        features, labels = random.standard_normal((m, dim)), random.integers(0, classes, m)
    a, wanted = table("features", features), _labels("labels", labels, features)
    classes = int(wanted.max()) + 1 if classes is None else classes
    count("classes", classes)
    if classes < 2:
        raise BadParameter("classes", classes, "is too small", "pass at least two")
    held, truth = (a, wanted) if test is None else (table("test", test[0]), _labels("test", test[1], test[0]))
    for name, values in (("labels", wanted), ("test", truth)):
        if values.max() >= classes:
            raise BadParameter(name, int(values.max()), f"is not below classes = {classes}", "number classes from 0")
    if held.shape[1] != a.shape[1]:
        raise BadParameter("test", f"{held.shape[1]} features", f"are not {a.shape[1]}", "use the same features")
    if bias:
        a, held = (np.column_stack([values, np.ones(len(values))]) for values in (a, held))
    rows = share_out(len(a), workers, split, batch=batch, ridge=ridge, labels=wanted, alpha=alpha, seed=seed)
    return _build(np.ascontiguousarray(a[rows.order]), wanted[rows.order], classes, rows, held, truth)


def digits(
    workers: int = 1,
    split: Split = "iid",
    alpha: float = 0.3,
    batch: int | None = 32,
    ridge: float = 1e-3,
    seed: int = 0,
    model: str = "softmax",
    test_fraction: float = 0.2,
) -> Softmax:
    """Make softmax regression on scikit-learn's 1,797 handwritten digits, pixels scaled to 0..1, a part held out.

    Args:
        workers: The number of workers.
        split: "shared" (every worker holds all rows), "iid", "label", "dirichlet", or one list of rows per worker.
        alpha: For "dirichlet", see `asyncsgd.tasks.dirichlet_split`.
        batch: Size of the mini-batches, drawn with replacement from the worker's rows; None: all its rows.
        ridge: Weight of ½‖x‖².
        seed: Seed for the split and for the held-out rows.
        model: Only "softmax" so far.
        test_fraction: Share of the rows on which "accuracy" is measured.

    >>> task = digits(workers=4, split="dirichlet")
    >>> task.workers, sorted(task.evaluate(task.initial()))
    (4, ['accuracy', 'distance', 'gradient_norm', 'loss'])

    See docs/users/researcher.md for simulations, sweeps and comparisons on such a task.
    """
    if model != "softmax":
        raise BadParameter("model", model, "is unknown", "pass 'softmax'")
    fraction("test_fraction", test_fraction)
    try:
        load_digits = import_module("sklearn.datasets").load_digits
    except ModuleNotFoundError as error:
        raise MissingLibrary("asgd.tasks.digits", "scikit-learn", "scikit-learn") from error
    pixels, truth = load_digits(return_X_y=True)
    shuffled = np.random.Generator(np.random.Philox(key=derive(seed, 1))).permutation(len(truth))
    held, kept = np.split(shuffled, [round(test_fraction * len(truth))])
    return softmax(
        pixels[kept] / 16.0,
        truth[kept],
        classes=10,
        workers=workers,
        batch=batch,
        ridge=ridge,
        split=split,
        alpha=alpha,
        seed=seed,
        test=(pixels[held] / 16.0, truth[held]) if len(held) else None,
    )


def _labels(name: str, labels: ArrayLike, features: ArrayLike) -> Integers:
    values = column(name, labels, len(np.asarray(features)))
    if values.dtype.kind not in "iub" or values.min() < 0:
        raise BadParameter(name, values.dtype.name, "are not classes", "number the classes 0, 1, 2, ... as integers")
    return values.astype(np.int64)


def _build(
    a: Floats, labels: Integers, classes: int, rows: Rows, test_features: Floats, test_labels: Integers
) -> Softmax:
    m, d = a.shape
    dimension = d * classes
    truth = np.eye(classes)[labels]

    def chances(x: Floats, part: slice) -> Floats:
        scores = a[part] @ x.reshape(d, classes)
        e = np.exp(scores - scores.max(axis=1, keepdims=True))
        p: Floats = e / e.sum(axis=1, keepdims=True)
        return p

    def loss(x: Floats) -> float:
        scores = a @ x.reshape(d, classes)
        top = scores.max(axis=1)
        each = np.log(np.exp(scores - top[:, None]).sum(axis=1)) + top - scores[np.arange(m), labels]
        return float(rows.weights @ each + 0.5 * rows.ridge * x @ x)

    def gradient(x: Floats) -> Floats:
        residual = rows.weights[:, None] * (chances(x, slice(0, m)) - truth)
        return np.asarray((a.T @ residual).ravel() + rows.ridge * x)

    def hessian(x: Floats) -> Floats:
        p = chances(x, slice(0, m))
        blocks = np.empty((d, classes, d, classes))
        for k in range(classes):
            for other in range(k, classes):
                curve = rows.weights * p[:, k] * ((k == other) - p[:, other])
                blocks[:, k, :, other] = blocks[:, other, :, k] = (a.T * curve) @ a
        return blocks.reshape(dimension, dimension) + rows.ridge * np.eye(dimension)

    def moments(x: Floats, part: slice) -> tuple[Floats, float]:
        residual = chances(x, part) - truth[part]
        squares = (a[part] ** 2).sum(axis=1) * (residual**2).sum(axis=1)
        return (a[part].T @ residual).ravel() / len(residual), float(squares.mean())

    best = None
    if rows.ridge and dimension <= MOST:
        best = newton(gradient, hessian, loss, dimension, float(np.linalg.norm(a, axis=1).max()), True)
    minimum = None if best is None else loss(best)
    known = constants(
        rows,
        lambda part: float(np.linalg.norm(a[part], 2) ** 2 / (2 * (part.stop - part.start))),
        moments,
        best,
        minimum,
        dimension,
    )
    params = np.concatenate([[rows.ridge, rows.batch, minimum or 0.0, float(classes)], rows.weights])
    return Softmax(
        **known,
        lowered=(SOFTMAX, params, a, NO_FLOATS, labels, rows.bounds),
        scratch_rows=scratch_rows(SOFTMAX, d, classes),
        features=a,
        labels=labels,
        classes=classes,
        rows=rows,
        test_features=test_features,
        test_labels=test_labels,
    )
