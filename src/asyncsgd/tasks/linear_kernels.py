"""Least squares and logistic regression for lanes. Arguments are addresses (`asyncsgd.compiled.lanes.pointer`)."""

from __future__ import annotations

from typing import Any

from asyncsgd.compiled.elementary import sigmoid, softplus
from asyncsgd.compiled.jit import njit
from asyncsgd.compiled.lanes import at, first, load, pointer, put, splat, store
from asyncsgd.compiled.products import V8, add_scaled, combine
from asyncsgd.compiled.random import below, output
from asyncsgd.tasks.layout import BATCH, BLOCK, HEADER, LOGISTIC, MINIMUM, RIDGE


@njit(cache=True, nogil=True, error_model="numpy")
def margins(params: Any, b: Any, rows: Any, d: Any, start: Any, some: Any, x: Any, out: Any, width: Any) -> None:
    """z_r = offset_r + a_r·x for ``some`` rows from ``start``."""
    w = len(width)
    offsets = pointer(params, HEADER + rows + start)
    if w == 1:
        combine(pointer(b, start), rows, d, some, x, offsets, out, width)
    else:
        for r in range(some):
            store(out, r * w, splat(at(offsets, r), width))
        combine(pointer(b, start), rows, d, some, x, out, out, width)


@njit(cache=True, nogil=True, error_model="numpy")
def gradient(
    kind: Any,
    params: Any,
    a: Any,
    b: Any,
    rows: Any,
    d: Any,
    lo: Any,
    hi: Any,
    weighted: Any,
    x: Any,
    out: Any,
    scratch: Any,
    width: Any,
) -> None:
    """Σ_r weight_r φ(z_r) a_r + ridge·x over rows lo..hi, with the rows' weights in f or all the same."""
    w = len(width)
    for i in range(d):
        store(out, i * w, at(params, RIDGE) * load(x, i * w, width))
    for start in range(lo, hi, BLOCK):
        some = min(BLOCK, hi - start)
        margins(params, b, rows, d, start, some, x, scratch, width)
        if kind == LOGISTIC:
            if w == 1:  # eight rows at a time; scratch is long enough for what is computed beyond the last
                for r in range(0, some, 8):
                    store(scratch, r, sigmoid(load(scratch, r, V8)))
            else:
                for r in range(some):
                    store(scratch, r * w, sigmoid(load(scratch, r * w, width)))
        for r in range(some):
            weight = at(params, HEADER + start + r) if weighted else 1.0 / (hi - lo)
            store(scratch, r * w, weight * load(scratch, r * w, width))
        combine(pointer(a, start * d), d, some, d, scratch, out, out, width)


@njit(cache=True, nogil=True, error_model="numpy")
def sampled_gradient(
    kind: Any,
    params: Any,
    a: Any,
    rows: Any,
    d: Any,
    lo: Any,
    hi: Any,
    x: Any,
    seeds: Any,
    out: Any,
    scratch: Any,
    width: Any,
) -> None:
    """The mean over a mini-batch, drawn with replacement by each lane from rows lo..hi."""
    w = len(width)
    for i in range(d):
        store(out, i * w, at(params, RIDGE) * load(x, i * w, width))
    start, batch = pointer(scratch, d * w), at(params, BATCH)
    for s in range(int(batch)):
        features = scratch
        for lane in range(w):
            _, row = below(output(at(seeds, lane), s), hi - lo)
            row += lo
            put(start, lane, at(params, HEADER + rows + row))
            if w == 1:
                features = pointer(a, row * d)
            else:
                for j in range(d):
                    put(scratch, j * w + lane, at(a, row * d + j))
        z = load(start, 0, width)
        for j in range(d):
            z = z + load(features, j * w, width) * load(x, j * w, width)
        if kind == LOGISTIC:
            z = sigmoid(z)
        z = z / batch
        if w == 1:
            add_scaled(first(z), features, d, out)
        else:
            for j in range(d):
                store(out, j * w, load(out, j * w, width) + load(features, j * w, width) * z)


@njit(cache=True, nogil=True, error_model="numpy")
def loss(
    kind: Any, params: Any, a: Any, b: Any, rows: Any, d: Any, x: Any, result: Any, scratch: Any, width: Any
) -> None:
    """Σ_r weight_r ℓ(z_r) + ridge/2 ‖x‖² - f*."""
    w = len(width)
    total = splat(0.0, width)
    for i in range(d):
        value = load(x, i * w, width)
        total = total + value * value
    total = total * (0.5 * at(params, RIDGE))
    for start in range(0, rows, BLOCK):
        some = min(BLOCK, rows - start)
        margins(params, b, rows, d, start, some, x, scratch, width)
        for r in range(some):
            z = load(scratch, r * w, width)
            value = softplus(z) if kind == LOGISTIC else 0.5 * z * z
            total = total + at(params, HEADER + start + r) * value
    store(result, 0, total - at(params, MINIMUM))
