"""The live worker processes, seen from the server: who has which job, who is ready, who died."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from contextlib import ExitStack

import numpy as np

from asyncsgd.core.events import Arrived, Assign, Command, Job, Joined, Left, Lost, Outcome, Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Crew, Died, EngineError, Failed, Report
from asyncsgd.engines.processes.engine import Processes
from asyncsgd.engines.processes.line import NurseryLine
from asyncsgd.engines.processes.memory import Slots
from asyncsgd.engines.processes.messages import JOB, NOTE, REPORT, Kind
from asyncsgd.engines.threads import limited
from asyncsgd.tasks.base import Task

AHEAD = 2
"""Jobs that a worker may hold: it computes one while the update of the one before is applied. Each has its own slot for
the update, so that job k + 2 is sent only after the update of job k was used."""

LEAST_TIMEOUT, LONGER = 300.0, 20.0
DEATHS_IN_A_ROW = 5
LOOK_AROUND = 0.1  # seconds


class Member:
    """One worker: its pipe, and its jobs in order."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.inbox = -1
        self.ready = False
        self.sent: deque[int] = deque()  # jobs at the worker, the first one being computed
        self.waiting: deque[tuple[Job, int]] = deque()  # (job, slot of its point): not sent yet
        self.unused = 0  # updates reported by the last poll: their slots are not free yet
        self.turn = 0  # which of its slots for updates comes next
        self.slots: dict[int, int] = {}  # job -> slot of its update
        self.since = 0.0  # when the job being computed began, or the start was asked for
        self.deaths = 0  # in a row, without a job done in between
        self.condemned = ""  # why we killed it
        self.retired = False


class ProcessCrew(Crew):
    """Worker processes that a nursery forks; jobs and reports are structs in pipes, vectors are shared memory."""

    def __init__(self, engine: Processes, task: Task, work: Work, x: Vector) -> None:
        self._engine = engine
        self._members = [Member(number) for number in range(engine.workers)]
        self._live: dict[int, Member] = {}  # job -> who has it
        self._longest = 0.0
        self._check_at = 0.0
        self._made = 0
        self._events: list[Report] = []
        self._closed = False
        self._n, self.dtype = x.shape[0], x.dtype
        self._points = Slots.new("asyncsgd-points", self._n, x.dtype)
        self._updates = Slots.new("asyncsgd-updates", self._n, x.dtype)
        self._notes = Slots.new("asyncsgd-notes", NOTE, np.uint8)
        self._cancelled = Slots.new("asyncsgd-cancelled", engine.workers, np.int64)
        self._cancelled[0][:] = -1
        self._outbox, self._outbox_writer = os.pipe()
        os.set_blocking(self._outbox, False)
        self._threads = ExitStack()
        # The server applies updates with one thread, so that the workers have the other processors.
        self._threads.enter_context(limited(1))
        try:
            self._line = NurseryLine(task, work, engine.start_timeout)
            self._poller = select.poll()
            self._poller.register(self._outbox, select.POLLIN)
            self._poller.register(self._line.descriptor, select.POLLIN)
            for member in self._members:
                self._fork(member)
            self._await_all()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------------------ for the run

    def allocate(self, n: int) -> Vector:
        buffer: Vector = self._points[self._made]
        self._made += 1
        return buffer

    def execute(self, command: Command) -> None:
        job = command.job
        member = self._members[job.worker]
        if isinstance(command, Assign):
            self._live[job.id] = member
            member.waiting.append((job, command.slot))
            if len(member.sent) + member.unused < AHEAD:
                self._send(member)
        elif self._live.pop(job.id, None) is not None:
            if job.id in member.sent:
                self._cancelled[0][job.worker] = job.id
                self._line.signal(job.worker, signal.SIGUSR1)
            else:
                member.waiting = deque(entry for entry in member.waiting if entry[0].id != job.id)

    def poll(self, timeout: float) -> list[Report]:
        for member in self._members:
            if member.unused:
                member.unused = 0
                self._send(member)
        events, self._events = self._events, []
        self._read_reports(events)
        now = time.monotonic()
        deadline = now + timeout
        while True:
            if now >= self._check_at:
                self._check_times(now)
                self._read_line(events)  # now and then, also while reports keep coming
            if events or now >= deadline:
                return events
            self._poller.poll(1000 * max(0.0, min(deadline, self._check_at) - now))
            self._read_line(events)
            self._read_reports(events)
            now = time.monotonic()

    def retire(self, worker: int) -> None:
        member = self._members[worker]
        member.retired = True
        self._forget_jobs(member)
        self._line.signal(worker, signal.SIGKILL)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_line"):
            self._line.close()
        for member in self._members:
            self._hang_up(member)
        os.close(self._outbox)
        os.close(self._outbox_writer)
        for slots in (self._points, self._updates, self._notes, self._cancelled):
            slots.close()
        self._threads.close()

    # ------------------------------------------------------------------------------------------ jobs

    def _send(self, member: Member) -> None:
        while member.waiting and len(member.sent) + member.unused < AHEAD and member.ready:
            job, slot = member.waiting.popleft()
            target = AHEAD * member.number + member.turn
            member.turn = (member.turn + 1) % AHEAD
            member.slots[job.id] = target
            if not member.sent:
                member.since = time.monotonic()
            member.sent.append(job.id)
            self._updates[target]  # the file must be long enough before the worker maps its place in it
            try:
                os.write(member.inbox, JOB.pack(job.id, job.seed, slot, target))
            except BrokenPipeError:
                return  # it died: the nursery is about to say so, and the job goes with it

    def _read_reports(self, events: list[Report]) -> None:
        while True:
            try:
                data = os.read(self._outbox, 1024 * REPORT.size)
            except BlockingIOError:
                return
            for kind, worker, job, seconds in REPORT.iter_unpack(data):
                self._reported(kind, self._members[worker], job, seconds, events)
            if len(data) < 1024 * REPORT.size:
                return

    def _reported(self, kind: int, member: Member, job: int, seconds: float, events: list[Report]) -> None:
        if kind == Kind.READY:
            member.ready = True
            if not member.retired:
                events.append(Joined(member.number))
            return
        member.sent.remove(job)
        target = member.slots.pop(job)
        member.since = time.monotonic()
        member.deaths = 0
        if self._live.pop(job, None) is None:  # cancelled, or its worker is retired: nobody waits for it
            self._send(member)
            return
        if kind == Kind.DONE:
            self._longest = max(self._longest, seconds)
            member.unused += 1
            events.append(Arrived(job, self._updates[target], member.number, checked=True))
            return
        if kind == Kind.FAILED:
            note = self._notes[member.number]
            length = int.from_bytes(note[:8].tobytes(), "little")
            events.append(Failed(job, member.number, note[8 : 8 + length].tobytes().decode(errors="replace")))
        else:  # not finite; a job stopped by a late signal is one the server had cancelled
            events.append(Lost(job, Outcome.REJECTED if kind == Kind.NOT_FINITE else Outcome.LOST))
        self._send(member)

    # ------------------------------------------------------------------------------------------ life and death

    def _fork(self, member: Member) -> None:
        reader, member.inbox = os.pipe()
        member.ready = False
        member.since = time.monotonic()
        request = {
            "do": "fork",
            "worker": member.number,
            "n": self._n,
            "dtype": self.dtype.name,
            "most": len(self._members),
            "threads": self._engine.threads,
            "slowdown": self._engine.slowdown[member.number] if self._engine.slowdown else 1.0,
            "seconds": self._engine.seconds[member.number] if self._engine.seconds else 0.0,
        }
        shared = [slots.descriptor for slots in (self._points, self._updates, self._notes, self._cancelled)]
        for slots, size in ((self._notes, member.number), (self._points, 0)):
            slots[size]
        try:
            self._line.send(request, [reader, self._outbox_writer, *shared])
        finally:
            os.close(reader)

    def _await_all(self) -> None:
        """Begin with everybody there, in order, so that equal runs begin equally."""
        deadline = time.monotonic() + self._engine.start_timeout
        events: list[Report] = []
        while not all(member.ready for member in self._members):
            left = deadline - time.monotonic()
            missing = [member.number for member in self._members if not member.ready]
            if left <= 0:
                fix = "pass a larger start_timeout if loading the task takes that long"
                raise EngineError(f"workers {missing} were not ready in {self._engine.start_timeout:g} s; {fix}")
            self._poller.poll(1000 * left)
            self._read_line(events)
            self._read_reports(events)
            for event in events:
                if isinstance(event, Died):
                    raise EngineError(f"worker {event.worker} died while starting: {event.reason}")
        self._events.append(Joined(range(len(self._members))))

    def _read_line(self, events: list[Report]) -> None:
        for answer in self._line.read():
            if "ended" in answer:
                self._read_reports(events)  # whatever it said before it died comes first
                self._ended(self._members[answer["ended"]], answer["status"], events)
        if self._line.lost and not self._closed:
            self._rebuild(events)

    def _ended(self, member: Member, status: int, events: list[Report]) -> None:
        was_ready = member.ready
        self._hang_up(member)
        self._forget_jobs(member)
        if member.retired:
            return
        events.append(Died(member.number, member.condemned or _explain(status)))
        if was_ready:
            events.append(Left(member.number))
        member.condemned = ""
        member.deaths += 1
        if member.deaths >= DEATHS_IN_A_ROW:
            raise EngineError(
                f"worker {member.number} died {member.deaths} times in a row without finishing a job, the last time "
                f"{_explain(status)}; if memory ran out, use fewer workers or a smaller batch"
            )
        if not self._line.lost:
            self._fork(member)

    def _rebuild(self, events: list[Report]) -> None:
        """The nursery died and took every worker with it: start over with another."""
        self._poller.unregister(self._line.descriptor)
        self._line = self._line.again()
        self._poller.register(self._line.descriptor, select.POLLIN)
        self._read_reports(events)
        for member in self._members:
            if not member.retired:
                self._ended(member, -signal.SIGKILL, events)

    def _hang_up(self, member: Member) -> None:
        member.ready = False
        if member.inbox >= 0:
            os.close(member.inbox)
            member.inbox = -1

    def _forget_jobs(self, member: Member) -> None:
        for job in (*member.sent, *(entry[0].id for entry in member.waiting)):
            self._live.pop(job, None)
        member.waiting.clear()
        if not member.ready:
            member.sent.clear()
            member.slots.clear()

    def _check_times(self, now: float) -> None:
        allowed = self._engine.job_timeout or max(LEAST_TIMEOUT, LONGER * self._longest)
        nearest = now + min(LOOK_AROUND, allowed / 4)
        for member in self._members:
            if member.retired or member.condemned or (member.ready and not member.sent):
                continue
            limit = allowed if member.ready else self._engine.start_timeout
            if now - member.since > limit:
                what = f"its job {member.sent[0]}" if member.ready else "its start"
                member.condemned = f"killed, because {what} took more than {limit:g} s"
                self._line.signal(member.number, signal.SIGKILL)
            else:
                nearest = min(nearest, member.since + limit + 0.001)
        self._check_at = nearest


def _explain(status: int) -> str:
    if status >= 0:
        return f"ended by itself with exit code {status}"
    hint = ", perhaps because memory ran out" if status == -signal.SIGKILL else ""
    return f"was killed by {signal.Signals(-status).name}{hint}"
