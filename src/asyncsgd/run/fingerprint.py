"""A cheap mark of an update: a check sum over all of it, or over 4096 coordinates of a long one, always the same.

A gradient computed in another order of additions differs in a good part of its coordinates, so these are enough to
find the job with which a replay parts from the run. Whether the models agree is judged by all of their bits.
"""

from __future__ import annotations

import struct
import zlib

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.events import Vector

PIECES = 64
"""So many pieces of so many neighbours, spread evenly: memory is read in runs."""
MARK = struct.Struct("<I")
UNKNOWN = 0
"""In place of a mark that a repair could not save. One update in four thousand million has this mark by chance."""


def fingerprint(update: Vector) -> bytes:
    """Four bytes.

    >>> fingerprint(np.arange(3.0)) == fingerprint(np.arange(3.0) + 1e-16)
    False
    """
    n = update.shape[0]
    if n > PIECES * PIECES:
        apart = n // PIECES
        update = update[: PIECES * apart].reshape(PIECES, apart)[:, :PIECES]
    return MARK.pack(zlib.crc32(update.tobytes()))


def marks(data: bytes) -> NDArray[np.uint32]:
    """The marks of a file, whole ones only."""
    return np.frombuffer(data[: len(data) - len(data) % MARK.size], "<u4")
