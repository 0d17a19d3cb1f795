"""The unanswered calls to workers, and their answers in order.

Every job is one call of an actor's method, and Ray returns a reference at once. Ray runs the calls of one actor in the
order in which they were made, but an answer on another node may become readable before an older one. The queue puts
them in order again: it passes on an answer only after the answers to all earlier calls of the same worker.

If a worker dies, Ray answers all its open calls with an error, one after another. The first error ends the worker's
life: `drop` forgets its other calls, so that one death is reported once. Answers to older calls come before the error,
unless they were lost with their node. Only the polling thread calls these methods.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from asyncsgd.compiled.compression import fast
from asyncsgd.core.compression import Compression
from asyncsgd.core.errors import BadMessage
from asyncsgd.core.events import Arrived, Assign, Cancel, Job, Lost
from asyncsgd.core.vectors import Vector
from asyncsgd.engines._ray.handle import Call, WorkerHandle
from asyncsgd.engines._ray.vector_store import VectorStore
from asyncsgd.engines.base import Failed, Rejected, Report
from asyncsgd.engines.job import Kind
from asyncsgd.engines.lifecycle import Lifecycle

AT_ONCE = 16
"""Answers that one poll takes; more would hold that many updates in memory."""


class CallQueue:
    """The unanswered calls of all workers. Jobs of one worker are sent and answered first in, first out."""

    def __init__(
        self,
        store: VectorStore,
        life: Lifecycle,
        up: Compression | None,
        count: Callable[[Job], int | None] | None = None,
    ) -> None:
        self._store, self._life, self._count = store, life, count
        self._code = None if up is None else fast(up)
        self._reserved: dict[int, tuple[int, int]] = {}  # job that the server waits for -> worker, slot of its point
        self._calls: dict[Any, Call] = {}  # reference -> call, oldest first
        self._taken: list[Call] = []  # calls whose updates the last poll reported
        self._held_back: dict[WorkerHandle, None] = {}  # workers whose jobs wait for room in the store, in turn
        self._buffers: list[Vector] = []  # memory for updates that arrive encoded

    def open(self, ray: Any) -> None:
        """Use this Ray, once the cluster is connected."""
        self._ray = ray

    # ------------------------------------------------------------------------------------------ from the server

    def assign(self, handle: WorkerHandle, command: Assign) -> None:
        """Queue a job for this worker, if the worker is present, and send it if possible."""
        if self._life.assign(command):
            self._reserved[command.job.id] = handle.number, command.slot
            self._store.reserve(command)
            self.send(handle)

    def cancel(self, command: Cancel) -> None:
        """Forget a job. If it already runs, it runs to its end, and its answer is dropped."""
        self._life.cancel(command)
        self._let_go(command.job.id)

    def make_room(self) -> None:
        """Free the places of the updates that the last poll reported, and send jobs that waited for them.

        The pool calls this at the start of a poll. The server has used those updates by then.
        """
        taken, self._taken = self._taken, []
        for call in taken:
            self._store.used(call)
            if call.place in call.handle.unused:  # else the worker has died since, and has other places now
                call.handle.unused.remove(call.place)
                call.handle.free.append(call.place)
        self._send_held_back()
        for call in taken:
            self.send(call.handle)

    def drop(self, handle: WorkerHandle) -> None:
        """Forget a dead worker's calls and jobs. Later answers to its calls are ignored."""
        for reference, call in handle.calls.items():
            self._calls.pop(reference, None)
            self._store.answered(call)
            self._store.used(call)
        for job in [job for job, (worker, _) in self._reserved.items() if worker == handle.number]:
            self._let_go(job)
        self._held_back.pop(handle, None)
        handle.forget()

    def _let_go(self, job: int) -> None:
        """Release the slot of a job's point, once the server does not wait for the job: the slot may be overwritten."""
        if job in self._reserved:
            self._store.release(self._reserved.pop(job)[1])

    # ------------------------------------------------------------------------------------------ to the workers

    def send(self, handle: WorkerHandle) -> None:
        """Send as many jobs as this worker may hold. Jobs that need the store wait behind workers held back before."""
        while self._may_be_sent(handle):
            if (self._held_back and self._store.needs_store(handle)) or not self._send_one(handle):
                self._held_back[handle] = None
                return

    def _send_held_back(self) -> None:
        """Send jobs of the workers that were held back, one job each in turn, while the store has room."""
        while self._held_back:
            handle = next(iter(self._held_back))
            if self._may_be_sent(handle) and not self._send_one(handle):
                return
            del self._held_back[handle]
            if self._may_be_sent(handle):
                self._held_back[handle] = None

    def _may_be_sent(self, handle: WorkerHandle) -> bool:
        """Return whether a job waits for this worker, and a place for its update is free."""
        return bool(handle.free) and self._life.peek(handle.number) is not None

    def _send_one(self, handle: WorkerHandle) -> bool:
        """Send the next job. Return False, and change nothing, if the store has no room for its point."""
        assign = self._life.peek(handle.number)
        assert assign is not None
        call = Call(handle, "compute", assign.job.id, handle.free[-1])
        point = self._store.pack(assign, handle, call)
        if point is None:
            return False
        handle.free.pop()
        if self._count is not None:
            call.examples = self._count(assign.job)
        used = self._life.sent(handle.number, None, time.monotonic())
        job = assign.job
        work = job.seed, job.steps, job.batch
        self.note(call, handle.compute.remote(work, point, call.place, used))
        return True

    def note(self, call: Call, reference: Any) -> None:
        """Record a call that was made."""
        self._calls[reference] = call.handle.calls[reference] = call

    # ------------------------------------------------------------------------------------------ from the workers

    def answers(self, seconds: float) -> Iterator[tuple[Call, Any]]:
        """Yield the answered calls, each with its value, or with Ray's error if the worker is gone."""
        for reference in self._wait(seconds):
            call = self._calls.pop(reference, None)
            if call is None:
                continue  # an earlier answer in this list showed that the worker is gone
            call.reference = reference
            calls = call.handle.calls
            while calls:  # large answers can overtake each other between nodes: yield them in the order of the calls
                first = next(iter(calls.values()))
                if first.reference is None:
                    break
                try:
                    answer = self._ray.get(first.reference)
                except self._ray.exceptions.RayError as error:
                    yield first, error
                    break
                del calls[first.reference]
                yield first, answer

    def has_answered(self, handle: WorkerHandle) -> bool:
        """Return whether an unread answer of this worker is on some node of the cluster."""
        found, _ = self._ray.wait(list(handle.calls), num_returns=1, timeout=0, fetch_local=False)
        return bool(found)

    def _wait(self, seconds: float) -> list[Any]:
        """Return the references that are answered, oldest first; wait up to ``seconds`` for the first one."""
        references = list(self._calls)
        if not references:
            time.sleep(seconds)  # no call is open; the caller limits the time
            return []
        # First take answers that are there already, in the order of the calls, so that no worker is passed over.
        found, _ = self._ray.wait(references, num_returns=min(AT_ONCE, len(references)), timeout=0)
        if not found and seconds > 0:
            found, _ = self._ray.wait(references, num_returns=1, timeout=seconds)
        return list(found)

    def computed(self, call: Call, kind: int, answer: Any, seconds: float) -> Report | None:
        """Handle the answer to a job. Return the report for the server; None if the job was cancelled."""
        handle = call.handle
        self._store.answered(call)
        took = seconds if kind == Kind.DONE else None
        _, wanted = self._life.answered(handle.number, call.job, time.monotonic(), took)
        self._let_go(call.job)
        if wanted and kind == Kind.DONE:
            try:
                update = self._store.updates[call.place] if handle.shares else self._decoded(answer)
            except BadMessage as error:  # it was damaged on its way: the server rejects it, and the worker continues
                kind, answer = Kind.REJECTED, str(error)
                self._life.judged(handle.number, call.job, False)
            else:
                self._taken.append(call)
                handle.unused.append(call.place)
                return Arrived(call.job, update, handle.number, call.examples, seconds, checked=True)
        self._store.used(call)
        handle.free.append(call.place)
        self._send_held_back()
        self.send(handle)
        if not wanted:
            return None
        if kind == Kind.STOPPED:  # this engine never stops a job, but the user's code may raise `Stopped` itself
            return Lost(call.job)
        return (Rejected if kind == Kind.REJECTED else Failed)(call.job, handle.number, answer)

    def _decoded(self, answer: Any) -> Vector:
        if self._code is None:
            update: Vector = answer
            return update
        used = len(self._taken)  # by the updates before this one, which the server may still read
        if len(self._buffers) == used:
            self._buffers.append(np.empty(self._store.n, self._store.dtype))
        self._code.decode(answer, self._buffers[used])
        return self._buffers[used]

    def close(self) -> None:
        """Drop all references, so that Ray frees what they refer to."""
        self._taken.clear()
        self._calls.clear()
