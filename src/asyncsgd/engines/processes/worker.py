"""What a worker process does: read a job, compute it at the shared point, write the update, say so."""

from __future__ import annotations

import os
import select
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadUpdate, Stopped
from asyncsgd.core.fit import check_update
from asyncsgd.core.work import Gradient, Work
from asyncsgd.engines.processes.messages import JOB, REPORT, Kind, write_note
from asyncsgd.engines.processes.shared import Shared
from asyncsgd.engines.threads import limited

PATIENCE = 1e-4
"""Seconds that a worker looks for its next job before it sleeps."""
SOON = 3e-4
"""Seconds that the last job may have taken to come if it is to look at all: more, as waking up is part of them."""


@dataclass(frozen=True)
class Place:
    """Where a worker sits: its number, its pipes, the memory it shares, and how slow it shall pretend to be."""

    worker: int
    inbox: int
    outbox: int
    shared: Shared
    threads: int
    slowdown: float
    seconds: float


def serve(place: Place, task: Any, work: Work) -> None:
    """Compute jobs until the server hangs up."""
    with limited(place.threads):
        _serve(place, task, work)


def _serve(place: Place, task: Any, work: Work) -> None:
    into = getattr(task, "update_into", None) if isinstance(work, Gradient) else None
    current = [-1, -1]  # the job being computed, and the place of its update
    shared = place.shared
    cancelled = shared.cancelled[0]

    def stop(*_: Any) -> None:
        job, target = current
        if job >= 0 and cancelled[target] == job:
            current[0] = -1  # once is enough
            raise Stopped

    def compute(job: int, seed: int, slot: int, target: int) -> None:
        point, out = shared.points[slot], shared.updates[target]
        point.flags.writeable = False
        started = time.perf_counter()
        try:
            current[:] = job, target
            stop()  # a signal that came before this line found nobody
            if into is not None:
                into(point, place.worker, seed, out)
                update = out
            else:
                update = work.compute(task.update, point, place.worker, seed)
            check_update(update, point, place.worker, None)
            if update is not out:
                np.copyto(out, update)
            spent = time.perf_counter() - started
            wait = max(place.slowdown * spent, place.seconds) - spent
            if wait > 0:
                time.sleep(wait)
        finally:
            current[0] = -1  # whoever handles an error is not to be stopped in the middle of it

    signal.signal(signal.SIGUSR1, stop)
    receive = _receiver(place.inbox)
    _say(place, Kind.READY, -1, 0.0)
    while message := receive():
        job, seed, slot, target = JOB.unpack(message)
        started = time.perf_counter()
        try:
            compute(job, seed, slot, target)
            kind = Kind.DONE
        except Stopped:
            kind = Kind.STOPPED
        except BadUpdate as error:
            write_note(shared.notes[target], str(error))
            kind = Kind.REJECTED
        except BaseException:  # also SystemExit: a worker lives on whatever the user's code does
            write_note(shared.notes[target], traceback.format_exc())
            kind = Kind.FAILED
        _say(place, kind, job, time.perf_counter() - started)


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
