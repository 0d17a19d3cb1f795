"""The passes over long vectors that a server's parts need, as one value that can be exchanged for a faster one.

`Kernels` is written with NumPy, slow and obvious. `asyncsgd.compiled.kernels` has the same passes in compiled code with
several threads, and the same bits; a test compares the two. A server gets its kernels when it is made, so the core
itself needs neither a compiler nor threads. All passes work in blocks, so none of them makes a temporary vector as long
as the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from inspect import signature
from typing import Any, ClassVar, NamedTuple

import numpy as np

from asyncsgd.core import vectors
from asyncsgd.core.layout import Ranges
from asyncsgd.core.vectors import Vector, blocks


class AdamNumbers(NamedTuple):
    """The numbers of one step of AdamW, as Python floats."""

    beta1: float
    beta2: float
    epsilon: float
    correction1: float
    """1 - β1^t, which makes up for a mean that began with 0."""
    correction2: float
    """1 - β2^t."""
    step: float
    keep: float
    """1 - η·(weight decay): the factor of the old model, except where a parameter is excluded."""


class Kernels:
    """The passes with NumPy. One object belongs to one server, because `scratch` is overwritten again and again."""

    never_raises: ClassVar[bool] = False
    """Whether a pass cannot raise once it has begun, whatever np.seterr says."""

    def __init__(self) -> None:
        self._scratch: Vector | None = None

    def scratch(self, like: Vector) -> Vector:
        """Return the one vector for results that live until the next arrival, with any content."""
        if self._scratch is None or self._scratch.shape != like.shape or self._scratch.dtype != like.dtype:
            self._scratch = np.empty_like(like)
        return self._scratch

    def subtract(self, x: Vector, scale: float, g: Vector, out: Vector) -> None:
        """``out = x - scale·g``. Here and below ``out`` may be x."""
        vectors.subtract_scaled(x, scale, g, out)

    def norm(self, g: Vector) -> float:
        """Return the Euclidean norm, see `asyncsgd.core.vectors.norm`."""
        return vectors.norm(g)

    def scale(self, g: Vector, factor: float, out: Vector) -> None:
        """``out = factor·g``. ``out`` may be g."""
        np.multiply(g, float(factor), out=out)

    def average(self, mean: Vector, x: Vector, count: int) -> None:
        """``mean += (x - mean)/count``: the mean of ``count`` vectors, the last of which is x."""
        for part in blocks(len(x)):
            mean[part] += (x[part] - mean[part]) / count

    def momentum(self, x: Vector, d: Vector, m: Vector, step: float, beta: float, nesterov: bool, out: Vector) -> None:
        """``m = β·m + d``, then ``out = x - step·m``, or with ``nesterov`` ``out = x - step·(d + β·m)``."""
        step, beta = float(step), float(beta)
        for part in blocks(len(x)):
            m[part] *= beta
            m[part] += d[part]
            look = d[part] + beta * m[part] if nesterov else m[part]
            np.subtract(x[part], step * look, out=out[part])

    def adamw(
        self,
        x: Vector,
        d: Vector,
        memory: tuple[Vector, Vector, Vector | None],
        numbers: AdamNumbers,
        excluded: Ranges,
        out: Vector,
    ) -> None:
        """Do one step of AdamW (Loshchilov and Hutter 2019): the formula of `asyncsgd.core.optimizers.Adam`.

        ``memory`` is (m, v, the largest v so far or None). ``excluded`` are the ranges of x without weight decay.
        """
        first, second, largest = memory
        beta1, beta2, epsilon, correction1, correction2, step, keep = numbers
        for part, decays in pieces(len(x), excluded):
            g, m, v = d[part], first[part], second[part]
            m *= beta1
            m += (1 - beta1) * g
            v *= beta2
            v += (1 - beta2) * g * g
            if largest is not None:
                v = np.maximum(largest[part], v, out=largest[part])
            move = (m / correction1) / (np.sqrt(v / correction2) + epsilon)
            np.subtract(x[part] * (keep if decays else 1.0), step * move, out=out[part])


def pieces(n: int, excluded: Ranges) -> Iterator[tuple[slice, bool]]:
    """Yield blocks that together cover 0..n, each with whether it lies outside all excluded ranges.

    >>> list(pieces(6, ((2, 3),)))
    [(slice(0, 2, None), True), (slice(2, 3, None), False), (slice(3, 6, None), True)]
    """
    done = 0
    for first, last in (*excluded, (n, n)):
        for start, stop, decays in ((done, first, True), (first, last, False)):
            for part in blocks(stop - start):
                yield slice(start + part.start, start + part.stop), decays
        done = last


def with_kernels(function: Callable[..., Any], kernels: Kernels) -> Callable[..., Any]:
    """Return a part's function with these kernels as its argument ``kernels``, if it has one.

    >>> with_kernels(lambda x, kernels=None: kernels.norm(x), Kernels())(np.array([3.0, 4.0]))
    5.0
    """
    return partial(function, kernels=kernels) if "kernels" in signature(function).parameters else function
