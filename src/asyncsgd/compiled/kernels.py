"""The passes of `asyncsgd.core.kernels`, compiled: the same bits, one pass over memory, several threads if it is long.

**Bits.** No function here uses fastmath, so the compiler neither fuses a multiplication with an addition nor changes
the order of operations; each line rounds as the NumPy line does. **Speed.** A compiler makes vector code of a loop over
two or three arrays, but not of one over seven, which may overlap. So each pass works in tiles that stay in the nearest
cache, with several simple loops over each tile; a vector is still read from memory once.

**Threads.** A long vector is cut into fixed blocks. The calling thread and its helpers each take the next block until
none is left, so a helper that the system does not run for a while delays nothing but its own block. Elements do not
depend on each other, and the norm is cut by lanes, so the bits do not depend on the number of threads.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncsgd.compiled.jit import njit
from asyncsgd.compiled.vectors import subtract_scaled
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.kernels import AdamNumbers, Kernels
from asyncsgd.core.layout import Ranges
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import Adam, Momentum
from asyncsgd.core.robust import Krum, Robust
from asyncsgd.core.transforms import Clip
from asyncsgd.core.vectors import LANES, Vector
from asyncsgd.core.vectors import norm as norm_of

BLOCK = 131_072
"""Elements that one thread takes at a time."""
LONG = 4 * BLOCK
"""Vectors of at least this length are worth a second thread."""
MOST_THREADS = 4
"""More threads than these hardly gain anything: together they wait for the memory."""
TILE = 1024
"""Elements of a tile: six vectors of float32 of this length fit into the first-level cache."""

N = TypeVar("N", bound=np.generic)
_compiled: Any = njit(cache=True, nogil=True, _nrt=False, error_model="numpy")


@_compiled
def _scale(g: Any, factor: Any, out: Any) -> None:
    factor = out.dtype.type(factor)
    if g.ctypes.data == out.ctypes.data:
        for i in range(len(out)):
            out[i] *= factor
    else:
        for i in range(len(out)):
            out[i] = g[i] * factor


@_compiled
def _momentum(x: Any, d: Any, m: Any, step: Any, beta: Any, nesterov: Any, out: Any, tile: Any) -> None:
    step, beta = m.dtype.type(step), m.dtype.type(beta)
    for start in range(0, len(m), TILE):
        stop = min(start + TILE, len(m))
        some, mean, before, after = d[start:stop], m[start:stop], x[start:stop], out[start:stop]
        for i in range(len(mean)):
            mean[i] = mean[i] * beta + some[i]
        if nesterov:
            for i in range(len(mean)):
                tile[i] = step * (some[i] + beta * mean[i])
        else:
            for i in range(len(mean)):
                tile[i] = step * mean[i]
        if before.ctypes.data == after.ctypes.data:  # two arrays, which a compiler can tell apart
            for i in range(len(after)):
                after[i] -= tile[i]
        else:
            for i in range(len(after)):
                after[i] = before[i] - tile[i]


@_compiled
def _adamw(
    x: Any, d: Any, m: Any, v: Any, largest: Any, numbers: Any, excluded: Any, begin: Any, out: Any, tile: Any
) -> None:
    """Do one step of AdamW for a block that begins at ``begin`` in the model; ``excluded`` counts from there too."""
    number = m.dtype.type
    beta1, beta2, epsilon = number(numbers[0]), number(numbers[1]), number(numbers[2])
    rest1, rest2 = number(1.0 - numbers[0]), number(1.0 - numbers[1])
    correction1, correction2 = number(numbers[3]), number(numbers[4])
    step, keep, one = number(numbers[5]), number(numbers[6]), number(1.0)
    place = 0  # the first excluded range that ends beyond what is done
    while place < len(excluded) and excluded[place, 1] <= begin:
        place += 1
    start = 0
    while start < len(m):
        stop = min(start + TILE, len(m))
        factor = keep
        if place < len(excluded):
            first, last = excluded[place, 0] - begin, excluded[place, 1] - begin
            if first <= start:
                factor = one
                stop = min(stop, last)
                if stop == last:
                    place += 1
            else:
                stop = min(stop, first)
        some, mean, spread = d[start:stop], m[start:stop], v[start:stop]
        for i in range(len(mean)):
            mean[i] = mean[i] * beta1 + rest1 * some[i]
        for i in range(len(spread)):
            spread[i] = spread[i] * beta2 + rest2 * some[i] * some[i]
        if len(largest):
            most = largest[start:stop]
            for i in range(len(most)):  # as np.maximum: NaN if either is
                most[i] = spread[i] if spread[i] > most[i] or spread[i] != spread[i] else most[i]
            spread = most
        for i in range(len(mean)):
            tile[i] = step * ((mean[i] / correction1) / (np.sqrt(spread[i] / correction2) + epsilon))
        before, after = x[start:stop], out[start:stop]
        if before.ctypes.data == after.ctypes.data:
            for i in range(len(after)):
                after[i] = after[i] * factor - tile[i]
        else:
            for i in range(len(after)):
                after[i] = before[i] * factor - tile[i]
        start = stop


@_compiled
def _add_squares(g: Any, first: Any, last: Any, lanes: Any) -> None:
    """Add the squares of g to its lanes ``first`` to ``last``, in the order of `asyncsgd.core.vectors.norm`."""
    sums = lanes[first:last]
    whole = len(g) - len(g) % LANES
    start = 0
    while start + 4 * LANES <= whole:  # four rows at a time: a sum is loaded and stored once for four additions
        a, b = g[start + first : start + last], g[start + LANES + first : start + LANES + last]
        c, d = g[start + 2 * LANES + first : start + 2 * LANES + last], g[start + 3 * LANES + first :]
        for j in range(len(sums)):
            total = sums[j] + np.float64(a[j]) * np.float64(a[j])
            total = total + np.float64(b[j]) * np.float64(b[j])
            total = total + np.float64(c[j]) * np.float64(c[j])
            sums[j] = total + np.float64(d[j]) * np.float64(d[j])
        start += 4 * LANES
    while start < len(g):
        row = g[start + first : min(start + last, len(g))]
        for j in range(len(row)):
            sums[j] += np.float64(row[j]) * np.float64(row[j])
        start += LANES


@_compiled
def _fold(lanes: Any) -> Any:
    """Return the sum of the lanes: the second half is added to the first, repeatedly."""
    half = len(lanes) // 2
    while half:
        for j in range(half):
            lanes[j] += lanes[half + j]
        half //= 2
    return lanes[0]


class GrowingNorm:
    """The norm of a vector that is being written from its start on: each number is read while it is in the cache.

    The bits are those of `asyncsgd.core.vectors.norm`: a lane gets the same squares in the same order, because what is
    read in one step ends where all lanes have got as many.

    >>> g = np.array([3.0, 4.0])
    >>> norm = GrowingNorm(g)
    >>> norm.written(1)
    >>> norm.written(2)
    >>> norm.length()
    5.0
    """

    def __init__(self, g: Vector) -> None:
        self._g, self._done = read_only(g), 0
        self._lanes = np.zeros(LANES)

    def written(self, n: int) -> None:
        """Read what is new now that the first n numbers are there."""
        ready = n if n == len(self._g) else n - n % LANES
        if ready > self._done:
            _add_squares(self._g[self._done : ready], 0, LANES, self._lanes)
            self._done = ready

    def length(self) -> float:
        """Return the norm of the whole vector. If it is finite, so are all numbers. Call this once."""
        self.written(len(self._g))
        length = math.sqrt(_fold(self._lanes))
        return norm_of(self._g) if math.isinf(length) else length


class CompiledKernels(Kernels):
    """The passes in compiled code. None of them raises on overflow, whatever np.seterr says.

    Args:
        threads: The largest number of threads for one pass, the calling one included; None for one per processor that
            this process may use, at most 4.

    >>> kernels, x = CompiledKernels(threads=1), np.ones(3)
    >>> kernels.subtract(x, 0.5, np.ones(3), x)
    >>> x
    array([0.5, 0.5, 0.5])
    """

    never_raises: ClassVar[bool] = True

    def __init__(self, threads: int | None = None) -> None:
        super().__init__()
        self.threads = min(_processors(), MOST_THREADS) if threads is None else threads
        self._helpers: ThreadPoolExecutor | None = None
        self._tiles: dict[np.dtype[Any], list[Vector]] = {}
        self._excluded: tuple[Ranges, NDArray[np.int64]] = ((), np.zeros((0, 2), np.int64))

    def subtract(self, x: Vector, scale: float, g: Vector, out: Vector) -> None:
        x = read_only(x)  # but g stays as it is, to save a view per arrival: this is the pass of plain SGD
        if len(x) < LONG:
            subtract_scaled(x, scale, g, out)
        else:
            self._share(len(x), lambda part, tile: subtract_scaled(x[part], scale, g[part], out[part]), x.dtype)

    def norm(self, g: Vector) -> float:
        lanes, g = np.zeros(LANES), read_only(g)
        parts = 1 if len(g) < LONG else self.threads
        bounds = [LANES * k // parts for k in range(parts + 1)]

        def add(part: int, tile: Vector) -> None:
            _add_squares(g, bounds[part], bounds[part + 1], lanes)

        self._spread(parts, add, g.dtype)
        length = math.sqrt(_fold(lanes))
        return norm_of(g) if math.isinf(length) else length

    def scale(self, g: Vector, factor: float, out: Vector) -> None:
        g = read_only(g)
        self._share(len(g), lambda part, tile: _scale(g[part], factor, out[part]), g.dtype)

    def momentum(self, x: Vector, d: Vector, m: Vector, step: float, beta: float, nesterov: bool, out: Vector) -> None:
        x, d = read_only(x), read_only(d)

        def move(part: slice, tile: Vector) -> None:
            _momentum(x[part], d[part], m[part], step, beta, nesterov, out[part], tile)

        self._share(len(x), move, x.dtype)

    def adamw(
        self,
        x: Vector,
        d: Vector,
        memory: tuple[Vector, Vector, Vector | None],
        numbers: AdamNumbers,
        excluded: Ranges,
        out: Vector,
    ) -> None:
        x, d = read_only(x), read_only(d)
        m, v, known = memory
        if self._excluded[0] is not excluded:
            self._excluded = (excluded, np.array(excluded, np.int64).reshape(-1, 2))
        ranges, floats = self._excluded[1], tuple(map(float, numbers))
        largest = m[:0] if known is None else known

        def move(part: slice, tile: Vector) -> None:
            _adamw(x[part], d[part], m[part], v[part], largest[part], floats, ranges, part.start, out[part], tile)

        self._share(len(x), move, x.dtype)

    def _share(self, n: int, function: Callable[[slice, Vector], None], dtype: Any) -> None:
        """Call the function with slices that cover 0..n, from several threads if n is large."""
        if n < LONG:
            function(slice(0, n), self._tile(dtype, 0))
            return
        self._spread(
            math.ceil(n / BLOCK),
            lambda part, tile: function(slice(part * BLOCK, min((part + 1) * BLOCK, n)), tile),
            dtype,
        )

    def _spread(self, parts: int, function: Callable[[int, Vector], None], dtype: Any) -> None:
        """Call ``function(part, tile)`` for every part from 0 on; every thread has a tile of its own."""
        threads = min(self.threads, parts)
        if threads == 1:
            for part in range(parts):
                function(part, self._tile(dtype, 0))
            return
        numbers = itertools.count()  # next() on it is one operation of the interpreter, so no two threads get one part

        def work(thread: int) -> None:
            tile = self._tile(dtype, thread)
            while (part := next(numbers)) < parts:
                function(part, tile)

        for thread in range(threads):
            self._tile(dtype, thread)  # here, so that no two threads change the dict
        if self._helpers is None:  # its threads end with this object
            self._helpers = ThreadPoolExecutor(self.threads - 1, thread_name_prefix="asyncsgd-update")
        helpers = [self._helpers.submit(work, thread) for thread in range(1, threads)]
        work(0)
        for helper in helpers:
            if not helper.cancel():  # it has started, so it may still be working on its last part
                helper.result()

    def _tile(self, dtype: Any, thread: int) -> Vector:
        tiles = self._tiles.get(dtype)
        if tiles is None:
            tiles = self._tiles[dtype] = [np.empty(TILE, dtype) for _ in range(self.threads)]
        return tiles[thread]


def ready(method: Method, dtype: DTypeLike, threads: int | None = None) -> CompiledKernels:
    """Return kernels with what this method needs loaded for vectors of this dtype, so that no arrival waits for it.

    Loading takes half a second, and compiling at the first use on a machine some seconds.

    >>> import asyncsgd as asgd
    >>> isinstance(ready(asgd.async_sgd(0.1), np.float64), CompiledKernels)
    True
    """
    kernels = CompiledKernels(threads)
    x, g, out = np.zeros(1, dtype), np.zeros(1, dtype), np.zeros(1, dtype)
    kernels.subtract(x, 0.0, g, out)
    if any(isinstance(transform, Clip) for transform in method.transforms) or isinstance(method.aggregation, Krum):
        kernels.norm(g)
    if method.transforms or method.weights is not None or isinstance(method.aggregation, Buffer | Robust):
        kernels.scale(g, 1.0, out)
    match method.optimizer:
        case Momentum(beta=beta, nesterov=nesterov):
            kernels.momentum(x, g, out, 0.0, beta, nesterov, np.zeros(1, dtype))
        case Adam():
            memory = (np.zeros(1, dtype), np.zeros(1, dtype), None)
            kernels.adamw(x, g, memory, AdamNumbers(0.0, 0.0, 1.0, 1.0, 1.0, 0.0, 1.0), (), out)
    return kernels


def _processors() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def read_only(vector: NDArray[N]) -> NDArray[N]:
    """Return a read-only view, so that one compiled version serves read-only and writeable vectors."""
    if not vector.flags.writeable:
        return vector
    view = vector.view()
    view.flags.writeable = False
    return view
