"""Anonymous shared memory in numbered slots of equal length. It has no name, so a crash leaves nothing behind.

It is a file descriptor (``memfd``; elsewhere an unlinked temporary file), not a name in /dev/shm, so the small limit
that containers put on that does not matter. It can grow while others have it open: whoever is sent a new slot
number maps that slot then.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncsgd.core.errors import EngineError


def anonymous_file(name: str) -> int:
    """A descriptor of an empty file that no directory lists."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Slots:
    """Vectors of one length and dtype over one descriptor; slot k is mapped when first asked for.

    Slots 0, 1-2, 3-6, 7-14, ... are mapped together: every mapping holds a descriptor, of which a process has few, and
    memory that nobody has touched costs nothing.

    The owner (the server) makes the file longer; the others only map it. A process that maps beyond the end of the file
    is killed by SIGBUS when it touches that memory. So the owner asks for a slot before it tells anyone its number.
    """

    def __init__(self, descriptor: int, n: int, dtype: DTypeLike, *, owner: bool) -> None:
        self.descriptor = descriptor
        self._n, self._dtype, self._owner = n, np.dtype(dtype), owner
        unit = mmap.ALLOCATIONGRANULARITY
        self._stride = -(-n * self._dtype.itemsize // unit) * unit
        self._arrays: dict[int, NDArray[Any]] = {}
        self._windows: dict[int, mmap.mmap] = {}  # by the first slot in it
        self._size = 0

    @classmethod
    def new(cls, name: str, n: int, dtype: DTypeLike) -> Slots:
        """Fresh ones."""
        return cls(anonymous_file(name), n, dtype, owner=True)

    def __getitem__(self, slot: int) -> NDArray[Any]:
        found = self._arrays.get(slot)
        if found is None:
            count = 1 << ((slot + 1).bit_length() - 1)
            first = count - 1
            start = (slot - first) * self._stride
            found = np.frombuffer(self._window(first, count), self._dtype, self._n, start)
            self._arrays[slot] = found
        return found

    def _window(self, first: int, count: int) -> mmap.mmap:
        found = self._windows.get(first)
        if found is None:
            start, length = first * self._stride, count * self._stride
            if self._owner and start + length > self._size:
                self._grow(start + length)
                self._size = start + length
            found = self._windows[first] = mmap.mmap(self.descriptor, length, offset=start)
        return found

    def _grow(self, size: int) -> None:
        """Make the file longer. Though it is memory, the limit on the size of a file holds for it too."""
        try:
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            large = error.errno == errno.EFBIG
            fix = "raise the limit on the size of a file (ulimit -f unlimited)" if large else "free some memory"
            words = f"{size:,} bytes of shared memory for vectors of {self._n:,} numbers cannot be had"
            raise EngineError(f"{words} ({error.strerror}); {fix}, or train a smaller model") from error

    def close(self) -> None:
        """Give the descriptor back; the memory goes when the last array over it does."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._arrays.clear()
        self._windows.clear()
