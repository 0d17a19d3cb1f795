"""Multinomial logistic regression for lanes. Arguments are addresses (`asyncsgd.compiled.lanes.pointer`).

x holds the weight of feature j for class k at j·classes + k.
"""

from __future__ import annotations

from typing import Any

from asyncsgd.compiled.elementary import exp, log
from asyncsgd.compiled.jit import njit
from asyncsgd.compiled.lanes import at, first, load, pointer, put, splat, store, where
from asyncsgd.compiled.products import V8, add_scaled, combine
from asyncsgd.compiled.random import below, output
from asyncsgd.tasks.layout import BATCH, CLASSES, HEADER, MINIMUM, RIDGE


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
def gradient(
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
def loss(params: Any, a: Any, labels: Any, rows: Any, d: Any, x: Any, result: Any, scratch: Any, width: Any) -> None:
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
