"""Compiled gradients and losses of the built-in tasks, for several runs at once.

``data`` is ``task.lowered``: ``(kind, params, A, B, labels, bounds)`` with the same types for every task. Vectors have
the shape (d, W), the lane last; ``width`` is a tuple of W zeros, so that W is known when compiling. Every lane rounds
like a single run: all sums run in the order of their index. ``x``, ``out`` and ``scratch`` may be arrays or addresses
(`asyncsgd.compiled.lanes.pointer`), which are cheaper to pass.
"""

from __future__ import annotations

from typing import Any

from asyncsgd.compiled.elementary import exp, log, normal_pair, sigmoid, softplus
from asyncsgd.compiled.jit import njit
from asyncsgd.compiled.lanes import at, extent, first, load, member, nowhere, pointer, put, splat, sqrt, store, where
from asyncsgd.compiled.random import below, output
from asyncsgd.compiled.vectors import V8, add_scaled, combine
from asyncsgd.tasks.base import BATCH, BLOCK, CLASSES, HEADER, LOGISTIC, MINIMUM, QUADRATIC, RIDGE, SOFTMAX

# ½xᵀHx - b·x for lanes. Arguments are addresses (`asyncsgd.compiled.lanes.pointer`).


@njit(cache=True, nogil=True, error_model="numpy")
def quadratic_gradient(hessian: Any, offset: Any, d: Any, x: Any, out: Any, width: Any) -> None:
    """Hx - b; ``offset`` holds -b."""
    w = len(width)
    if w == 1:
        combine(hessian, d, d, d, x, offset, out, width)
    else:
        for i in range(d):
            store(out, i * w, splat(at(offset, i), width))
        combine(hessian, d, d, d, x, out, out, width)


@njit(cache=True, nogil=True, error_model="numpy")
def add_noise(additive: Any, multiplicative: Any, d: Any, seeds: Any, out: Any, width: Any) -> None:
    """g·(1 + multiplicative·z) + additive·ξ with standard normal z (a number) and ξ (a vector)."""
    w = len(width)
    state = load(seeds, 0, width)
    factor, _ = normal_pair(state, (d + 1) // 2)
    factor = 1.0 + multiplicative * factor
    for i in range(0, d, 2):
        first, second = normal_pair(state, i // 2)
        store(out, i * w, load(out, i * w, width) * factor + additive * first)
        if i + 1 < d:
            store(out, i * w + w, load(out, i * w + w, width) * factor + additive * second)


@njit(cache=True, nogil=True, error_model="numpy")
def excess(hessian: Any, optimum: Any, d: Any, x: Any, result: Any, scratch: Any, width: Any) -> None:
    """Compute ½(x - x*)ᵀH(x - x*) = f(x) - f*, which loses no digits near x*."""
    w = len(width)
    image = pointer(scratch, d * w)
    for i in range(d):
        store(scratch, i * w, load(x, i * w, width) - at(optimum, i))
        store(image, i * w, splat(0.0, width))
    combine(hessian, d, d, d, scratch, image, image, width)
    total = splat(0.0, width)
    for i in range(d):
        total = total + load(scratch, i * w, width) * load(image, i * w, width)
    store(result, 0, 0.5 * total)


# Least squares and logistic regression for lanes. Arguments are addresses (`asyncsgd.compiled.lanes.pointer`).


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
def linear_gradient(
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
def linear_sampled_gradient(
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
def linear_loss(
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


# Multinomial logistic regression for lanes. Arguments are addresses (`asyncsgd.compiled.lanes.pointer`).
# x holds the weight of feature j for class k at j·classes + k.


@njit(cache=True, nogil=True, error_model="numpy")
def exponentials(features: Any, d: Any, classes: Any, x: Any, z: Any, width: Any) -> Any:
    """z_k = exp(score_k - max score); (the largest score, Σ z_k)."""
    w = len(width)
    for k in range(classes):
        store(z, k * w, splat(0.0, width))
    if w == 1:
        combine(x, classes, d, classes, features, z, z, width)
    else:
        for k in range(classes):
            score = load(z, k * w, width)
            for j in range(d):
                score = score + load(features, j * w, width) * load(x, (j * classes + k) * w, width)
            store(z, k * w, score)
    largest = load(z, 0, width)
    for k in range(1, classes):
        score = load(z, k * w, width)
        largest = where(score > largest, score, largest)
    if w == 1:  # eight classes at a time; scratch is long enough for what is computed beyond the last
        for k in range(0, classes, 8):
            store(z, k, exp(load(z, k, V8) - first(largest)))
    else:
        for k in range(classes):
            store(z, k * w, exp(load(z, k * w, width) - largest))
    total = splat(0.0, width)
    for k in range(classes):
        total = total + load(z, k * w, width)
    return largest, total


@njit(cache=True, nogil=True, error_model="numpy")
def softmax_gradient(
    params: Any,
    a: Any,
    labels: Any,
    d: Any,
    lo: Any,
    hi: Any,
    sample: Any,
    weighted: Any,
    x: Any,
    seeds: Any,
    out: Any,
    scratch: Any,
    width: Any,
) -> None:
    """Σ_r weight_r (softmax(scores_r) - label_r) a_rᵀ + ridge·x: over rows lo..hi, or a mini-batch of each lane."""
    w = len(width)
    classes = int(at(params, CLASSES))
    for i in range(d * classes):
        store(out, i * w, at(params, RIDGE) * load(x, i * w, width))
    classed, z = pointer(scratch, d * w), pointer(scratch, (d + 1) * w)
    repeats = int(at(params, BATCH)) if sample else hi - lo
    weight = 1.0 / repeats
    for s in range(repeats):
        features = scratch
        if sample:
            for lane in range(w):
                _, row = below(output(at(seeds, lane), s), hi - lo)
                put(classed, lane, at(labels, lo + row))
                if w == 1:
                    features = pointer(a, (lo + row) * d)
                else:
                    for j in range(d):
                        put(scratch, j * w + lane, at(a, (lo + row) * d + j))
        else:
            store(classed, 0, splat(float(at(labels, lo + s)), width))
            for j in range(d):
                store(scratch, j * w, splat(at(a, (lo + s) * d + j), width))
        _, total = exponentials(features, d, classes, x, z, width)
        if weighted:
            weight = at(params, HEADER + s)
        label = load(classed, 0, width)
        for k in range(classes):
            hit = where(label == float(k), splat(1.0, width), splat(0.0, width))
            store(z, k * w, weight * (load(z, k * w, width) / total - hit))
        for j in range(d):
            if w == 1:
                add_scaled(at(features, j), z, classes, pointer(out, j * classes))
            else:
                feature = load(features, j * w, width)
                for k in range(classes):
                    place = (j * classes + k) * w
                    store(out, place, load(out, place, width) + feature * load(z, k * w, width))


@njit(cache=True, nogil=True, error_model="numpy")
def softmax_loss(
    params: Any, a: Any, labels: Any, rows: Any, d: Any, x: Any, result: Any, scratch: Any, width: Any
) -> None:
    """Σ_r weight_r (log Σ_k exp(score_rk) - score of its label) + ridge/2 ‖x‖² - f*."""
    w = len(width)
    classes = int(at(params, CLASSES))
    total = splat(0.0, width)
    for i in range(d * classes):
        value = load(x, i * w, width)
        total = total + value * value
    total = total * (0.5 * at(params, RIDGE))
    z = pointer(scratch, (d + 1) * w)
    for r in range(rows):
        for j in range(d):
            store(scratch, j * w, splat(at(a, r * d + j), width))
        largest, mass = exponentials(scratch, d, classes, x, z, width)
        right = splat(0.0, width)
        for j in range(d):
            right = right + at(a, r * d + j) * load(x, (j * classes + at(labels, r)) * w, width)
        total = total + at(params, HEADER + r) * (log(mass) + largest - right)
    store(result, 0, total - at(params, MINIMUM))


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def gradient(data: Any, x: Any, worker: Any, seeds: Any, out: Any, scratch: Any, width: Any) -> None:
    """Write the stochastic gradient of ``worker`` at x into ``out``; each lane draws from its own seed."""
    kind, rows, d = data[0], extent(data, 2, 0), extent(data, 2, 1)
    params, a, b = member(data, 1), member(data, 2), member(data, 3)
    at_x, result, draws, work = pointer(x, 0), pointer(out, 0), pointer(seeds, 0), pointer(scratch, 0)
    if kind == QUADRATIC:
        quadratic_gradient(a, pointer(b, worker * d), d, at_x, result, width)
        if at(params, 0) != 0.0 or at(params, 1) != 0.0:
            add_noise(at(params, 0), at(params, 1), d, draws, result, width)
    else:
        bounds = member(data, 5)
        lo, hi = at(bounds, 2 * worker), at(bounds, 2 * worker + 1)
        sample = at(params, BATCH) > 0.0
        if kind == SOFTMAX:
            labels = member(data, 4)
            softmax_gradient(params, a, labels, d, lo, hi, sample, False, at_x, draws, result, work, width)
        elif sample:
            linear_sampled_gradient(kind, params, a, rows, d, lo, hi, at_x, draws, result, work, width)
        else:
            linear_gradient(kind, params, a, b, rows, d, lo, hi, False, at_x, result, work, width)


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def full_gradient(data: Any, x: Any, out: Any, scratch: Any, width: Any) -> None:
    """Compute ∇f(x), the mean over all workers, without noise."""
    kind, rows, d = data[0], extent(data, 2, 0), extent(data, 2, 1)
    params, a, b = member(data, 1), member(data, 2), member(data, 3)
    at_x, result, work = pointer(x, 0), pointer(out, 0), pointer(scratch, 0)
    if kind == QUADRATIC:
        quadratic_gradient(a, pointer(b, (extent(data, 3, 0) - 2) * d), d, at_x, result, width)
    elif kind == SOFTMAX:
        labels = member(data, 4)
        softmax_gradient(params, a, labels, d, 0, rows, False, True, at_x, nowhere(), result, work, width)
    else:
        linear_gradient(kind, params, a, b, rows, d, 0, rows, True, at_x, result, work, width)


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def loss(data: Any, x: Any, result: Any, scratch: Any, width: Any) -> None:
    """Compute the "loss" of ``task.evaluate`` per lane: f(x) - f* if f* is known, else f(x)."""
    kind, rows, d = data[0], extent(data, 2, 0), extent(data, 2, 1)
    params, a, b = member(data, 1), member(data, 2), member(data, 3)
    at_x, values, work = pointer(x, 0), pointer(result, 0), pointer(scratch, 0)
    if kind == QUADRATIC:
        excess(a, pointer(b, (extent(data, 3, 0) - 1) * d), d, at_x, values, work, width)
    elif kind == SOFTMAX:
        softmax_loss(params, a, member(data, 4), rows, d, at_x, values, work, width)
    else:
        linear_loss(kind, params, a, b, rows, d, at_x, values, work, width)


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def norm(vectors: Any, dim: Any, result: Any, width: Any) -> None:
    """Compute the Euclidean norm of every lane of ``dim`` coordinates."""
    w = len(width)
    total = splat(0.0, width)
    for i in range(dim):
        value = load(vectors, i * w, width)
        total = total + value * value
    store(result, 0, sqrt(total))


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def distance(vectors: Any, point: Any, dim: Any, result: Any, width: Any) -> None:
    """Compute the distance of every lane from one point of ``dim`` coordinates."""
    w = len(width)
    total = splat(0.0, width)
    for i in range(dim):
        value = load(vectors, i * w, width) - at(point, i)
        total = total + value * value
    store(result, 0, sqrt(total))
