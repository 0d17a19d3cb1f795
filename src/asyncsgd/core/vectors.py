"""The few vector operations of the hot path: one pass over the model, no large temporary, fixed rounding.

Every operation rounds in the order its docstring shows, whatever the machine: no fused multiply-add, no
library-dependent summation. That is what lets a replay, a compiled lane and a naive loop agree bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextvars import copy_context
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Vector: TypeAlias = NDArray[np.floating[Any]]

BLOCK = 131_072
"""Elements per block: small enough that the scaled block stays in the cache, large enough for few calls of NumPy."""

LANES = 1024

_quiet = copy_context()  # an overflow is silent in this context; entering it takes a tenth of the time of np.errstate
_quiet.run(np.seterr, over="ignore", invalid="ignore")


def blocks(n: int) -> Iterator[slice]:
    """Yield slices of at most `BLOCK` elements that together cover 0..n."""
    for start in range(0, n, BLOCK):
        yield slice(start, min(start + BLOCK, n))


def subtract_scaled(x: Vector, scale: float, g: Vector, out: Vector) -> None:
    """Compute ``out[i] = x[i] - scale * g[i]``, reading x and g once and writing out once. ``out`` may be x."""
    scale = float(scale)  # a NumPy float64 would be multiplied in float64 where g is float32
    n = x.shape[0]
    scratch = np.empty(min(n, BLOCK), dtype=x.dtype)
    if n <= BLOCK:
        np.multiply(g, scale, out=scratch)
        np.subtract(x, scratch, out=out)
        return
    for part in blocks(n):
        block = scratch[: part.stop - part.start]
        np.multiply(g[part], scale, out=block)
        np.subtract(x[part], block, out=out[part])


def is_finite(g: Vector) -> bool:
    """Return whether all elements are finite. Long vectors take one dot product, and a second pass if it overflows."""
    if g.shape[0] > 4096:
        try:
            square = _quiet.run(np.dot, g, g)
        except RuntimeError:  # another thread uses the context at this moment
            with np.errstate(over="ignore", invalid="ignore"):
                square = np.dot(g, g)
        if math.isfinite(square):
            return True
    return bool(np.isfinite(g).all())


def norm(g: Vector) -> float:
    """Return the Euclidean norm, summed in float64 in an order that no library or machine changes.

    Element i belongs to lane i mod 1024; a lane adds its squares one after the other; then the second half of the lanes
    is added to the first, repeatedly. It costs about as much as ``np.dot`` on large vectors and gives the same bits
    everywhere. Where the squares overflow, g is divided by its largest element first.

    >>> norm(np.array([3.0, 4.0]))
    5.0
    """
    with np.errstate(over="ignore"):
        length = math.sqrt(_sum_of_squares(g))
    if math.isinf(length):
        largest = float(np.abs(g).max())
        if math.isfinite(largest):
            return largest * math.sqrt(_sum_of_squares(g / largest))
    return length


def _sum_of_squares(g: Vector) -> float:
    lanes = np.zeros(min(LANES, 1 << max(g.shape[0] - 1, 0).bit_length()))  # lanes beyond g would stay 0
    whole = g.shape[0] - g.shape[0] % LANES
    block = 16 * LANES
    for start in range(0, whole, block):
        stop = min(start + block, whole)
        rows = g[start:stop].reshape(-1, LANES).astype(np.float64)
        np.multiply(rows, rows, out=rows)
        for row in rows:
            lanes += row
    rest = g[whole:].astype(np.float64)
    lanes[: rest.shape[0]] += rest * rest
    while len(lanes) > 1:
        half = len(lanes) // 2
        lanes = lanes[:half] + lanes[half:]
    return float(lanes[0])
