"""What a worker process does: read a job, compute it at the shared point, write the update, say so."""

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
from asyncsgd.engines._processes.shared_memory import JOB, REPORT, Shared, write_note
from asyncsgd.engines.job import JobRules, JobRunner, Kind

PATIENCE = 1e-4
"""Seconds that a worker looks for its next job before it sleeps."""
SOON = 3e-4
"""Seconds that the last job may have taken to come if it is to look at all: more, as waking up is part of them."""


@dataclass(frozen=True)
class Place:
    """Where a worker sits: its number, its pipes, the memory it shares, and how it computes."""

    worker: int
    inbox: int
    outbox: int
    shared: Shared
    rules: JobRules


class StoppableRunner(JobRunner):
    """Computes a job until it is done, or until the server cancels it.

    A cancel comes in two parts: the server writes the job's number into shared memory, then the fork server sends
    SIGUSR1. The signal may come at any moment, also late, when this process computes another job. So the handler
    believes only the number in memory, and raises only while that very job is being computed.
    """

    def __init__(self, task: Any, work: Work, place: Place) -> None:
        super().__init__(task, work, place.worker, place.rules)
        self._cancelled = place.shared.cancelled[0]
        self._job = self._place = -1  # being computed, and the place of its update

    def begin(self, job: int, place: int) -> None:
        """Say which job comes next."""
        self._next = job, place

    def compute(self, point: Vector, seed: int, out: Vector) -> Any:
        try:
            self._job, self._place = self._next
            self.stop()  # a signal that came before the line above found no job
            return super().compute(point, seed, out)
        finally:
            self._job = -1  # the code that writes down an error is not to be stopped in the middle of it

    def stop(self, *_: Any) -> None:
        """Handle SIGUSR1."""
        if self._job >= 0 and self._cancelled[self._place] == self._job:
            self._job = -1  # the signal is sent again until the job is answered: once is enough
            raise Stopped


def serve(place: Place, task: Any, work: Work) -> None:
    """Compute jobs until the server hangs up."""
    shared = place.shared
    run = StoppableRunner(task, work, place)
    signal.signal(signal.SIGUSR1, run.stop)
    receive = _receiver(place.inbox)
    _say(place, Kind.READY, -1, 0.0)
    while message := receive():
        job, seed, slot, target = JOB.unpack(message)
        run.begin(job, target)
        kind, text, seconds = run(shared.points[slot], seed, shared.updates[target])
        if kind is Kind.REJECTED or kind is Kind.FAILED:
            # Before the report: the server reads the note as soon as it has read the report.
            write_note(shared.notes[target], text)
        _say(place, kind, job, seconds)


def _receiver(inbox: int) -> Callable[[], bytes]:
    """A function that waits for the next job; empty once the server has hung up.

    Where updates are small, the next job is there in no time, and waking a process costs more than applying its update:
    so it looks for a moment, letting others run in between, before it sleeps. Where the last job took longer to come it
    sleeps at once, as looking takes the processor from the server.
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


def _say(place: Place, kind: Kind, job: int, seconds: float) -> None:
    try:
        os.write(place.outbox, REPORT.pack(kind, place.worker, job, seconds))
    except BrokenPipeError:
        os._exit(0)  # the server is gone
