"""The server's desk: which calls to workers are unanswered, and the answers in order.

Every job is one call of an actor's method, and Ray gives back a reference at once. Ray runs the calls of one actor in
the order in which they were made, but an answer that lies on another node may become readable before an older one. The
desk puts them in order again: it hands on an answer once all calls before it, of the same worker, have been answered.

If a worker dies, Ray answers all its open calls with an error, one after the other. The first error ends the worker's
life: `drop` forgets its other calls, so that one death is reported once. Answers to older calls come before the error,
unless their node took them along. Everything here is called by the thread that polls.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from asyncsgd.core.events import Arrived, Assign, Cancel, Lost
from asyncsgd.core.vectors import Vector
from asyncsgd.engines._ray.handle import Call, WorkerHandle
from asyncsgd.engines._ray.vector_store import Post
from asyncsgd.engines.base import Failed, Rejected, Report
from asyncsgd.engines.compression import Parcel, Unpacking
from asyncsgd.engines.job import Kind
from asyncsgd.engines.lifecycle import Lifecycle

AT_ONCE = 16
"""Answers that one poll takes; more would hold that many updates in memory."""


class Desk:
    """Jobs of a worker are sent and answered first in, first out."""

    def __init__(self, post: Post, life: Lifecycle, transport: str | None) -> None:
        self._post, self._life = post, life
        self._unpacking = None if transport is None else Unpacking(transport)
        self._lent: dict[int, tuple[int, int]] = {}  # job that the server waits for -> worker, slot of its point
        self._calls: dict[Any, Call] = {}  # reference -> call, oldest first
        self._taken: list[Call] = []  # whose updates the last poll reported
        self._held_back: dict[WorkerHandle, None] = {}  # their jobs wait until the store has room, one each in turn
        self._buffers: list[Vector] = []  # for updates that come in 16 bits

    def open(self, ray: Any) -> None:
        """The cluster is there."""
        self._ray = ray

    # ------------------------------------------------------------------------------------------ from the server

    def assign(self, member: WorkerHandle, command: Assign) -> None:
        """Another job for this worker, if it is present."""
        if self._life.assign(command):
            self._lent[command.job.id] = member.number, command.slot
            self._post.lend(command)
            self.send(member)

    def cancel(self, command: Cancel) -> None:
        """The server does not want this one. If it runs already, it runs on, and its answer is dropped."""
        self._life.cancel(command)
        self._let_go(command.job.id)

    def make_room(self) -> None:
        """The updates that were reported have been used."""
        taken, self._taken = self._taken, []
        for call in taken:
            self._post.used(call)
            if call.place in call.member.unused:  # else it has died since, and has other places now
                call.member.unused.remove(call.place)
                call.member.free.append(call.place)
        self._serve()
        for call in taken:
            self.send(call.member)

    def drop(self, member: WorkerHandle) -> None:
        """This worker is gone, and its jobs are not heard of again."""
        for reference, call in member.calls.items():
            self._calls.pop(reference, None)
            self._post.answered(call)
            self._post.used(call)
        for job in [job for job, (worker, _) in self._lent.items() if worker == member.number]:
            self._let_go(job)
        self._held_back.pop(member, None)
        member.forget()

    def _let_go(self, job: int) -> None:
        """The server does not wait for this job any more, if it did: its slot may hold another point."""
        if job in self._lent:
            self._post.give_back(self._lent.pop(job)[1])

    # ------------------------------------------------------------------------------------------ to the workers

    def send(self, member: WorkerHandle) -> None:
        """As many of its jobs as it may have at once; where they need the store, behind those that wait for it."""
        while self._may_be_sent(member):
            if (self._held_back and self._post.travels(member)) or not self._send_one(member):
                self._held_back[member] = None
                return

    def _serve(self) -> None:
        """Those that were held back, a job each and then the next, as long as there is room."""
        while self._held_back:
            member = next(iter(self._held_back))
            if self._may_be_sent(member) and not self._send_one(member):
                return
            del self._held_back[member]
            if self._may_be_sent(member):
                self._held_back[member] = None

    def _may_be_sent(self, member: WorkerHandle) -> bool:
        """Whether a job waits for it, and a place for its update is free."""
        return bool(member.free) and self._life.peek(member.number) is not None

    def _send_one(self, member: WorkerHandle) -> bool:
        """Send the next job; False if the store has no room for its point. Then nothing has changed."""
        assign = self._life.peek(member.number)
        assert assign is not None
        call = Call(member, "compute", assign.job.id, member.free[-1])
        point = self._post.pack(assign, member, call)
        if point is None:
            return False
        member.free.pop()
        used = self._life.sent(member.number, None, time.monotonic())
        self.note(call, member.compute.remote(assign.job.seed, point, call.place, used))
        return True

    def note(self, call: Call, reference: Any) -> None:
        """A call was made."""
        self._calls[reference] = call.member.calls[reference] = call

    # ------------------------------------------------------------------------------------------ from the workers

    def answers(self, seconds: float) -> Iterator[tuple[Call, Any]]:
        """The calls that are answered, with what Ray gives for them: a value, or an error if the worker is gone."""
        for reference in self._wait(seconds):
            call = self._calls.pop(reference, None)
            if call is None:
                continue  # of a worker that an answer before this one has shown to be gone
            call.reference = reference
            calls = call.member.calls
            while calls:  # large answers can overtake each other between nodes: in order, all the same
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

    def has_answered(self, member: WorkerHandle) -> bool:
        """Whether an answer of this worker lies somewhere on the cluster, and has not been read yet."""
        found, _ = self._ray.wait(list(member.calls), num_returns=1, timeout=0, fetch_local=False)
        return bool(found)

    def _wait(self, seconds: float) -> list[Any]:
        """The references that are answered, oldest first; waits for the first one."""
        references = list(self._calls)
        if not references:
            time.sleep(seconds)  # nobody has anything to do: until it is time to look around
            return []
        # Those that are there already, in the order of their calls; so whoever is answered late is not passed over.
        found, _ = self._ray.wait(references, num_returns=min(AT_ONCE, len(references)), timeout=0)
        if not found and seconds > 0:
            found, _ = self._ray.wait(references, num_returns=1, timeout=seconds)
        return list(found)

    def computed(self, call: Call, kind: int, answer: Any, seconds: float) -> Report | None:
        """What to report of a job; None: the job was cancelled."""
        member = call.member
        self._post.answered(call)
        took = seconds if kind == Kind.DONE else None
        _, wanted = self._life.answered(member.number, call.job, time.monotonic(), took)
        self._let_go(call.job)
        if wanted and kind == Kind.DONE:
            self._taken.append(call)
            member.unused.append(call.place)
            update = self._post.updates[call.place] if member.shares else self._unpacked(answer)
            return Arrived(call.job, update, member.number, seconds=seconds, checked=True)
        self._post.used(call)
        member.free.append(call.place)
        self._serve()
        self.send(member)
        if not wanted:
            return None
        if kind == Kind.STOPPED:  # nobody stops a job here, but the user's code may raise `Stopped` itself
            return Lost(call.job)
        return (Rejected if kind == Kind.REJECTED else Failed)(call.job, member.number, answer)

    def _unpacked(self, answer: Any) -> Vector:
        if self._unpacking is None:
            update: Vector = answer
            return update
        used = len(self._taken)  # this one included
        if len(self._buffers) < used:
            self._buffers.append(np.empty(self._post.n, self._post.dtype))
        self._unpacking(Parcel(*answer), self._buffers[used - 1])
        return self._buffers[used - 1]

    def close(self) -> None:
        """Let go of everything that Ray holds for us."""
        self._taken.clear()
        self._calls.clear()
