"""Gradients and losses of the built-in tasks, compiled, for several runs at once.

``data`` is ``task.lowered``: ``(kind, params, A, B, labels, bounds)`` with the same types for every task. Vectors have
the shape (d, W), the lane last; ``width`` is a tuple of W zeros, so that W is known when compiling. Every lane sees
the roundings of a single run: all sums run in the order of their index. ``x``, ``out`` and ``scratch`` may be arrays
or addresses (`asyncsgd.compiled.lanes.pointer`), which are cheaper to hand over.
"""

from __future__ import annotations

from typing import Any

from asyncsgd.compiled.jit import njit
from asyncsgd.compiled.lanes import at, extent, load, member, nowhere, pointer, splat, sqrt, store
from asyncsgd.tasks import linear_kernels as linear
from asyncsgd.tasks import quadratic_kernels as quadratic
from asyncsgd.tasks import softmax_kernels as softmax
from asyncsgd.tasks.layout import BATCH, QUADRATIC, SOFTMAX


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def gradient(data: Any, x: Any, worker: Any, seeds: Any, out: Any, scratch: Any, width: Any) -> None:
    """The stochastic gradient of ``worker`` at x into ``out``; each lane draws from its own seed."""
    kind, rows, d = data[0], extent(data, 2, 0), extent(data, 2, 1)
    params, a, b = member(data, 1), member(data, 2), member(data, 3)
    at_x, result, draws, work = pointer(x, 0), pointer(out, 0), pointer(seeds, 0), pointer(scratch, 0)
    if kind == QUADRATIC:
        quadratic.gradient(a, pointer(b, worker * d), d, at_x, result, width)
        if at(params, 0) != 0.0 or at(params, 1) != 0.0:
            quadratic.add_noise(at(params, 0), at(params, 1), d, draws, result, width)
    else:
        bounds = member(data, 5)
        lo, hi = at(bounds, 2 * worker), at(bounds, 2 * worker + 1)
        sample = at(params, BATCH) > 0.0
        if kind == SOFTMAX:
            labels = member(data, 4)
            softmax.gradient(params, a, labels, d, lo, hi, sample, False, at_x, draws, result, work, width)
        elif sample:
            linear.sampled_gradient(kind, params, a, rows, d, lo, hi, at_x, draws, result, work, width)
        else:
            linear.gradient(kind, params, a, b, rows, d, lo, hi, False, at_x, result, work, width)


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def full_gradient(data: Any, x: Any, out: Any, scratch: Any, width: Any) -> None:
    """∇f(x), the mean over all workers, without noise."""
    kind, rows, d = data[0], extent(data, 2, 0), extent(data, 2, 1)
    params, a, b = member(data, 1), member(data, 2), member(data, 3)
    at_x, result, work = pointer(x, 0), pointer(out, 0), pointer(scratch, 0)
    if kind == QUADRATIC:
        quadratic.gradient(a, pointer(b, (extent(data, 3, 0) - 2) * d), d, at_x, result, width)
    elif kind == SOFTMAX:
        labels = member(data, 4)
        softmax.gradient(params, a, labels, d, 0, rows, False, True, at_x, nowhere(), result, work, width)
    else:
        linear.gradient(kind, params, a, b, rows, d, 0, rows, True, at_x, result, work, width)


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def loss(data: Any, x: Any, result: Any, scratch: Any, width: Any) -> None:
    """What ``task.evaluate`` calls "loss", per lane: f(x) - f* where f* is known, f(x) otherwise."""
    kind, rows, d = data[0], extent(data, 2, 0), extent(data, 2, 1)
    params, a, b = member(data, 1), member(data, 2), member(data, 3)
    at_x, values, work = pointer(x, 0), pointer(result, 0), pointer(scratch, 0)
    if kind == QUADRATIC:
        quadratic.excess(a, pointer(b, (extent(data, 3, 0) - 1) * d), d, at_x, values, work, width)
    elif kind == SOFTMAX:
        softmax.loss(params, a, member(data, 4), rows, d, at_x, values, work, width)
    else:
        linear.loss(kind, params, a, b, rows, d, at_x, values, work, width)


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def norm(vectors: Any, dim: Any, result: Any, width: Any) -> None:
    """The Euclidean norm of every lane of ``dim`` coordinates."""
    w = len(width)
    total = splat(0.0, width)
    for i in range(dim):
        value = load(vectors, i * w, width)
        total = total + value * value
    store(result, 0, sqrt(total))


@njit(cache=True, nogil=True, error_model="numpy", forceinline=True)
def distance(vectors: Any, point: Any, dim: Any, result: Any, width: Any) -> None:
    """How far every lane is from one point of ``dim`` coordinates."""
    w = len(width)
    total = splat(0.0, width)
    for i in range(dim):
        value = load(vectors, i * w, width) - at(point, i)
        total = total + value * value
    store(result, 0, sqrt(total))
