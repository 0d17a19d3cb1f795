"""The model and the points that are out with workers: each version is stored once and lent to its readers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from asyncsgd.core.events import Vector


class Points:
    """Buffers with reader counts. The newest version is `current`; older ones live while a job reads them.

    An update writes into ``target()``: the current buffer itself when nobody reads it (in place), else a free
    buffer. Either way x is passed over once, nothing is copied, and no worker ever sees its point change.
    ``allocate`` lets an engine put the buffers in shared memory.
    """

    def __init__(self, x: Vector, allocate: Callable[[int], Vector] | None = None) -> None:
        dtype = x.dtype
        self._allocate = allocate or (lambda n: np.empty(n, dtype=dtype))
        self._buffers: list[Vector] = []
        self._views: list[Vector] = []
        self._readers: list[int] = []
        self._free: list[int] = []
        self._current = self._new(x.shape[0])
        self._buffers[self._current][:] = x

    def _new(self, n: int) -> int:
        buffer = self._allocate(n)
        view = buffer.view()
        view.flags.writeable = False
        self._buffers.append(buffer)
        self._views.append(view)
        self._readers.append(0)
        return len(self._buffers) - 1

    @property
    def current(self) -> Vector:
        """A read-only view of the newest version. It may be overwritten by the next update: copy it to keep it."""
        return self._views[self._current]

    @property
    def slots(self) -> int:
        """How many buffers exist: at most one more than the versions in flight have ever been (two under early).

        Early re-sampling lends x^(t) before the arrival gives its point back, so one more is held for a moment.
        """
        return len(self._buffers)

    def __getitem__(self, slot: int) -> Vector:
        return self._views[slot]

    def lend(self) -> int:
        """The slot of the newest version, which now has one more reader."""
        self._readers[self._current] += 1
        return self._current

    def give_back(self, slot: int) -> None:
        """One reader of this slot is done."""
        self._readers[slot] -= 1
        if self._readers[slot] == 0 and slot != self._current:
            self._free.append(slot)

    def target(self, done: int | None = None) -> tuple[int, Vector]:
        """(slot, buffer) that the next version is to be written into; then `commit` the slot.

        ``done``: one reader of this slot is done with it, though it has not given it back yet. If it is the only one,
        the slot is taken, so that one buffer less is in use.
        """
        if self._readers[self._current] == (done == self._current):
            slot = self._current
        elif done is not None and self._readers[done] == 1:
            slot = done
        elif self._free:
            slot = self._free[-1]
        else:
            slot = self._new(self.current.shape[0])
            self._free.append(slot)
        return slot, self._buffers[slot]

    def commit(self, slot: int) -> None:
        """The buffer now holds the newest version."""
        if slot != self._current:
            if self._readers[slot] == 0:  # else its only reader is done with it, and about to give it back
                self._free.remove(slot)
            self._current = slot

    def state(self) -> dict[str, Any]:
        """Everything, as arrays and integers. Buffers that nobody reads are left out."""
        live = [slot for slot, readers in enumerate(self._readers) if readers or slot == self._current]
        return {
            "current": self._current,
            "slots": len(self._buffers),
            "live": {slot: self._buffers[slot].copy() for slot in live},
            "readers": list(self._readers),
            "free": list(self._free),
        }

    def load(self, state: dict[str, Any]) -> None:
        """The inverse of `state`."""
        n = self.current.shape[0]
        while len(self._buffers) < state["slots"]:
            self._new(n)
        for slot, values in state["live"].items():
            self._buffers[slot][:] = values
        self._readers[:] = state["readers"]
        self._free[:] = state["free"]
        self._current = state["current"]
