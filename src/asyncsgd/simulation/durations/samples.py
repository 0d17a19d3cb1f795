"""Durations drawn from what was measured: each job takes one of its worker's samples, uniformly at random."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.format import ends
from asyncsgd.simulation.durations.base import MEASURED, Durations, build
from asyncsgd.simulation.durations.columns import Floats, Ints, numbers, seconds


def measured(samples: Mapping[Any, Sequence[float]] | Sequence[Sequence[float]]) -> Durations:
    """A job of worker i takes one of the seconds in ``samples[i]``, each equally likely.

    A list has one sequence per worker (their lengths may differ), an array one row per worker. A dict's integer keys
    are sorted, other keys taken in their order, and the workers then numbered 0, 1, 2, ...

    >>> measured({7: [1.0, 3.0], 2: [5.0]}).means
    array([5., 2.])
    """
    fix = "pass one sequence of seconds per worker, such as [[1.0, 1.2], [3.1]]"
    if isinstance(samples, np.ndarray) and samples.ndim == 2 and samples.size:
        rows, width = samples.shape
        values = seconds("samples", samples.ravel())
        return from_groups(values, np.arange(rows + 1, dtype=np.int64) * width)
    if isinstance(samples, Mapping):
        ordered = {key: samples[key] for key in in_order(list(samples))}
        names, parts = [f"samples[{key!r}]" for key in ordered], list(ordered.values())
    elif isinstance(samples, list | tuple):
        names, parts = [f"samples[{place}]" for place in range(len(samples))], list(samples)
    else:
        raise BadParameter("samples", ends(samples), "is neither a dict nor a list", fix)
    if not parts:
        raise BadParameter("samples", samples, "names no worker", fix)
    columns = []
    for name, part in zip(names, parts, strict=True):
        column = numbers(name, part)
        if not column.ndim or not column.size:
            raise BadParameter(name, part, "holds no sample", fix)
        columns.append(column)
    counts = np.fromiter(map(len, columns), np.int64, len(columns))
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    values = np.concatenate(columns)
    good = np.isfinite(values) & (values > 0)
    if not good.all():  # one test for all, because workers may be many
        place = int(np.argmin(good))
        owner = int(np.searchsorted(bounds, place, side="right")) - 1
        seconds(names[owner], columns[owner])
    return from_groups(values, bounds)


def from_groups(values: Floats, bounds: Ints) -> Durations:
    """Worker w owns ``values[bounds[w]:bounds[w + 1]]``, all checked before."""
    return build(MEASURED, samples=values, bounds=bounds)


def from_pairs(workers: Any, values: Floats) -> Durations:
    """Group rows (worker, seconds) by worker, numbered as in ``measured``."""
    keys, first, which, counts = np.unique(workers, return_index=True, return_inverse=True, return_counts=True)
    if keys.dtype.kind not in "iu":  # not numbers: in order of appearance
        order = np.argsort(first)
        place = np.empty(len(order), np.int64)
        place[order] = np.arange(len(order))
        which, counts = place[which], counts[order]
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(counts)])
    return from_groups(values[np.argsort(which, kind="stable")], bounds)


def in_order(keys: list[Any]) -> list[Any]:
    """Sort keys if they are integers, and else leave them as they are."""
    return sorted(keys) if all(isinstance(key, int | np.integer) for key in keys) else keys
