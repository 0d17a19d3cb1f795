"""½xᵀHx - b·x for lanes. Arguments are addresses (`asyncsgd.compiled.lanes.pointer`)."""

from __future__ import annotations

from typing import Any

from asyncsgd.compiled.elementary import normal_pair
from asyncsgd.compiled.jit import njit
from asyncsgd.compiled.lanes import at, load, pointer, splat, store
from asyncsgd.compiled.products import combine


@njit(cache=True, nogil=True, error_model="numpy")
def gradient(hessian: Any, offset: Any, d: Any, x: Any, out: Any, width: Any) -> None:
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
    """½(x - x*)ᵀH(x - x*) = f(x) - f*, which loses no digits near x*."""
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
