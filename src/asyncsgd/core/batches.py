"""How many mini-batches jobs have handed out, and how many they still may.

``Job.batch`` is the number of mini-batches handed out before the job: the place in the data where the job begins. If
all workers share the data, it counts those of all workers, so that together they walk through each epoch once. If every
worker has data of its own, it counts those of this worker.
"""

from __future__ import annotations

from typing import Any

from asyncsgd.core.errors import BadParameter

COUNTED = ("all", "worker")


class Batches:
    """Counts mini-batches, over all workers (``"all"``) or for each of them (``"worker"``).

    >>> batches = Batches("worker", steps=4)
    >>> batches.take(0), batches.take(0), batches.take(1)
    ((4, 0), (4, 4), (4, 0))
    >>> batches.left = 6
    >>> batches.take(1), batches.take(0), batches.left, batches.handed_out
    ((4, 4), (2, 8), 0, 18)
    """

    __slots__ = ("by_worker", "handed_out", "left", "steps")

    def __init__(self, counted: str, steps: int = 1) -> None:
        if counted not in COUNTED:
            fix = 'pass "all" if the workers share their data, or "worker" if each has its own'
            raise BadParameter("batches", counted, "is not a way to count mini-batches", fix)
        self.steps = steps
        self.handed_out = 0
        """Mini-batches of all jobs so far."""
        self.left: int | None = None
        """Mini-batches that may still be handed out; None: any number."""
        self.by_worker: dict[int, int] | None = {} if counted == "worker" else None

    def take(self, worker: int) -> tuple[int, int]:
        """Return (steps, batch) of the next job of this worker, and count them. ``left`` must not be 0.

        The last job before the limit gets fewer steps than the others if that many are not left.
        """
        steps = self.steps
        if self.left is not None:
            steps = min(steps, self.left)
            self.left -= steps
        batch = self.handed_out
        if self.by_worker is not None:
            batch = self.by_worker.get(worker, 0)
            self.by_worker[worker] = batch + steps
        self.handed_out += steps
        return steps, batch

    def state(self) -> dict[str, Any]:
        """Return the counts. Those of a worker that left remain: its data are where it stopped if it joins again."""
        by_worker = None if self.by_worker is None else dict(self.by_worker)
        return {"handed_out": self.handed_out, "left": self.left, "by_worker": by_worker}

    @classmethod
    def restore(cls, state: dict[str, Any], steps: int) -> Batches:
        """The inverse of `state`."""
        batches = cls("all" if state["by_worker"] is None else "worker", steps)
        batches.handed_out, batches.left = state["handed_out"], state["left"]
        batches.by_worker = None if state["by_worker"] is None else dict(state["by_worker"])
        return batches
