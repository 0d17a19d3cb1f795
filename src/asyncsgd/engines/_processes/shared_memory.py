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
from collections.abc import Sequence
from dataclasses import dataclass
from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncsgd.core.errors import EngineError

# --------------------------------------------------------------------------------------------------------------
# What server and workers say to each other: fixed structs, far shorter than a pipe writes in one piece.


JOB = Struct("<qQii")
"""To a worker: job, seed, slot of the point, place of the update (also of its note, and of the word to stop)."""

REPORT = Struct("<iiqd")
"""To the server, all workers through one pipe: `asyncsgd.engines.job.Kind`, worker, job, seconds of computing."""

NOTE = 16_384
"""Bytes of text that a worker can leave for the server: a traceback, or what is wrong with an update."""


def write_note(note: NDArray[Any], text: str) -> None:
    """The end of the text, where a traceback says what went wrong, behind its length.

    >>> note = np.zeros(NOTE, np.uint8)
    >>> write_note(note, "too bad")
    >>> read_note(note)
    'too bad'
    """
    data = text.encode(errors="replace")[-(NOTE - 8) :]
    note[:8] = np.frombuffer(len(data).to_bytes(8, "little"), np.uint8)
    note[8 : 8 + len(data)] = np.frombuffer(data, np.uint8)


def read_note(note: NDArray[Any]) -> str:
    """What `write_note` wrote."""
    length = int.from_bytes(note[:8].tobytes(), "little")
    return note[8 : 8 + length].tobytes().decode(errors="replace")


# --------------------------------------------------------------------------------------------------------------
# All the memory that the server and its workers share.
# There are no locks. Each piece has one writer at a time, and a message through a pipe hands it over:
# - A *point* is written by the server before it sends a job that names the slot, and not again until no job reads it.
# - An *update* and its *note* are written by the worker that was sent their place, before it reports. From then on
#   they belong to the server, until the place is given to another job.
# - In *cancelled* only the server writes, at any time. A worker reads it when a signal arrives and when a job begins.
# If a worker dies while it writes, the place holds half an update, which is never reported, and so never read.


@dataclass(frozen=True)
class Shared:
    """The server makes it, and sends its descriptors to the workers, who open it."""

    points: Slots
    updates: Slots
    """One slot for each place; so have the notes."""
    notes: Slots
    cancelled: Slots
    """By place, the job there that is no longer wanted."""

    @classmethod
    def new(cls, n: int, dtype: DTypeLike, places: int) -> Shared:
        """For vectors of n numbers, and so many updates at once."""
        shared = cls(
            Slots.new("asyncsgd-points", n, dtype),
            Slots.new("asyncsgd-updates", n, dtype),
            Slots.new("asyncsgd-notes", NOTE, np.uint8),
            Slots.new("asyncsgd-cancelled", places, np.int64),
        )
        shared.cancelled[0][:] = -1
        return shared

    @classmethod
    def opened(cls, descriptors: Sequence[int], n: int, dtype: DTypeLike, places: int) -> Shared:
        """What somebody else made."""
        points, updates, notes, cancelled = descriptors
        return cls(
            Slots(points, n, dtype, owner=False),
            Slots(updates, n, dtype, owner=False),
            Slots(notes, NOTE, np.uint8, owner=False),
            Slots(cancelled, places, np.int64, owner=False),
        )

    @property
    def descriptors(self) -> list[int]:
        """To be sent to a worker."""
        return [slots.descriptor for slots in self._all]

    def make(self, places: Sequence[int]) -> None:
        """The files must be long enough before a worker maps these places in them."""
        for place in places:
            self.updates[place], self.notes[place]

    def close(self) -> None:
        """Give the descriptors back."""
        for slots in self._all:
            slots.close()

    @property
    def _all(self) -> tuple[Slots, ...]:
        return self.points, self.updates, self.notes, self.cancelled


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
