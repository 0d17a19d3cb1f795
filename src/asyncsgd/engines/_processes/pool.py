"""The server's side of the worker processes: pipes, shared memory and the fork server. `Lifecycle` makes the decisions.

Three kinds of processes take part, and each may touch different things:

- The *server* (this process) makes the pipes and the shared memory. It alone decides which place of the shared memory
  an update goes to, and it alone reads updates. It never sends a signal itself: only a parent can be sure that a
  process id still belongs to its child.
- The *fork server* (`fork_server.py`, reached through `fork_client.py`) starts workers, sends them signals, and reports
  how they ended. It touches neither jobs nor vectors. If it dies, the kernel kills all workers, and the server starts
  another one.
- A *worker* reads points and writes one update at a time, into the place that came with its job, before it reports.

All workers write their reports into one pipe. A pipe writes a message as short as a report in one piece, so reports
never mix, and those of one worker keep their order. The end of a process is reported on another way, through the fork
server, and may overtake the worker's last reports. So the pool reads the pipe before it handles any death.
"""

from __future__ import annotations

import os
import select
import signal
import time
from contextlib import ExitStack
from typing import cast

from asyncsgd.core.errors import BadParameter, EngineError
from asyncsgd.core.events import Arrived, Assign, Command, Lost
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines._processes import Processes
from asyncsgd.engines._processes.fork_client import ForkClient
from asyncsgd.engines._processes.shared_memory import JOB, NO_DEVICE, REPORT, Shared, read_note
from asyncsgd.engines.base import Failed, Rejected, Report, WorkerPool, example_counter, limited
from asyncsgd.engines.devices import visible_gpus
from asyncsgd.engines.job import Kind
from asyncsgd.engines.lifecycle import Kill, Lifecycle, Rules, Stage, Start, Stop
from asyncsgd.tasks.base import Task

AHEAD = 2
"""Jobs that a worker may hold: it computes one while the server applies the update of the job before. Each job has its
own place for the update. The place is free again once the server has used the update, or no update will come."""


class WorkerHandle:
    """The server's data about one worker process: its pipe and its places for updates. Only the pool changes it.

    A place is always in one of three states: free, with a job that was sent (`Lifecycle` keeps it with the job), or
    unused, which means that its update was reported and the server may still read it. Only a free place is given to
    a job, so no worker writes where the server reads.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.inbox = -1
        self.places = range(AHEAD * number, AHEAD * (number + 1))
        self.free = list(self.places)
        self.unused: dict[int, int] = {}  # job -> place, for updates that the last poll reported
        self.examples: dict[int, int | None] = {}  # job that was sent -> its rows of data, if the task counts them

    def close_pipe(self) -> None:
        """Close the pipe to the process, which ends once it has no job to compute."""
        if self.inbox >= 0:
            os.close(self.inbox)
            self.inbox = -1

    def forget(self) -> None:
        """Forget the dead process and its jobs. Updates that it has reported keep their places."""
        self.close_pipe()
        self.examples.clear()
        self.free = [place for place in self.places if place not in self.unused.values()]


def explain(status: int) -> str:
    """Describe how a process ended, given its exit status.

    >>> explain(3), explain(-11)
    ('ended by itself with exit code 3', 'was killed by SIGSEGV')
    """
    if status >= 0:
        return f"ended by itself with exit code {status}"
    hint = ", perhaps because memory ran out" if status == -signal.SIGKILL else ""
    known = -status in set(signal.Signals)  # most real-time signals have no name
    return f"was killed by {signal.Signals(-status).name if known else f'signal {-status}'}{hint}"


CHECK_INTERVAL = 0.1  # seconds
READY, DONE = int(Kind.READY), int(Kind.DONE)  # compared with every report: plain integers take half the time


class ProcessPool(WorkerPool):
    """Worker processes that a fork server starts. Pipes carry jobs and reports; shared memory holds the vectors."""

    def __init__(self, engine: Processes, task: Task, work: Work, x: Vector) -> None:
        self._engine = engine
        self._devices = engine.devices_for(task)  # raises before anything is started
        self._handles = [WorkerHandle(number) for number in range(engine.workers)]
        # A worker that keeps state needs the verdict on its last job before it begins the next one.
        self._keeps = work.keeps
        ahead = 1 if work.keeps else AHEAD
        rules = Rules(engine.job_timeout, engine.start_timeout, ahead, steps=work.steps)
        self._life = Lifecycle(engine.workers, rules, time.monotonic())
        self._count = example_counter(task, work)
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
            self._forks = ForkClient(task, work, x.dtype.name, engine.start_timeout)
            self._poller = select.poll()
            self._poller.register(self._outbox, select.POLLIN)
            self._poller.register(self._forks.descriptor, select.POLLIN)
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
            # First write the number, then send the signal: the worker's handler does nothing without the number.
            job = command.job.id
            self._shared.cancelled[0][self._life.workers[worker].sent[job]] = job
            self._forks.signal(worker, signal.SIGUSR1)

    def poll(self, timeout: float) -> list[Report]:
        life = self._life
        life.begin()
        for handle in self._handles:
            if handle.unused:
                handle.free += handle.unused.values()
                handle.unused.clear()
                self._send(handle)
        # Read answers before looking at the clock: the server may have been busy for longer than a job may take.
        self._read_reports()
        now = time.monotonic()
        deadline = now + timeout
        while True:
            if now >= self._check_at:
                self._check_times(now)
                self._read_forks()  # periodically, so that a steady flow of reports does not delay deaths
            if life.pending or now >= deadline:
                return life.take()
            for descriptor, _ in self._poller.poll(1000 * max(0.0, min(deadline, self._check_at) - now)):
                if descriptor == self._outbox:
                    self._read_reports()
                else:
                    self._read_forks()
            now = time.monotonic()

    def used(self, report: Arrived, applied: bool) -> None:
        handle = self._handles[cast(int, report.worker)]
        if self._keeps:
            self._life.judged(handle.number, report.job, applied)  # before the next job is sent
        place = handle.unused.pop(report.job, None)
        if place is not None:
            handle.free.append(place)
            self._send(handle)

    def retire(self, worker: int) -> None:
        self._life.dismiss(worker)
        self._forks.signal(worker, signal.SIGKILL)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if hasattr(self, "_forks"):
            self._forks.close()
        for handle in self._handles:
            handle.close_pipe()
        os.close(self._outbox)
        os.close(self._outbox_writer)
        self._shared.close()
        self._threads.close()

    # ------------------------------------------------------------------------------------------ jobs

    def _send(self, handle: WorkerHandle) -> None:
        while handle.free and (assign := self._life.peek(handle.number)) is not None:
            job, place = assign.job, handle.free.pop()
            used = self._life.sent(handle.number, place, time.monotonic())
            if self._count is not None:
                handle.examples[job.id] = self._count(job)
            try:
                os.write(handle.inbox, JOB.pack(job.id, job.seed, job.steps, job.batch, assign.slot, place, used))
            except BrokenPipeError:
                return  # the worker died: the fork server is about to report it, and the job is dropped then

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
            if job == NO_DEVICE:
                self._has_no_device(handle, read_note(self._shared.notes[handle.places[0]]))
            else:
                life.ready(worker, now)
            return
        place, wanted = life.answered(worker, job, now, seconds if kind == DONE else None)
        examples = handle.examples.pop(job, None)
        if wanted and kind == DONE:
            handle.unused[job] = place
            life.report(Arrived(job, self._shared.updates[place], worker, examples, seconds, checked=True))
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
        """Request a process. If the fork server is dead, the request is lost, and `_rebuild` repeats it.

        The new process gets a new pipe. Jobs for a process that died must not reach its replacement.
        """
        reader, handle.inbox = os.pipe()
        self._life.started(handle.number, time.monotonic())
        request = {"do": "fork", "worker": handle.number, "n": self._n, "dtype": self.dtype.name}
        request |= {"places": AHEAD * len(self._handles), "threads": self._engine.threads}
        request |= {"note": handle.places[0], "device": self._devices[handle.number]}
        request |= self._engine.delays(handle.number)
        self._shared.make(handle.places)
        try:
            self._forks.send(request, [reader, self._outbox_writer, *self._shared.descriptors])
        finally:
            os.close(reader)

    def _has_no_device(self, handle: WorkerHandle, problem: str) -> None:
        """End the start, or record why a replacement dies: its process ends by itself."""
        device = self._devices[handle.number]
        if not self._life.opened:
            fix = f"pass devices that this machine has (GPUs that PyTorch sees: {visible_gpus()}), or devices='cpu'"
            raise BadParameter("devices", device, f"cannot be used by worker {handle.number} ({problem})", fix)
        self._life.condemn(handle.number, f"cannot use the device {device} ({problem})")

    def _await_all(self) -> None:
        """Wait until every worker is ready. All join in one report, in order, so that equal runs begin equally."""
        deadline = time.monotonic() + self._engine.start_timeout
        while missing := [worker.number for worker in self._life.workers if worker.stage is not Stage.READY]:
            left = deadline - time.monotonic()
            if left <= 0:
                fix = "pass a larger start_timeout if loading the task takes that long"
                raise EngineError(f"workers {missing} were not ready in {self._engine.start_timeout:g} s; {fix}")
            self._poller.poll(1000 * left)
            self._read_forks()
            self._read_reports()
        self._life.open()  # the first poll reports that they joined

    def _read_forks(self) -> None:
        for answer in self._forks.read():
            if "ended" in answer:
                self._read_reports()  # the worker's last reports come before its death
                self._ended(self._handles[answer["ended"]], explain(answer["status"]))
        if self._forks.lost and not self._closed:
            self._rebuild()

    def _ended(self, handle: WorkerHandle, reason: str) -> None:
        if not self._life.opened:
            raise EngineError(f"worker {handle.number} died while starting: {reason}")
        handle.forget()
        if self._life.died(handle.number, reason, time.monotonic()) and not self._forks.lost:
            self._fork(handle)

    def _rebuild(self) -> None:
        """Start another fork server, as the last one died and every worker with it.

        The kernel killed the workers when the fork server died, long before the next one has loaded the task. So the
        pipe holds every report that these workers will ever write, and is read before their deaths are handled.
        """
        self._poller.unregister(self._forks.descriptor)
        self._forks.restart()
        self._poller.register(self._forks.descriptor, select.POLLIN)
        self._read_reports()
        for handle, worker in zip(self._handles, self._life.workers, strict=True):
            if worker.stage is not Stage.ABSENT:
                self._ended(handle, explain(-signal.SIGKILL))
        self._check_times(time.monotonic())  # start workers that died just before, when no fork server was there

    def _check_times(self, now: float) -> None:
        for action in self._life.tick(now):
            match action:
                case Start(worker=worker):
                    if not self._forks.lost:
                        self._fork(self._handles[worker])
                case Kill(worker=worker, reason=reason):
                    # The worker may still answer until the fork server reports its death.
                    self._forks.signal(worker, signal.SIGKILL)
                    self._life.condemn(worker, reason)
                case Stop(worker=worker):
                    # Repeat the signal: the first one may have come just before a system call that waits.
                    self._forks.signal(worker, signal.SIGUSR1)
        self._check_at = now + min(CHECK_INTERVAL, self._life.allowed / 4)
