"""The three methods that make a task."""

from __future__ import annotations

from typing import Any, Protocol

from asyncsgd.core.events import Vector


class Task(Protocol):
    """What is to be minimised. ``update`` must depend on nothing but its arguments, so that a job can be repeated.

    A task whose data differ from worker to worker says so with an attribute ``heterogeneous = True``.
    """

    def initial(self) -> Vector:
        """Where to start: one flat vector of float32 or float64."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """A stochastic gradient of this worker's function at x, with the randomness of ``seed``."""

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Numbers to report about x, "loss" among them if there is one."""


def is_heterogeneous(task: Task) -> bool:
    """Whether the task says that its data differ from worker to worker."""
    return bool(getattr(task, "heterogeneous", False))
