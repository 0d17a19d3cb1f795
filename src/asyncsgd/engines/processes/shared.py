"""All the memory that the server and its workers share.

There are no locks. Each piece has one writer at a time, and a message through a pipe hands it over:

- A *point* is written by the server before it sends a job that names the slot, and not again until no job reads it.
- An *update* and its *note* are written by the worker that was sent their place, before it reports. From the report on
  they belong to the server, until the place is given to another job.
- In *cancelled* only the server writes, at any time. A worker reads it when a signal arrives and when a job begins.

If a worker dies while it writes, the place holds half an update, which is never reported, and so never read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import DTypeLike

from asyncsgd.engines.processes.memory import Slots
from asyncsgd.engines.processes.messages import NOTE


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
