"""What the server holds for one worker of a cluster: its actor, its open calls, its places for updates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncsgd.engines._ray.engine import Group
from asyncsgd.engines.lifecycle import Lifecycle, Stage

# --------------------------------------------------------------------------------------------------------------
# What to say about workers that are not there, in one sentence where Ray says it in twenty lines.


LOADING = "cannot load the task"
BEGINNINGS = ("The actor is dead because ", "The actor died because of ", "The actor died because ")
LOST = "Failed to retrieve object"
"""How Ray begins where an answer was lost with its node; why comes last."""
LONGEST = 200


def explain(error: Exception) -> str:
    r"""Why a worker is gone.

    >>> explain(Exception("The actor died.\n\tpid: 7\nThe actor is dead because its node has died. See the logs."))
    'is gone: its node has died'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = lines[-1] if lines[0].startswith(LOST) else lines[0]
    words = next((line for line in lines if line.startswith(BEGINNINGS)), first)
    for beginning in BEGINNINGS:
        words = words.removeprefix(beginning)
    first, _, detail = words.partition(". ")
    if "Worker exit detail: " in detail:
        first += f" ({detail.partition('Worker exit detail: ')[2].partition('. ')[0].removeprefix('Worker ')})"
    return f"is gone: {first.rstrip('.')[:LONGEST]}"


def missing(handles: Sequence[WorkerHandle], life: Lifecycle, wanted: int, seconds: float, cluster: str) -> str:
    """Who is not there, what was asked for, what the cluster has, and what to do."""
    here = [worker for worker in life.workers if worker.number not in life.retired]
    there = sum(worker.stage is Stage.READY for worker in here)
    parts = []
    for stage in (Stage.ABSENT, Stage.WAITING, Stage.LOADING):
        numbers = [worker.number for worker in here if worker.stage is stage]
        if numbers:
            parts.append(f"{_named(numbers)} {stage.value if len(numbers) == 1 else stage.plural}")
    if life.retired:
        parts.append(f"{_named(sorted(life.retired))} died too often")
    needs = sorted({_needs(handles[worker.number]) for worker in here if worker.stage is Stage.WAITING})
    asked = f"Ray was asked for nodes with {' or '.join(needs)} free; the" if needs else "The"
    return (
        f"{there} of the {wanted} workers that the run needs were there after {seconds:.0f} s: {'; '.join(parts)}."
        f"{_reasons(life)} {asked} cluster has {cluster}. Ask for less per worker, begin with fewer (at_least), add "
        "nodes, or pass a larger start_timeout"
    )


def _reasons(life: Lifecycle) -> str:
    """Why those that are not there died the last time: two of them, if they differ."""
    found: dict[str, int] = {}
    for worker in life.workers:
        if worker.reason and worker.stage is not Stage.READY:
            lines = worker.reason.strip().splitlines()
            found.setdefault(" ".join(dict.fromkeys((lines[0], lines[-1]))), worker.number)
    return "".join(f" Worker {number} {reason}." for reason, number in list(found.items())[:2])


def _needs(member: WorkerHandle) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in member.group.needs.items()) or "anything"


def _named(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"worker{'s' if len(numbers) > 1 else ''} {shown}"


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
