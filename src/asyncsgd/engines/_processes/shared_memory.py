"""Anonymous shared memory in numbered slots of equal length. It has no name, so a crash leaves nothing behind.

The memory is a file descriptor (``memfd``; on other systems an unlinked temporary file). It is not a file in /dev/shm,
so the small limit that containers set there does not matter. The memory can grow while other processes have it open: a
process maps a new slot when it first receives the slot's number.
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

# Messages between server and workers: structs of fixed length, which a pipe writes in one piece (up to 4096 bytes).

JOB = Struct("<qQqqii?")
"""Server to worker: job, seed, mini-batches of the job and before it, slot of the point, place of the update, of its
note and of its `Shared.cancelled`, and whether the server applied the update of the worker's last job."""

REPORT = Struct("<iiqd")
"""Worker to server, one pipe for all workers: `asyncsgd.engines.job.Kind`, worker, job, seconds of computing."""

NO_DEVICE = -2
"""In a report of kind READY, in place of the job: the worker is not ready, because its task cannot use its device. The
note of its first place says why, and the worker ends."""

NOTE = 16_384
"""Bytes of an error text from a worker: a traceback, or what is wrong with an update."""


def write_note(note: NDArray[Any], text: str) -> None:
    """Write the length of the text, then the text. A long text is cut at its start, as tracebacks end with the error.

    >>> note = np.zeros(NOTE, np.uint8)
    >>> write_note(note, "too bad")
    >>> read_note(note)
    'too bad'
    """
    data = text.encode(errors="replace")[-(NOTE - 8) :]
    note[:8] = np.frombuffer(len(data).to_bytes(8, "little"), np.uint8)
    note[8 : 8 + len(data)] = np.frombuffer(data, np.uint8)


def read_note(note: NDArray[Any]) -> str:
    """Return the text that `write_note` wrote."""
    length = int.from_bytes(note[:8].tobytes(), "little")
    return note[8 : 8 + length].tobytes().decode(errors="replace")


# Rules for the memory that the server and its workers share. There are no locks: each piece of memory has one writer at
# a time, and a message through a pipe passes the right to write.
#
# - *Points*: the server writes a point before it sends a job that names its slot. It does not write to the slot again
#   until no job reads it.
# - *Updates* and *notes*: the worker that received the place with its job writes them before it reports. After the
#   report they belong to the server, until the server gives the place to another job.
# - *Cancelled*: only the server writes, at any time. A worker reads it when a signal arrives and when a job begins.
#
# If a worker dies while it writes, the place holds half an update. No report names it, so the server never reads it.


@dataclass(frozen=True)
class Shared:
    """All memory that the server shares with its workers. The server makes it; workers open its descriptors."""

    points: Slots
    updates: Slots
    """One slot per place."""
    notes: Slots
    """One slot per place."""
    cancelled: Slots
    """One slot with one number per place: the job there that the server cancelled, or -1."""

    @classmethod
    def new(cls, n: int, dtype: DTypeLike, places: int) -> Shared:
        """Make memory for vectors of n numbers, with this many places for updates."""
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
        """Open the memory of these descriptors, which the server made."""
        points, updates, notes, cancelled = descriptors
        return cls(
            Slots(points, n, dtype, owner=False),
            Slots(updates, n, dtype, owner=False),
            Slots(notes, NOTE, np.uint8, owner=False),
            Slots(cancelled, places, np.int64, owner=False),
        )

    @property
    def descriptors(self) -> list[int]:
        """The descriptors to send to a worker."""
        return [slots.descriptor for slots in self._all]

    def make(self, places: Sequence[int]) -> None:
        """Make the files long enough for these places, before a worker maps them."""
        for place in places:
            self.updates[place], self.notes[place]

    def close(self) -> None:
        """Close the descriptors."""
        for slots in self._all:
            slots.close()

    @property
    def _all(self) -> tuple[Slots, ...]:
        return self.points, self.updates, self.notes, self.cancelled


def anonymous_file(name: str) -> int:
    """Return a descriptor of an empty file that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Slots:
    """Vectors of one length and dtype over one descriptor. Slot k is mapped at its first use.

    Slots 0, 1-2, 3-6, 7-14, ... are mapped together: every mapping holds a descriptor, of which a process has few, and
    untouched memory costs nothing.

    The owner (the server) makes the file longer; other processes only map it. A process that maps beyond the end of the
    file is killed by SIGBUS when it touches that memory. So the owner uses a slot before it sends the slot's number.
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
        """Make a new file, owned by this process."""
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
        """Make the file longer. It is memory, but the limit on file sizes applies to it too."""
        try:
            os.ftruncate(self.descriptor, size)
        except OSError as error:
            large = error.errno == errno.EFBIG
            fix = "raise the limit on the size of a file (ulimit -f unlimited)" if large else "free some memory"
            what = f"{size:,} bytes of shared memory for vectors of {self._n:,} numbers cannot be allocated"
            raise EngineError(f"{what} ({error.strerror}); {fix}, or train a smaller model") from error

    def close(self) -> None:
        """Close the descriptor. The memory is freed with the last array that uses it."""
        if self.descriptor >= 0:
            os.close(self.descriptor)
            self.descriptor = -1
        self._arrays.clear()
        self._windows.clear()
