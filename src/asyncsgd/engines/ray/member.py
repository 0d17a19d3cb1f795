"""One worker as the server sees it: its actor, its jobs in order, its places for updates."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any

from asyncsgd.core.events import Assign
from asyncsgd.engines.ray.engine import Group

AHEAD = 2
"""Jobs that a worker may have been sent: it computes one while the point of the next is on its way. One only with error
feedback, as a job then begins with what became of the one before."""


class Stage(Enum):
    """How far a worker has come."""

    WAITING = "waits for room on a node"
    LOADING = "loads the task"
    READY = "computes"

    @property
    def plural(self) -> str:
        """The same of several."""
        verb, _, rest = self.value.partition(" ")
        return f"{verb.removesuffix('s')} {rest}".strip()


@dataclass(eq=False)
class Call:
    """A call of an actor's method that has not been answered."""

    member: WorkerHandle
    method: str
    job: int = -1
    place: int = -1
    version: Any = None
    """What holds its point in the object store."""
    reference: Any = None
    """Once it is answered: to what."""


class WorkerHandle:
    """Written to by the crew alone."""

    def __init__(self, number: int, group: Group, ahead: int) -> None:
        self.number, self.group = number, group
        self.actor: Any = None
        self.compute: Any = None  # its method, looked up once
        self.stage = Stage.WAITING
        self.node = ""  # where it was placed
        self.shares = False  # memory with the server
        self.present = False  # the server has been told that it joined, and not that it left
        self.retired = False
        self.calls: dict[Any, Call] = {}  # reference -> call, in order
        self.waiting: deque[Assign] = deque()  # not sent yet
        self._ahead, self._lives = ahead, 0
        self.free = list(self.places)
        self.unused: list[int] = []  # places of the updates that the last poll reported
        self.since = 0.0  # when the job being computed began, or the loading
        self.heard = 0.0  # when it last answered
        self.deaths = 0  # in a row, without a job done in between
        self.reason = ""  # of the last death
        self.hire_at = 0.0  # not before
        self.last = -1  # job of the update reported last, while it counts as used

    @property
    def first(self) -> int:
        """The job being computed; -1 if none is."""
        return next((call.job for call in self.calls.values() if call.job >= 0), -1)

    @property
    def may_be_sent(self) -> bool:
        """Whether a job waits for it, and a place for its update is free."""
        return bool(self.waiting and self.free) and self.stage is Stage.READY

    @property
    def places(self) -> range:
        """For updates in shared memory. The next life has others: the process before may still be about to die."""
        first = AHEAD * (2 * self.number + self._lives % 2)
        return range(first, first + self._ahead)

    def forget(self) -> None:
        """Its process is gone, and with it the jobs; what it has reported stays where it is."""
        self._lives += 1
        self.actor = self.compute = None
        self.stage = Stage.WAITING
        self.shares = self.present = False
        self.calls.clear()
        self.waiting.clear()
        self.unused.clear()
        self.free = list(self.places)
        self.last = -1
