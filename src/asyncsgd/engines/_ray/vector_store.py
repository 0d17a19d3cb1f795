"""How points and updates travel: through memory that is shared on one machine, else through Ray's object store.

A version of the model is put into the object store once, for all workers that read it there, and taken out when none of
its jobs is under way any more and there is a newer one. Vectors that Ray sends along with a call anyway are not put
there at all. What is in the store at once is bounded: jobs wait here rather than that Ray writes to disk.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from asyncsgd.core.errors import EngineError
from asyncsgd.core.events import Assign
from asyncsgd.core.vectors import Vector
from asyncsgd.engines._processes.shared_memory import Slots
from asyncsgd.engines._ray.handle import Call, WorkerHandle
from asyncsgd.engines._ray.worker import KEY

SMALL = 64 * 1024
"""Bytes up to which Ray sends a vector along with the call; its own limit is 100 KiB for all arguments."""


class Version:
    """A point in the object store."""

    def __init__(self, number: int, reference: Any) -> None:
        self.number, self.reference = number, reference
        self.users = 1  # the slot that it was put for, and every call that reads it


class Post:
    """Where the server's points lie, and what is in the object store for its workers."""

    def __init__(self, n: int, dtype: DTypeLike, *, halved: bool) -> None:
        self.n, self.dtype = n, np.dtype(dtype)
        self._bytes = n * self.dtype.itemsize
        self._update = 0.5 if halved else 1.0
        self.points = Slots.new("asyncsgd-points", n, self.dtype)
        self.updates = Slots.new("asyncsgd-updates", n, self.dtype)
        self._key = Slots.new("asyncsgd-key", KEY, np.uint8)
        self._key[0][:] = np.frombuffer(secrets.token_bytes(KEY), np.uint8)
        self._made = 0
        self._readers: dict[int, int] = {}  # slot -> jobs that the server waits for
        self._versions: dict[int, Version] = {}  # slot -> what holds it in the object store
        self._newest = -1  # slot of the version assigned last, of which more jobs may come
        self._held = 0.0  # vectors in the object store, or about to be
        self._room = 0.0  # for so many

    def open(self, ray: Any, store: float) -> None:
        """The cluster is there; its store has room for so many bytes."""
        self._ray, self._room, self._store = ray, store / self._bytes, store

    def allocate(self) -> Vector:
        """The next buffer for points."""
        buffer: Vector = self.points[self._made]
        self._made += 1
        return buffer

    @property
    def memory(self) -> tuple[int, int, int, int, bytes]:
        """Where a worker on this machine finds it."""
        descriptors = self.points.descriptor, self.updates.descriptor, self._key.descriptor
        return (os.getpid(), *descriptors, self._key[0].tobytes())

    # ------------------------------------------------------------------------------------------ one job

    def lend(self, assign: Assign) -> None:
        """A job at this point was assigned."""
        slot = assign.slot
        self._readers[slot] = self._readers.get(slot, 0) + 1
        before, self._newest = self._newest, slot
        if before != slot:
            self._forget_unread(before)
        if slot in self._versions and self._versions[slot].number != assign.job.version:
            self._forget(slot)

    def give_back(self, slot: int) -> None:
        """The server does not wait for it any more; the slot may hold another version from now on."""
        self._readers[slot] -= 1
        if slot != self._newest:
            self._forget_unread(slot)

    def travels(self, member: WorkerHandle) -> bool:
        """Whether this worker's vectors need room in the object store."""
        return not member.shares and self._bytes > SMALL

    def pack(self, assign: Assign, member: WorkerHandle, call: Call) -> Any:
        """What to send as the point; None: not now, as the store is full."""
        if not self.travels(member):
            return assign.slot if member.shares else assign.point
        version = self._versions.get(assign.slot)
        wanted = self._update + (1.0 if version is None else 0.0)
        if self._held + wanted > self._room:
            self._forget_unread(self._newest)
        if self._held and self._held + wanted > self._room:
            return None
        if version is None:
            version = self._versions[assign.slot] = Version(assign.job.version, self._put(assign.point))
            self._held += 1.0
        version.users += 1
        self._held += self._update
        call.version = version
        return version.reference

    def answered(self, call: Call) -> None:
        """The call has been answered, or never will be: its point is not needed any more."""
        if call.version is not None:
            self._drop(call.version)

    def used(self, call: Call) -> None:
        """Its update is not needed any more either."""
        if call.version is not None:
            self._held -= self._update
            call.version = None

    def _forget_unread(self, slot: int) -> None:
        """Unless a job at this point is under way, it is not kept."""
        if not self._readers.get(slot):
            self._forget(slot)

    def _forget(self, slot: int) -> None:
        version = self._versions.pop(slot, None)
        if version is not None:
            self._drop(version)

    def _drop(self, version: Version) -> None:
        version.users -= 1
        if not version.users:
            version.reference = None
            self._held -= 1.0

    def _put(self, point: Vector) -> Any:
        if self._room < 1.0 + self._update:
            raise EngineError(
                f"the object store of the server's node has room for {self._store / 2**20:.0f} MiB of vectors, and one "
                f"point of this model has {self._bytes / 2**20:.0f}; start Ray with a larger --object-store-memory"
            )
        return self._ray.put(point)

    def close(self) -> None:
        """Let go of everything."""
        self._versions.clear()
        for slots in (self.points, self.updates, self._key):
            slots.close()
