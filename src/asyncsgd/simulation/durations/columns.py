"""Check and broadcast arguments that are one number for all workers or one number per worker."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count
from asyncsgd.format import ends

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


def numbers(name: str, values: Any) -> Floats:
    """Return a scalar or a flat sequence of real numbers as float64; raise for text, booleans and tables."""
    fix = "pass a number, or one number per worker"
    try:
        array = np.asarray(values)
    except (TypeError, ValueError):
        raise BadParameter(name, values, "is not a flat list of numbers", fix) from None
    if array.ndim > 1:
        raise BadParameter(name, f"array of shape {array.shape}", "has too many dimensions", fix)
    if array.size and array.dtype.kind not in "iuf":
        raise BadParameter(name, ends(values), "is not made of numbers", fix)
    return array.astype(np.float64)


def require(name: str, values: Floats, good: NDArray[np.bool_], problem: str, fix: str) -> None:
    """Raise for the first value that is not good, and name it."""
    if not good.all():
        first = int(np.argmin(good))
        label = f"{name}[{first}]" if values.ndim else name
        raise BadParameter(label, float(values.flat[first]), problem, fix)


def seconds(name: str, values: Any) -> Floats:
    """Return the values as seconds; raise unless all are positive and finite."""
    column = numbers(name, values)
    require(name, column, np.isfinite(column) & (column > 0), "is not a duration", "pass positive finite seconds")
    return column


def nonnegative(name: str, values: Any) -> Floats:
    """Return the values; raise unless all are finite and at least 0."""
    column = numbers(name, values)
    good = np.isfinite(column) & (column >= 0)
    require(name, column, good, "is negative or not finite", f"pass finite {name} >= 0")
    return column


def positive(name: str, values: Any) -> Floats:
    """Return the values; raise unless all are finite and above 0."""
    column = numbers(name, values)
    good = np.isfinite(column) & (column > 0)
    require(name, column, good, "is not a positive finite number", f"pass {name} > 0")
    return column


def broadcast(workers: int | None, **columns: Floats) -> list[Floats]:
    """Stretch scalars to one value per worker; ``workers`` is needed if all are scalars, else it must agree."""
    lists = {name: column for name, column in columns.items() if column.ndim}
    if workers is not None:
        count("workers", workers)
    elif not lists:
        name, column = next(iter(columns.items()))
        fix = f"pass one value per worker, or also the number of workers: {name}={float(column)}, workers=8"
        raise BadParameter(name, float(column), "does not give the number of workers", fix)
    for name, column in lists.items():
        if not column.size:
            raise BadParameter(name, [], "has no worker", "pass one value per worker")
        if workers is None:
            workers = len(column)
        elif len(column) != workers:
            first = next(iter(lists))
            other = f"{first} has {workers}" if first != name else f"workers = {workers}"
            fix = "pass one value per worker, or a single number for all"
            raise BadParameter(name, ends(column), f"has {len(column)} values, but {other}", fix)
    assert workers is not None
    return [np.ascontiguousarray(np.broadcast_to(column, workers)) for column in columns.values()]
