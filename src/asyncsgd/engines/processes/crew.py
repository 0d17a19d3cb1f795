"""The live worker processes, seen from the server: who has which job, who is ready, who died."""

from __future__ import annotations

import os
import select
import signal
import time
from collections import deque
from contextlib import ExitStack
from typing import cast

from asyncsgd.core.errors import EngineError
from asyncsgd.core.events import Arrived, Assign, Command, Joined, Left, Lost, Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Crew, Died, Failed, Rejected, Report
from asyncsgd.engines.processes.engine import Processes
from asyncsgd.engines.processes.line import NurseryLine
from asyncsgd.engines.processes.member import AHEAD, Member, explain
from asyncsgd.engines.processes.messages import JOB, REPORT, Kind, read_note
from asyncsgd.engines.processes.shared import Shared
from asyncsgd.engines.threads import limited
from asyncsgd.tasks.base import Task

LEAST_TIMEOUT, LONGER = 300.0, 20.0
DEATHS_IN_A_ROW = 5
LOOK_AROUND = 0.1  # seconds
READY, DONE = int(Kind.READY), int(Kind.DONE)  # every report is compared with them: plain numbers take half the time


class ProcessCrew(Crew):
    """Worker processes that a nursery forks; jobs and reports are structs in pipes, vectors are shared memory."""

    def __init__(self, engine: Processes, task: Task, work: Work, x: Vector) -> None:
        self._engine = engine
        self._members = [Member(number) for number in range(engine.workers)]
        self._live: dict[int, Member] = {}  # job -> who has it
        self._longest = 0.0
        self._check_at = 0.0
        self._made = 0
        self._late: list[Member] = []  # ready again, but left in the batch before: they join with the next
        self._closed = False
        self._n, self.dtype = x.shape[0], x.dtype
        self._shared = Shared.new(self._n, x.dtype, AHEAD * engine.workers)
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
        buffer: Vector = self._shared.points[self._made]
        self._made += 1
        return buffer

    def execute(self, command: Command) -> None:
        job = command.job
        member = self._members[job.worker]
        if isinstance(command, Assign):
            if member.present:  # else the server is about to hear that it left, and the job goes with it
                self._live[job.id] = member
                member.waiting.append((job, command.slot))
                self._send(member)
        elif self._live.pop(job.id, None) is not None:
            place = member.sent.get(job.id)
            if place is None:
                member.waiting = deque(entry for entry in member.waiting if entry[0].id != job.id)
            else:
                self._shared.cancelled[0][place] = job.id
                self._line.signal(job.worker, signal.SIGUSR1)

    def poll(self, timeout: float) -> list[Report]:
        events: list[Report] = []
        if self._late:
            self._join(self._late, events)
            self._late = []
        for member in self._members:
            if member.unused:
                member.free += member.unused.values()
                member.unused.clear()
                if member.waiting:
                    self._send(member)
        self._read_reports(events)
        now = time.monotonic()
        deadline = now + timeout
        while True:
            if now >= self._check_at:
                self._check_times(now)
                self._read_line(events)  # now and then, also while reports keep coming
            if events or now >= deadline:
                return events
            for descriptor, _ in self._poller.poll(1000 * max(0.0, min(deadline, self._check_at) - now)):
                if descriptor == self._outbox:
                    self._read_reports(events)
                else:
                    self._read_line(events)
            now = time.monotonic()

    def used(self, report: Arrived) -> None:
        member = self._members[cast(int, report.worker)]
        place = member.unused.pop(report.job, None)
        if place is not None:
            member.free.append(place)
            if member.waiting:
                self._send(member)

    def retire(self, worker: int) -> None:
        member = self._members[worker]
        member.retired, member.present = True, False
        self._late = [other for other in self._late if other is not member]
        self._drop_jobs(member)
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
        self._shared.close()
        self._threads.close()

    # ------------------------------------------------------------------------------------------ jobs

    def _send(self, member: Member) -> None:
        while member.waiting and member.free and member.ready:
            job, slot = member.waiting.popleft()
            place = member.free.pop()
            if not member.sent:
                member.since = time.monotonic()
            member.sent[job.id] = place
            try:
                os.write(member.inbox, JOB.pack(job.id, job.seed, slot, place))
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
        if kind == READY:
            self._is_ready(member, events)
            return
        place = member.sent.pop(job)
        member.since = time.monotonic()
        member.deaths = 0
        wanted = self._live.pop(job, None) is not None  # else cancelled, or its worker is retired
        if wanted and kind == DONE:
            if seconds > self._longest:
                self._longest = seconds
            member.unused[job] = place
            events.append(Arrived(job, self._shared.updates[place], member.number, seconds=seconds, checked=True))
            return
        if wanted and kind == Kind.REJECTED:
            events.append(Rejected(job, member.number, read_note(self._shared.notes[place])))
        elif wanted and kind == Kind.FAILED:
            events.append(Failed(job, member.number, read_note(self._shared.notes[place])))
        elif wanted:  # the user's code may raise `Stopped` itself
            events.append(Lost(job))
        member.free.append(place)
        self._send(member)

    # ------------------------------------------------------------------------------------------ life and death

    def _fork(self, member: Member) -> None:
        reader, member.inbox = os.pipe()
        member.ready = False
        member.since = time.monotonic()
        request = {"do": "fork", "worker": member.number, "n": self._n, "dtype": self.dtype.name}
        request |= {"places": AHEAD * len(self._members), "threads": self._engine.threads}
        request |= self._engine.pretence(member.number)
        self._shared.make(member.places)
        try:
            self._line.send(request, [reader, self._outbox_writer, *self._shared.descriptors])
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
        for member in self._members:
            member.present = False
        self._late = list(self._members)  # the first poll says that they are there

    def _is_ready(self, member: Member, events: list[Report]) -> None:
        member.ready = True
        if member.retired:
            return
        if Left(member.number) in events:  # a job for the one that left must not be taken for one of this one
            self._late.append(member)
        else:
            self._join([member], events)

    def _join(self, members: list[Member], events: list[Report]) -> None:
        for member in members:
            member.present = True
        events.append(Joined(member.number for member in members))

    def _read_line(self, events: list[Report]) -> None:
        for answer in self._line.read():
            if "ended" in answer:
                self._read_reports(events)  # whatever it said before it died comes first
                self._ended(self._members[answer["ended"]], answer["status"], events)
        if self._line.lost and not self._closed:
            self._rebuild(events)

    def _ended(self, member: Member, status: int, events: list[Report]) -> None:
        was_present = member.present
        self._hang_up(member)
        self._drop_jobs(member)
        member.forget()
        if member in self._late:
            self._late.remove(member)
        if member.retired:
            return
        reason, member.condemned = member.condemned or explain(status), ""
        events.append(Died(member.number, reason))
        if was_present:
            events.append(Left(member.number))
        member.deaths += 1
        if member.deaths >= DEATHS_IN_A_ROW:
            raise EngineError(
                f"worker {member.number} died {member.deaths} times in a row without finishing a job: at last it "
                f"{reason}; if memory ran out, use fewer workers or a smaller batch"
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
        if member.inbox >= 0:
            os.close(member.inbox)
            member.inbox = -1

    def _drop_jobs(self, member: Member) -> None:
        for job in (*member.sent, *(entry[0].id for entry in member.waiting)):
            self._live.pop(job, None)
        member.waiting.clear()

    def _check_times(self, now: float) -> None:
        allowed = self._engine.job_timeout or max(LEAST_TIMEOUT, LONGER * self._longest)
        nearest = now + min(LOOK_AROUND, allowed / 4)
        for member in self._members:
            due = member.due(allowed, self._engine.start_timeout)
            if due < now:
                self._line.signal(member.number, signal.SIGKILL)
                member.condemn(allowed if member.ready else self._engine.start_timeout)
            else:
                nearest = min(nearest, due + 0.001)
            if member.sent and member.first not in self._live and not member.retired:
                # Cancelled, but still there: the signal may have come just before a system call that waits.
                self._line.signal(member.number, signal.SIGUSR1)
        self._check_at = nearest
