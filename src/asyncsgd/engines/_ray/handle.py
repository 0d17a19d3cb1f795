"""The server's data about one worker of a cluster, and the texts about workers that are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncsgd.engines._ray import Group
from asyncsgd.engines.lifecycle import Lifecycle, Stage

LOADING = "cannot load the task"
BEGINNINGS = ("The actor is dead because ", "The actor died because of ", "The actor died because ")
LOST = "Failed to retrieve object"
"""The start of Ray's text if an answer was lost with its node. Such a text gives the reason in its last line."""
LONGEST = 200


def explain(error: Exception) -> str:
    r"""Return in one sentence why a worker is gone. Ray's own text has about twenty lines.

    >>> explain(Exception("The actor died.\n\tpid: 7\nThe actor is dead because its node has died. See the logs."))
    'is gone: its node has died'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = lines[-1] if lines[0].startswith(LOST) else lines[0]
    reason = next((line for line in lines if line.startswith(BEGINNINGS)), first)
    for beginning in BEGINNINGS:
        reason = reason.removeprefix(beginning)
    first, _, detail = reason.partition(". ")
    if "Worker exit detail: " in detail:
        first += f" ({detail.partition('Worker exit detail: ')[2].partition('. ')[0].removeprefix('Worker ')})"
    return f"is gone: {first.rstrip('.')[:LONGEST]}"


def missing(handles: Sequence[WorkerHandle], life: Lifecycle, wanted: int, seconds: float, cluster: str) -> str:
    """Return an error text: which workers are missing, what they need, what the cluster has, and what to do."""
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
        f"{there} of the {wanted} workers that the run needs were ready after {seconds:.0f} s: {'; '.join(parts)}."
        f"{_reasons(life)} {asked} cluster has {cluster}. Ask for less per worker, start with fewer (at_least), add "
        "nodes, or pass a larger start_timeout"
    )


def _reasons(life: Lifecycle) -> str:
    """Return why the missing workers last died: at most two different reasons."""
    found: dict[str, int] = {}
    for worker in life.workers:
        if worker.reason and worker.stage is not Stage.READY:
            lines = worker.reason.strip().splitlines()
            found.setdefault(" ".join(dict.fromkeys((lines[0], lines[-1]))), worker.number)
    return "".join(f" Worker {number} {reason}." for reason, number in list(found.items())[:2])


def _needs(handle: WorkerHandle) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in handle.group.needs.items()) or "anything"


def _named(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"worker{'s' if len(numbers) > 1 else ''} {shown}"


AHEAD = 2
"""Places of a worker for its updates, and jobs that it may hold at once: it computes one while the point of the next is
on its way. A worker that keeps state holds one job, as each job then depends on the verdict on the job before. Its
second place lets that job begin while the server still reads the last update."""


@dataclass(eq=False)
class Call:
    """A call of an actor's method that has not been answered."""

    handle: WorkerHandle
    method: str
    job: int = -1
    place: int = -1
    examples: int | None = None
    """The rows of data of the job, if the task counts them."""
    version: Any = None
    """The `Version` that holds its point in the object store; None if the point is not there."""
    reference: Any = None
    """Ray's reference to the answer, once there is one."""


class WorkerHandle:
    """One worker: its actor, its open calls and its places for updates. Only the pool and its call queue change it."""

    def __init__(self, number: int, group: Group) -> None:
        self.number, self.group = number, group
        self.actor: Any = None
        self.compute: Any = None  # the actor's method, looked up once
        self.node = ""  # the node where Ray placed the actor
        self.shares = False  # whether it shares memory with the server
        self.calls: dict[Any, Call] = {}  # reference -> call, in order
        self._lives = 0
        self.free = list(self.places)
        self.unused: list[int] = []  # places of the updates that the last poll reported

    @property
    def places(self) -> range:
        """The places for updates in shared memory of the present process. Its replacement has different ones.

        A kill takes a while, and until then the killed process may write its last update. So its replacement must not
        use the same places. Two sets take turns, which is enough: a third process starts only after the second one has
        died too.
        """
        first = AHEAD * (2 * self.number + self._lives % 2)
        return range(first, first + AHEAD)

    def forget(self) -> None:
        """Forget the dead process, its calls and its jobs, and switch to the other set of places.

        The updates that the dead process has reported stay valid, as the replacement writes to other places.
        """
        self._lives += 1
        self.actor = self.compute = None
        self.shares = False
        self.calls.clear()
        self.unused.clear()
        self.free = list(self.places)
