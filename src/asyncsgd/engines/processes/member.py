"""One worker as the server sees it: its pipe, its jobs in order, its places for updates."""

from __future__ import annotations

import math
import signal
from collections import deque

from asyncsgd.core.events import Job

AHEAD = 2
"""Jobs that a worker may hold: it computes one while the update of the one before is applied. Each has its own place
for the update, which is free again once the update was used or will never come."""


class WorkerHandle:
    """Written to by the crew alone."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.inbox = -1
        self.ready = False  # it reads its inbox
        self.present = False  # the server has been told that it joined, and not that it left
        self.retired = False
        self.sent: dict[int, int] = {}  # job -> place of its update; the first one is being computed
        self.waiting: deque[tuple[Job, int]] = deque()  # (job, slot of its point): not sent yet
        self.places = range(AHEAD * number, AHEAD * (number + 1))
        self.free = list(self.places)
        self.unused: dict[int, int] = {}  # job -> place of its update, of those that the last poll reported
        self.since = 0.0  # when the job being computed began, or the start was asked for
        self.deaths = 0  # in a row, without a job done in between
        self.condemned = ""  # why we killed it

    @property
    def first(self) -> int:
        """The job being computed."""
        return next(iter(self.sent))

    def due(self, job_seconds: float, start_seconds: float) -> float:
        """When it has taken too long over its job, or its start."""
        if self.retired or self.condemned or (self.ready and not self.sent):
            return math.inf
        return self.since + (job_seconds if self.ready else start_seconds)

    def condemn(self, seconds: float) -> None:
        """It is killed, as it took more than so many seconds."""
        what = f"its job {self.first}" if self.ready else "its start"
        self.condemned = f"was killed, because {what} took more than {seconds:g} s"

    def forget(self) -> None:
        """Its process is gone, and with it the jobs; what it has reported stays where it is."""
        self.ready = self.present = False
        self.sent.clear()
        self.waiting.clear()
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
