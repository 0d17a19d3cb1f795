"""What a job computes: ``initial() -> x``, ``update(x, worker, seed) -> vector``, ``evaluate(x) -> dict``."""

from asyncsgd.tasks.base import Task
from asyncsgd.tasks.quadratic import Quadratic, quadratic

__all__ = ["Quadratic", "Task", "quadratic"]
