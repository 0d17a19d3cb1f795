"""The program of a worker process: read a job, compute it at the shared point, write the update, report it.

A worker computes in one thread. It follows the rules in `shared_memory`: it reads the point that the job names, and
writes only to the place that came with the job. If it dies, the server learns so from the fork server, and never reads
that place.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from asyncsgd.core.errors import Stopped
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines._processes.shared_memory import JOB, NO_DEVICE, REPORT, Shared, write_note
from asyncsgd.engines.devices import tell
from asyncsgd.engines.job import JobRules, JobRunner, Kind

PATIENCE = 1e-4
"""Seconds for which a worker polls for its next job before it sleeps."""
SOON = 3e-4
"""A worker polls only if its last job came within this many seconds. It is longer than `PATIENCE`, as it includes the
time to wake up."""


@dataclass(frozen=True)
class WorkerSetup:
    """What a worker process needs: its number, its pipes, the shared memory, its device, and how it computes."""

    worker: int
    inbox: int
    outbox: int
    shared: Shared
    note: int
    """The place for the note that says why the worker cannot start."""
    device: str
    rules: JobRules


class StoppableRunner(JobRunner):
    """Computes a job until it is done, or until the server cancels it.

    A cancel comes in two parts: the server writes the job's number into shared memory, then the fork server sends
    SIGUSR1. The signal may come at any moment, also late, when this process computes another job. So the handler
    compares the number in memory with the job being computed, and raises only if they are equal.
    """

    def __init__(self, task: Any, work: Work, place: WorkerSetup) -> None:
        super().__init__(task, work, place.worker, place.rules)
        self._cancelled = place.shared.cancelled[0]
        self._job = self._place = -1  # the job being computed, and the place of its update

    def begin(self, job: int, place: int) -> None:
        """Set the number and the place of the next job."""
        self._next = job, place

    def compute(self, point: Vector, seed: int, out: Vector, steps: int | None, batch: int) -> Any:
        try:
            self._job, self._place = self._next
            self.stop()  # a signal that came before the line above had no effect
            return super().compute(point, seed, out, steps, batch)
        finally:
            self._job = -1  # a late signal must not interrupt the code that formats an error

    def stop(self, *_: Any) -> None:
        """Raise `Stopped` if the server cancelled the job being computed. This is the handler of SIGUSR1."""
        if self._job >= 0 and self._cancelled[self._place] == self._job:
            self._job = -1  # the signal is repeated until the job is answered: raise only once
            raise Stopped


def serve(place: WorkerSetup, task: Any, work: Work) -> None:
    """Compute jobs until the server closes the pipe."""
    shared = place.shared
    run = StoppableRunner(task, work, place)
    signal.signal(signal.SIGUSR1, run.stop)
    receive = _receiver(place.inbox)
    run.state(shared.updates[place.note])
    # This process owns its device: the fork server never opened it, as a GPU cannot be used on both sides of a fork.
    if problem := tell(task, place.device):
        write_note(shared.notes[place.note], problem)
        _report(place, Kind.READY, NO_DEVICE, 0.0)
        return
    _report(place, Kind.READY, -1, 0.0)
    while message := receive():
        job, seed, steps, batch, slot, target, used = JOB.unpack(message)
        run.settle(used)  # no job is being computed here, so a late signal has no effect
        run.begin(job, target)
        kind, text, seconds = run(shared.points[slot], seed, shared.updates[target], steps, batch)
        if kind is Kind.REJECTED or kind is Kind.FAILED:
            # Write the note before the report: the server reads it as soon as it has read the report.
            write_note(shared.notes[target], text)
        _report(place, kind, job, seconds)


def _receiver(inbox: int) -> Callable[[], bytes]:
    """Return a function that waits for the next job. It returns empty bytes once the server has closed the pipe.

    With small updates the next job comes at once, and waking a process costs more than applying an update. So the
    worker polls for a moment, and lets other processes run in between, before it sleeps. If the last job took longer to
    come, the worker sleeps at once, as polling takes the processor from the server.
    """
    os.set_blocking(inbox, False)
    sleeper = select.poll()
    sleeper.register(inbox, select.POLLIN)
    let_others_run = getattr(os, "sched_yield", lambda: time.sleep(0))

    soon = True

    def receive() -> bytes:
        nonlocal soon
        began = 0.0
        while True:
            try:
                message = os.read(inbox, JOB.size)
            except BlockingIOError:
                now = time.perf_counter()
                began = began or now
                if soon and now - began < PATIENCE:
                    let_others_run()
                else:
                    sleeper.poll()
            else:
                soon = not began or time.perf_counter() - began < SOON
                return message

    return receive


def _report(place: WorkerSetup, kind: Kind, job: int, seconds: float) -> None:
    try:
        os.write(place.outbox, REPORT.pack(kind, place.worker, job, seconds))
    except BrokenPipeError:
        os._exit(0)  # the server is gone
