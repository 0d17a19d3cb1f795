"""Updates sent with 16 bits per number and error feedback: a worker adds the rounding error to its next update.

Let e be the error that a worker keeps, and Q the rounding to float16 (scaled) or bfloat16::

    sent = Q(g + e),   e ← g + e - sent   if the server used what was sent; otherwise e stays

So e depends only on the updates of this worker that arrived since it last joined, and on their order. The trace and the
journal record both, so such a run can be replayed bit for bit like any other.

Reference: Seide et al. 2014, "1-bit stochastic gradient descent and its application to data-parallel distributed
training of speech DNNs"; Karimireddy et al. 2019, "Error feedback fixes SignSGD and other gradient compression
schemes".
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.vectors import Vector

TRANSPORTS = ("float16", "bfloat16")
LARGEST = 14
"""float16: the largest element of an update is scaled to at least 2^14 and below 2^15. That uses the whole range, and
rounding up does not overflow."""
HUGE = 127
"""The exponent of numbers that would overflow float32 when rounded up. Such numbers are cut off."""


class Parcel(NamedTuple):
    """A packed update: 16 bits per element, and the exponent of the power of two that scaled them."""

    halves: NDArray[np.uint16]
    exponent: int


def check_transport(kind: str | None) -> None:
    """Raise `BadParameter` unless ``kind`` is a known transport or None."""
    if kind is not None and kind not in TRANSPORTS:
        raise BadParameter("transport", kind, "is unknown", f"pass one of {', '.join(TRANSPORTS)}, or None")


class Rounding:
    """Packs the updates of one worker, and keeps its rounding error e.

    >>> rounding, unpacking = Rounding("bfloat16", 3, np.float32), Unpacking("bfloat16")
    >>> g, sent = np.array([1.0, 1.003, -1e-9], np.float32), np.empty(3, np.float32)
    >>> for _ in range(2):
    ...     unpacking(rounding.pack(g), sent)
    ...     rounding.settle(used=True)
    ...     print(sent[:2])
    [1. 1.]
    [1.        1.0078125]
    """

    def __init__(self, kind: str, n: int, dtype: DTypeLike) -> None:
        from asyncsgd.compiled import float16

        check_transport(kind)
        self._scales = kind == "float16"  # bfloat16 has the range of float32
        self._measure, self._shorten = float16.add_and_measure, getattr(float16, f"to_{kind}")
        self._left: Vector = np.zeros(n, dtype)
        self._total: Vector = np.zeros(n, dtype)  # after `pack`: the new error, in case the parcel is used
        self._pending = False
        self._halves = np.empty(n, np.uint16)
        self._block = _block(float16.BLOCK)

    def pack(self, g: Vector) -> Parcel:
        """Return Q(g + e). The next call overwrites it. Call `settle` in between to say whether it was used."""
        largest = self._measure(g, self._left, self._total, *self._block)
        exponent = 0
        if self._scales:
            exponent = max(-120, min(120, LARGEST - largest + (largest >= HUGE)))
        self._shorten(self._total, 2.0**exponent, self._halves, *self._block)
        self._pending = True
        return Parcel(self._halves, exponent)

    def settle(self, *, used: bool) -> None:
        """Record whether the server used the last parcel. If it did, its rounding error is kept for the next one."""
        if self._pending and used:
            self._left, self._total = self._total, self._left
        self._pending = False


class Unpacking:
    """Unpacks a parcel into a vector."""

    def __init__(self, kind: str) -> None:
        from asyncsgd.compiled import float16

        check_transport(kind)
        self._lengthen, self._block = getattr(float16, f"from_{kind}"), _block(float16.BLOCK)

    def __call__(self, parcel: Parcel, out: Vector) -> None:
        """Write the numbers of the parcel to ``out``."""
        self._lengthen(parcel.halves, 2.0**parcel.exponent, out, *self._block)


def _block(size: int) -> tuple[NDArray[np.float32], NDArray[np.uint32]]:
    """Return one block of memory as float32 and as uint32."""
    floats = np.empty(size, np.float32)
    return floats, floats.view(np.uint32)
