"""How points and updates travel: through shared memory on the server's machine, else through Ray's object store.

The server puts a version of the model into the object store once, for all workers that read it there. It removes the
version when no job reads it and a newer version exists. Small vectors travel inside the call and never enter the store.
The store's content is bounded: jobs wait on the server, so that Ray never spills vectors to disk.

Only the polling thread uses this module. Ray frees an object once its last reference is dropped, so every vector in the
store is counted: a version has one user for its slot and one for each open call, and each open call reserves room for
its update. `CallQueue` reports the end of a call in two steps, `answered` (the point is free) and `used` (the update is
free). For a worker that died it calls both at once, as that worker's answers will never be read.
"""

from __future__ import annotations

import os
import secrets
from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from asyncsgd.compiled.compression import fast
from asyncsgd.core.compression import Message
from asyncsgd.core.errors import EngineError
from asyncsgd.core.events import Assign
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Encoded, Work
from asyncsgd.engines._processes.shared_memory import Slots
from asyncsgd.engines._ray.handle import Call, WorkerHandle
from asyncsgd.engines._ray.worker import KEY

SMALL = 64 * 1024
"""Largest vector, in bytes, that Ray sends inside the call. Ray's own limit is 100 KiB for all arguments."""


class Version:
    """A point in the object store."""

    def __init__(self, number: int, reference: Any) -> None:
        self.number, self.reference = number, reference
        self.users = 1  # the slot that holds it, and every open call that reads it


class VectorStore:
    """The server's points and updates in shared memory, and the versions in the object store."""

    def __init__(self, n: int, dtype: DTypeLike, work: Work) -> None:
        self.n, self.dtype = n, np.dtype(dtype)
        self._bytes = n * self.dtype.itemsize
        up, down = (work.up, work.down) if isinstance(work, Encoded) else (None, None)
        self._encoding = None if down is None else fast(down)
        # Room is counted in bytes, as integers: an encoded vector takes less of it, and what is freed adds up to 0.
        self._point = self._bytes if down is None else down.size(n, self.dtype)
        self._update = self._bytes if up is None else up.size(n, self.dtype)
        self.points = Slots.new("asyncsgd-points", n, self.dtype)
        self.updates = Slots.new("asyncsgd-updates", n, self.dtype)
        self._key = Slots.new("asyncsgd-key", KEY, np.uint8)
        self._key[0][:] = np.frombuffer(secrets.token_bytes(KEY), np.uint8)
        self._made = 0
        self._readers: dict[int, int] = {}  # slot -> jobs that the server waits for
        self._versions: dict[int, Version] = {}  # slot -> its version in the object store
        self._newest = -1  # slot of the version assigned last: more of its jobs may come
        self._held = 0  # bytes of vectors in the object store, or about to be
        self._room = 0.0  # bytes of vectors that the object store can hold

    def open(self, ray: Any, store_bytes: float) -> None:
        """Use this Ray, whose object store has room for ``store_bytes`` of vectors."""
        self._ray, self._room = ray, store_bytes

    @property
    def held(self) -> float:
        """The room in use in the object store, in vectors of the model."""
        return self._held / self._bytes

    def allocate(self) -> Vector:
        """Return the next buffer for a point."""
        buffer: Vector = self.points[self._made]
        self._made += 1
        return buffer

    @property
    def memory(self) -> tuple[int, int, int, int, bytes]:
        """What a worker on this machine needs to open the memory: process id, three descriptors, and the key."""
        descriptors = self.points.descriptor, self.updates.descriptor, self._key.descriptor
        return (os.getpid(), *descriptors, self._key[0].tobytes())

    # ------------------------------------------------------------------------------------------ one job

    def reserve(self, assign: Assign) -> None:
        """Record that the server assigned a job at this point, and drop older versions that no job needs."""
        slot = assign.slot
        self._readers[slot] = self._readers.get(slot, 0) + 1
        before, self._newest = self._newest, slot
        if before != slot:
            self._forget_unread(before)
        if slot in self._versions and self._versions[slot].number != assign.job.version:
            self._forget(slot)

    def release(self, slot: int) -> None:
        """Record that the server no longer waits for a job at this slot."""
        self._readers[slot] -= 1
        if slot != self._newest:
            self._forget_unread(slot)

    def needs_store(self, handle: WorkerHandle) -> bool:
        """Return whether this worker's vectors need room in the object store."""
        return not handle.shares and self._bytes > SMALL

    def pack(self, assign: Assign, handle: WorkerHandle, call: Call) -> Any:
        """Return what to send as the point: a slot, a vector or a reference. None: the store is full, try later."""
        if not self.needs_store(handle):
            return assign.slot if handle.shares else self._encoded(assign.point)
        version = self._versions.get(assign.slot)
        wanted = self._update + (self._point if version is None else 0)
        if self._held + wanted > self._room:
            self._forget_unread(self._newest)
        if self._held and self._held + wanted > self._room:
            return None
        if version is None:
            version = self._versions[assign.slot] = Version(assign.job.version, self._put(assign.point))
            self._held += self._point
        version.users += 1
        self._held += self._update
        call.version = version
        return version.reference

    def answered(self, call: Call) -> None:
        """Release the point of a call that was answered, or never will be."""
        if call.version is not None:
            self._drop(call.version)

    def used(self, call: Call) -> None:
        """Release the room of a call's update."""
        if call.version is not None:
            self._held -= self._update
            call.version = None

    def _forget_unread(self, slot: int) -> None:
        """Drop the version of this slot, unless the server waits for a job that reads it."""
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
            self._held -= self._point

    def _put(self, point: Vector) -> Any:
        if self._room < self._point + self._update:
            raise EngineError(
                f"the object store of the server's node has room for {self._room / 2**20:.0f} MiB of vectors, "
                f"but one point of this model has {self._point / 2**20:.0f}; start Ray with a larger "
                "--object-store-memory"
            )
        return self._ray.put(self._encoded(point))

    def _encoded(self, point: Vector) -> Vector | Message:
        """Return a point as it is sent: the vector, or the message that carries it."""
        return point if self._encoding is None else self._encoding.encode(point).copy()

    def close(self) -> None:
        """Drop all versions, and close the shared memory."""
        self._versions.clear()
        for slots in (self.points, self.updates, self._key):
            slots.close()
