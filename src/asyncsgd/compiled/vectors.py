"""The hot operation of `asyncsgd.core.vectors`, compiled: the same bits in one pass over memory."""

from __future__ import annotations

from typing import Any

from asyncsgd.compiled.jit import borrowing, njit
from asyncsgd.compiled.lanes import at, load, put, store

# --------------------------------------------------------------------------------------------------------------
# Matrix times lanes: the one loop in which the linear tasks spend their time.


V16, V8, V4, V2 = (0,) * 16, (0,) * 8, (0,) * 4, (0,) * 2


@njit(cache=True, nogil=True, error_model="numpy")
def combine(matrix: Any, stride: Any, rows: Any, columns: Any, weights: Any, start: Any, out: Any, width: Any) -> None:
    """``out[i] = start[i] + Σ_r matrix[r, i] · weights[r]``, added in the order of r; start may be out.

    All four are addresses; row r of the matrix starts at r · stride. With one lane the registers hold neighbouring
    i, otherwise the lanes; every sum sees the same additions.
    """
    w = len(width)
    if w == 1:
        _one_lane(matrix, stride, rows, columns, weights, start, out)
    else:
        i = 0
        if w <= 8:
            while i + 4 <= columns:
                a, b = load(start, i * w, width), load(start, i * w + w, width)
                c, d = load(start, i * w + 2 * w, width), load(start, i * w + 3 * w, width)
                for r in range(rows):
                    x = load(weights, r * w, width)
                    a = a + at(matrix, r * stride + i) * x
                    b = b + at(matrix, r * stride + i + 1) * x
                    c = c + at(matrix, r * stride + i + 2) * x
                    d = d + at(matrix, r * stride + i + 3) * x
                store(out, i * w, a)
                store(out, i * w + w, b)
                store(out, i * w + 2 * w, c)
                store(out, i * w + 3 * w, d)
                i += 4
        while i + 2 <= columns:
            a, b = load(start, i * w, width), load(start, i * w + w, width)
            for r in range(rows):
                x = load(weights, r * w, width)
                a = a + at(matrix, r * stride + i) * x
                b = b + at(matrix, r * stride + i + 1) * x
            store(out, i * w, a)
            store(out, i * w + w, b)
            i += 2
        if i < columns:
            a = load(start, i * w, width)
            for r in range(rows):
                a = a + at(matrix, r * stride + i) * load(weights, r * w, width)
            store(out, i * w, a)


@njit(cache=True, nogil=True, error_model="numpy")
def _one_lane(matrix: Any, stride: Any, rows: Any, columns: Any, weights: Any, start: Any, out: Any) -> None:
    i = 0
    while i + 16 <= columns:
        acc16 = load(start, i, V16)
        for r in range(rows):
            acc16 = acc16 + load(matrix, r * stride + i, V16) * at(weights, r)
        store(out, i, acc16)
        i += 16
    if i + 8 <= columns:
        acc8 = load(start, i, V8)
        for r in range(rows):
            acc8 = acc8 + load(matrix, r * stride + i, V8) * at(weights, r)
        store(out, i, acc8)
        i += 8
    if i + 4 <= columns:
        acc4 = load(start, i, V4)
        for r in range(rows):
            acc4 = acc4 + load(matrix, r * stride + i, V4) * at(weights, r)
        store(out, i, acc4)
        i += 4
    if i + 2 <= columns:
        acc2 = load(start, i, V2)
        for r in range(rows):
            acc2 = acc2 + load(matrix, r * stride + i, V2) * at(weights, r)
        store(out, i, acc2)
        i += 2
    if i < columns:
        acc = at(start, i)
        for r in range(rows):
            acc = acc + at(matrix, r * stride + i) * at(weights, r)
        put(out, i, acc)


@njit(cache=True, nogil=True, error_model="numpy")
def add_scaled(factor: Any, source: Any, count: Any, out: Any) -> None:
    """``out[i] += factor · source[i]`` for one lane."""
    i = 0
    while i + 8 <= count:
        store(out, i, load(out, i, V8) + load(source, i, V8) * factor)
        i += 8
    while i + 2 <= count:
        store(out, i, load(out, i, V2) + load(source, i, V2) * factor)
        i += 2
    if i < count:
        put(out, i, at(out, i) + at(source, i) * factor)


@borrowing
def subtract_scaled(x: Any, scale: Any, g: Any, out: Any) -> None:
    """``out[i] = x[i] - scale * g[i]``, rounded twice as in NumPy. ``out`` may be x; all three have one dtype."""
    scale = x.dtype.type(scale)
    if x.ctypes.data == out.ctypes.data:  # two arrays, which a compiler can tell apart, so that it uses vectors
        for i in range(len(out)):
            out[i] -= scale * g[i]
    else:
        for i in range(len(out)):
            out[i] = x[i] - scale * g[i]
