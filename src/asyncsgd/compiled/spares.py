"""Memory of long vectors that is used again, because fresh memory costs more than what is written to it."""

from __future__ import annotations

import sys
from threading import Lock
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from asyncsgd.core.vectors import Vector

LARGE = 1 << 22
"""Bytes from which on a vector is used again. The system gives a process smaller ones from memory that it has already,
and it must clear every page of a larger one first."""
MOST = 2
"""Number of vectors that are kept: one that is in use, and one to write the next to."""


class Spares:
    """Gives vectors of any content, and gives one again once no one else refers to it. Any thread may use it.

    Nobody returns a vector. CPython counts the references to every object, and views of a vector refer to it, so a
    vector to which only this object refers is one that nobody can read. Callbacks and threads may therefore keep what
    they were given for as long as they like. Without such counts, every vector is a new one.

    >>> spares = Spares()
    >>> first, second = spares.take(2_000_000, np.float64), spares.take(2_000_000, np.float64)
    >>> first is second
    False
    >>> number, view = id(first), first[5:]
    >>> del first
    >>> id(spares.take(2_000_000, np.float64)) == number
    False
    >>> del view
    >>> id(spares.take(2_000_000, np.float64)) == number
    True
    """

    def __init__(self) -> None:
        self._kept: list[Vector] = []
        self._lock = Lock()  # so that no two threads find the same vector

    def take(self, n: int, dtype: DTypeLike) -> Vector:
        """Return a writeable vector of this length and dtype with any content."""
        kind = np.dtype(dtype)
        if ALONE == 0 or n * kind.itemsize < LARGE:
            return np.empty(n, kind)
        with self._lock:
            for place in range(len(self._kept)):
                if references(self._kept, place) == ALONE:
                    if self._kept[place].shape != (n,) or self._kept[place].dtype != kind:
                        self._kept[place] = np.empty(n, kind)
                    found = self._kept[place]
                    found.flags.writeable = True  # the last one who had it may have protected it
                    return found
            made: Vector = np.empty(n, kind)
            if len(self._kept) < MOST:
                self._kept.append(made)
            return made

    def copy(self, x: Vector) -> Vector:
        """Return a writeable copy of a vector."""
        made = self.take(len(x), x.dtype)
        made[:] = x
        return made


def references(objects: list[Any], place: int) -> int:
    """Return the number of references to an object of a list. If only the list refers to it, this is `ALONE`."""
    return sys.getrefcount(objects[place])


def _alone() -> int:
    counts = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()
    return references([np.empty(0)], 0) if counts else 0


ALONE = _alone()
"""What `references` returns for an object to which only the list refers; 0 if this Python does not count exactly."""
