"""What the server holds for one worker of a cluster: its actor, its open calls, its places for updates."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncsgd.engines.ray.engine import Group

AHEAD = 2
"""Jobs that a worker may have been sent: it computes one while the point of the next is on its way. One only with error
feedback, as a job then begins with what became of the one before."""


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
    """Written to by the pool and its desk alone."""

    def __init__(self, number: int, group: Group, ahead: int) -> None:
        self.number, self.group = number, group
        self.actor: Any = None
        self.compute: Any = None  # its method, looked up once
        self.node = ""  # where it was placed
        self.shares = False  # memory with the server
        self.calls: dict[Any, Call] = {}  # reference -> call, in order
        self._ahead, self._lives = ahead, 0
        self.free = list(self.places)
        self.unused: list[int] = []  # places of the updates that the last poll reported

    @property
    def places(self) -> range:
        """For updates in shared memory. The next life has others: the process before may still be about to die.

        A kill takes a while, and until then the process may write its last update. Two sets of places take turns: a
        third process starts only once the second one has died as well.
        """
        first = AHEAD * (2 * self.number + self._lives % 2)
        return range(first, first + self._ahead)

    def forget(self) -> None:
        """Its process is gone, and with it the jobs. Updates that it has reported stay where they are."""
        self._lives += 1
        self.actor = self.compute = None
        self.shares = False
        self.calls.clear()
        self.unused.clear()
        self.free = list(self.places)
