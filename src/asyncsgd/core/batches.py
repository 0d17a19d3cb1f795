"""How many mini-batches jobs have handed out, and how many they still may.

``Job.batch`` is the number of mini-batches handed out before the job: the place in the data where the job begins. If
all workers share the data, it counts those of all workers, so that together they walk through each epoch once. If every
worker has data of its own, it counts those of this worker.
"""

from __future__ import annotations

from typing import Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.work import SPEED, Work

COUNTED = ("all", "worker")
NEWEST = 0.5
"""The share of a worker's last job in its measured speed; earlier jobs have the rest."""


class Batches:
    """Counts mini-batches, over all workers (``"all"``) or for each of them (``"worker"``).

    A job has the steps of its worker: the same for all, given for each, or by measured speed. Then worker i takes
    H_i = max(1, ⌊H v_i / max_j v_j⌋) of H steps, where v_i is its steps per second (DyLU; Liu et al. 2024), and H until
    its first job has arrived.

    >>> from asyncsgd.core.work import LocalSteps
    >>> batches = Batches("worker", LocalSteps(4, 0.1))
    >>> batches.take(0), batches.take(0), batches.take(1)
    ((4, 0), (4, 4), (4, 0))
    >>> batches.left = 6
    >>> batches.take(1), batches.take(0), batches.left, batches.handed_out
    ((4, 4), (2, 8), 0, 18)
    >>> batches = Batches("all", LocalSteps(40, 0.1, per_worker="speed"))
    >>> batches.arrived(0, 40, seconds=1.0)
    >>> batches.arrived(1, 40, seconds=3.0)
    >>> batches.steps_of(0), batches.steps_of(1), batches.steps_of(2)
    (40, 13, 40)
    """

    __slots__ = ("by_worker", "handed_out", "left", "per_worker", "speeds", "steps")

    def __init__(self, counted: str, work: Work) -> None:
        if counted not in COUNTED:
            fix = 'pass "all" if the workers share their data, or "worker" if each has its own'
            raise BadParameter("batches", counted, "is not a way to count mini-batches", fix)
        self.steps, self.per_worker = work.steps, work.per_worker
        self.speeds: dict[int, float] = {}
        """Steps per second of the workers present, as far as they are known."""
        self.handed_out = 0
        """Mini-batches of all jobs so far."""
        self.left: int | None = None
        """Mini-batches that may still be handed out; None: any number."""
        self.by_worker: dict[int, int] | None = {} if counted == "worker" else None

    def take(self, worker: int) -> tuple[int, int]:
        """Return (steps, batch) of the next job of this worker, and count them. ``left`` must not be 0.

        The last job before the limit gets fewer steps than the others if that many are not left.
        """
        steps = self.steps if self.per_worker is None else self.steps_of(worker)
        if self.left is not None:
            steps = min(steps, self.left)
            self.left -= steps
        batch = self.handed_out
        if self.by_worker is not None:
            batch = self.by_worker.get(worker, 0)
            self.by_worker[worker] = batch + steps
        self.handed_out += steps
        return steps, batch

    def steps_of(self, worker: int) -> int:
        """Return the steps of this worker's next job, if that many are left."""
        if self.per_worker == SPEED:
            if worker not in self.speeds:
                return self.steps
            return max(1, int(self.steps * (self.speeds[worker] / max(self.speeds.values()))))
        if self.per_worker is None or worker >= len(self.per_worker):  # a worker that the run did not start with
            return self.steps
        return int(self.per_worker[worker])

    def arrived(self, worker: int, steps: int, seconds: float | None) -> None:
        """Take note of how fast a worker was, if the method wants to know."""
        if self.per_worker == SPEED and seconds:
            found, known = steps / seconds, self.speeds.get(worker)
            self.speeds[worker] = found if known is None else NEWEST * found + (1 - NEWEST) * known

    def gone(self, worker: int) -> None:
        """Forget the speed of a worker that left: whatever joins under its number may run elsewhere."""
        self.speeds.pop(worker, None)

    def state(self) -> dict[str, Any]:
        """Return the counts. Those of a worker that left remain: its data are where it stopped if it joins again."""
        by_worker = None if self.by_worker is None else dict(self.by_worker)
        speeds = {"speeds": dict(self.speeds)} if self.speeds else {}
        return {"handed_out": self.handed_out, "left": self.left, "by_worker": by_worker, **speeds}

    @classmethod
    def restore(cls, state: dict[str, Any], work: Work) -> Batches:
        """The inverse of `state`."""
        batches = cls("all" if state["by_worker"] is None else "worker", work)
        batches.speeds = dict(state.get("speeds", {}))
        batches.handed_out, batches.left = state["handed_out"], state["left"]
        batches.by_worker = None if state["by_worker"] is None else dict(state["by_worker"])
        return batches
