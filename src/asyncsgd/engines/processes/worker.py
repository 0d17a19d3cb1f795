"""What a worker process does: read a job, compute it at the shared point, write the update, say so."""

from __future__ import annotations

import os
import signal
import time
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.errors import NotFinite
from asyncsgd.core.fit import check_update
from asyncsgd.core.work import Gradient, Work
from asyncsgd.engines.processes.memory import Slots
from asyncsgd.engines.processes.messages import JOB, NOTE, REPORT, Kind
from asyncsgd.engines.threads import limited


class Stopped(BaseException):
    """The server no longer wants the job. No ordinary exception, so that ``except Exception`` lets it through."""


@dataclass(frozen=True)
class Place:
    """Where a worker sits: its number, its pipes, the memory it shares, and how slow it shall pretend to be."""

    worker: int
    inbox: int
    outbox: int
    points: Slots
    updates: Slots
    notes: Slots
    cancelled: Slots
    threads: int
    slowdown: float
    seconds: float


def serve(place: Place, task: Any, work: Work) -> None:
    """Compute jobs until the server hangs up."""
    with limited(place.threads):
        _serve(place, task, work)


def _serve(place: Place, task: Any, work: Work) -> None:
    into = getattr(task, "update_into", None) if isinstance(work, Gradient) else None
    current = [-1]
    wanted = place.cancelled[0]

    def stop(*_: Any) -> None:
        if current[0] >= 0 and wanted[place.worker] == current[0]:
            current[0] = -1
            raise Stopped

    signal.signal(signal.SIGUSR1, stop)
    _say(place, Kind.READY, -1, 0.0)
    while message := os.read(place.inbox, JOB.size):
        job, seed, slot, target = JOB.unpack(message)
        point = place.points[slot]
        point.flags.writeable = False
        out = place.updates[target]
        started = time.perf_counter()
        try:
            current[0] = job
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
            current[0] = -1
            kind = Kind.DONE
        except Stopped:
            kind = Kind.STOPPED
        except NotFinite:
            kind = Kind.NOT_FINITE
        except BaseException:  # also SystemExit: a worker lives on whatever the user's code does
            _leave_note(place, traceback.format_exc())
            kind = Kind.FAILED
        current[0] = -1
        _say(place, kind, job, time.perf_counter() - started)


def _say(place: Place, kind: Kind, job: int, seconds: float) -> None:
    try:
        os.write(place.outbox, REPORT.pack(kind, place.worker, job, seconds))
    except BrokenPipeError:
        os._exit(0)  # the server is gone


def _leave_note(place: Place, text: str) -> None:
    """The end of the text, where a traceback says what went wrong, behind its length."""
    data = text.encode(errors="replace")[-(NOTE - 8) :]
    note = place.notes[place.worker]
    note[:8] = np.frombuffer(len(data).to_bytes(8, "little"), np.uint8)
    note[8 : 8 + len(data)] = np.frombuffer(data, np.uint8)
