"""The live worker processes, seen from the server: pipes, shared memory and the fork server. Their life is `Lifecycle`.

Three kinds of processes take part, and each may touch different things:

- The *server* (this process) makes the pipes and the shared memory. It alone decides which place of the shared memory
  an update goes to, and it alone reads updates. It never sends a signal itself: only a parent can be sure that a
  process number still belongs to its child.
- The *fork server* (`nursery.py`, reached through `line.py`) starts workers, sends them signals, and reports how they
  ended. It touches neither jobs nor vectors. If it dies, the kernel kills all workers, and the server starts another.
- A *worker* reads points and writes one update at a time, into the place that came with its job, before it reports.

All workers write their reports into one pipe. A report is shorter than what a pipe writes in one piece, so reports
never mix, and those of one worker keep their order. The end of a process comes another way, through the fork server,
and may overtake its last reports: so the pipe is read before any death is believed.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import ExitStack
from typing import cast

from asyncsgd.core.errors import EngineError
from asyncsgd.core.events import Arrived, Assign, Command, Lost
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines._processes.engine import Processes
from asyncsgd.engines._processes.fork_client import NurseryLine
from asyncsgd.engines._processes.shared_memory import JOB, REPORT, Shared, read_note
from asyncsgd.engines.base import Failed, Rejected, Report, WorkerPool, limited
from asyncsgd.engines.job import Kind
from asyncsgd.engines.lifecycle import Kill, Lifecycle, Rules, Stage, Start, Stop
from asyncsgd.tasks.base import Task

# --------------------------------------------------------------------------------------------------------------
# What the server holds for one worker process: its pipe, and its places for updates.


AHEAD = 2
"""Jobs that a worker may hold: it computes one while the update of the one before is applied. Each has its own place
for the update, which is free again once the update was used or will never come."""


class WorkerHandle:
    """Written to by the pool alone.

    A place is always in one of three states: free, with a job that was sent (`Lifecycle` keeps it with the job), or
    unused, which means that its update was reported and the server may still read it. Only a free place is given to
    a job, so no worker writes where the server reads.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.inbox = -1
        self.places = range(AHEAD * number, AHEAD * (number + 1))
        self.free = list(self.places)
        self.unused: dict[int, int] = {}  # job -> place of its update, of those that the last poll reported

    def hang_up(self) -> None:
        """Close the pipe to the process, which then ends if it is idle."""
        if self.inbox >= 0:
            os.close(self.inbox)
            self.inbox = -1

    def forget(self) -> None:
        """Its process is gone, and with it the jobs. Updates that it has reported stay where they are."""
        self.hang_up()
        self.free = [place for place in self.places if place not in self.unused.values()]


def explain(status: int) -> str:
    """What an exit status says of a process that ended.

    >>> explain(3), explain(-11)
    ('ended by itself with exit code 3', 'was killed by SIGSEGV')
    """
    if status >= 0:
        return f"ended by itself with exit code {status}"
    hint = ", perhaps because memory ran out" if status == -signal.SIGKILL else ""
    known = -status in set(signal.Signals)  # most real-time signals have no name
    return f"was killed by {signal.Signals(-status).name if known else f'signal {-status}'}{hint}"


LOOK_AROUND = 0.1  # seconds
READY, DONE = int(Kind.READY), int(Kind.DONE)  # every report is compared with them: plain numbers take half the time


class ProcessPool(WorkerPool):
    """Worker processes that a fork server starts; jobs and reports are structs in pipes, vectors are shared memory."""

    def __init__(self, engine: Processes, task: Task, work: Work, x: Vector) -> None:
        self._engine = engine
        self._handles = [WorkerHandle(number) for number in range(engine.workers)]
        rules = Rules(job_timeout=engine.job_timeout, start_timeout=engine.start_timeout, ahead=AHEAD)
        self._life = Lifecycle(engine.workers, rules, time.monotonic())
        self._check_at = 0.0
        self._made = 0
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
            for handle in self._handles:
                self._fork(handle)
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
        if isinstance(command, Assign):
            if self._life.assign(command):
                self._send(self._handles[command.job.worker])
        elif (worker := self._life.cancel(command)) is not None:
            # First the mark, then the signal: its handler looks for the mark, and does nothing without it.
            job = command.job.id
            self._shared.cancelled[0][self._life.workers[worker].sent[job]] = job
            self._line.signal(worker, signal.SIGUSR1)

    def poll(self, timeout: float) -> list[Report]:
        life = self._life
        life.begin()
        for handle in self._handles:
            if handle.unused:
                handle.free += handle.unused.values()
                handle.unused.clear()
                self._send(handle)
        # Answers count before the clock is looked at: the server may have been away for longer than a job may take.
        self._read_reports()
        now = time.monotonic()
        deadline = now + timeout
        while True:
            if now >= self._check_at:
                self._look_around(now)
                self._read_line()  # now and then, also while reports keep coming
            if life.pending or now >= deadline:
                return life.take()
            for descriptor, _ in self._poller.poll(1000 * max(0.0, min(deadline, self._check_at) - now)):
                if descriptor == self._outbox:
                    self._read_reports()
                else:
                    self._read_line()
            now = time.monotonic()

    def used(self, report: Arrived) -> None:
        handle = self._handles[cast(int, report.worker)]
        place = handle.unused.pop(report.job, None)
        if place is not None:
            handle.free.append(place)
            self._send(handle)

    def retire(self, worker: int) -> None:
        self._life.dismiss(worker)
        self._line.signal(worker, signal.SIGKILL)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_line"):
            self._line.close()
        for handle in self._handles:
            handle.hang_up()
        os.close(self._outbox)
        os.close(self._outbox_writer)
        self._shared.close()
        self._threads.close()

    # ------------------------------------------------------------------------------------------ jobs

    def _send(self, handle: WorkerHandle) -> None:
        while handle.free and (assign := self._life.peek(handle.number)) is not None:
            job, place = assign.job, handle.free.pop()
            self._life.sent(handle.number, place, time.monotonic())
            try:
                os.write(handle.inbox, JOB.pack(job.id, job.seed, assign.slot, place))
            except BrokenPipeError:
                return  # it died: the fork server is about to report so, and the job goes with it

    def _read_reports(self) -> None:
        while True:
            try:
                data = os.read(self._outbox, 1024 * REPORT.size)
            except BlockingIOError:
                return
            for kind, worker, job, seconds in REPORT.iter_unpack(data):
                self._reported(kind, self._handles[worker], job, seconds)
            if len(data) < 1024 * REPORT.size:
                return

    def _reported(self, kind: int, handle: WorkerHandle, job: int, seconds: float) -> None:
        life, worker = self._life, handle.number
        now = time.monotonic()
        if kind == READY:
            life.ready(worker, now)
            return
        place, wanted = life.answered(worker, job, now, seconds if kind == DONE else None)
        if wanted and kind == DONE:
            handle.unused[job] = place
            life.report(Arrived(job, self._shared.updates[place], worker, seconds=seconds, checked=True))
            return
        if wanted and kind == Kind.REJECTED:
            life.report(Rejected(job, worker, read_note(self._shared.notes[place])))
        elif wanted and kind == Kind.FAILED:
            life.report(Failed(job, worker, read_note(self._shared.notes[place])))
        elif wanted:  # the user's code may raise `Stopped` itself
            life.report(Lost(job))
        handle.free.append(place)
        self._send(handle)

    # ------------------------------------------------------------------------------------------ life and death

    def _fork(self, handle: WorkerHandle) -> None:
        """Ask for a process. If the fork server is gone, the request is lost, and `_rebuild` asks again."""
        reader, handle.inbox = os.pipe()
        self._life.started(handle.number, time.monotonic())
        request = {"do": "fork", "worker": handle.number, "n": self._n, "dtype": self.dtype.name}
        request |= {"places": AHEAD * len(self._handles), "threads": self._engine.threads}
        request |= self._engine.pretence(handle.number)
        self._shared.make(handle.places)
        try:
            self._line.send(request, [reader, self._outbox_writer, *self._shared.descriptors])
        finally:
            os.close(reader)

    def _await_all(self) -> None:
        """Begin with every worker there, in order, so that equal runs begin equally."""
        deadline = time.monotonic() + self._engine.start_timeout
        while missing := [worker.number for worker in self._life.workers if worker.stage is not Stage.READY]:
            left = deadline - time.monotonic()
            if left <= 0:
                fix = "pass a larger start_timeout if loading the task takes that long"
                raise EngineError(f"workers {missing} were not ready in {self._engine.start_timeout:g} s; {fix}")
            self._poller.poll(1000 * left)
            self._read_line()
            self._read_reports()
        self._life.open()  # the first poll reports that they joined

    def _read_line(self) -> None:
        for answer in self._line.read():
            if "ended" in answer:
                self._read_reports()  # what it reported before it died comes first
                self._ended(self._handles[answer["ended"]], explain(answer["status"]))
        if self._line.lost and not self._closed:
            self._rebuild()

    def _ended(self, handle: WorkerHandle, reason: str) -> None:
        if not self._life.opened:
            raise EngineError(f"worker {handle.number} died while starting: {reason}")
        handle.forget()
        if self._life.died(handle.number, reason, time.monotonic()) and not self._line.lost:
            self._fork(handle)

    def _rebuild(self) -> None:
        """Start another fork server: the one before died, and took every worker with it."""
        self._poller.unregister(self._line.descriptor)
        self._line = self._line.again()
        self._poller.register(self._line.descriptor, select.POLLIN)
        self._read_reports()  # as for a single death: every worker is dead by now, and has said all it will say
        for handle, worker in zip(self._handles, self._life.workers, strict=True):
            if worker.stage is not Stage.ABSENT:
                self._ended(handle, explain(-signal.SIGKILL))
        self._look_around(time.monotonic())  # starts those that ended just before, when nothing could be started

    def _look_around(self, now: float) -> None:
        for action in self._life.tick(now):
            match action:
                case Start(worker=worker):
                    if not self._line.lost:
                        self._fork(self._handles[worker])
                case Kill(worker=worker, reason=reason):
                    # It is dead once the fork server says so; until then it may still answer.
                    self._line.signal(worker, signal.SIGKILL)
                    self._life.condemn(worker, reason)
                case Stop(worker=worker):
                    # The signal may have come just before a system call that waits.
                    self._line.signal(worker, signal.SIGUSR1)
        self._check_at = now + min(LOOK_AROUND, self._life.allowed / 4)
