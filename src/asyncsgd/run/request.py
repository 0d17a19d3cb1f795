"""What `asyncsgd.train` was asked for."""

from __future__ import annotations

from dataclasses import dataclass

from asyncsgd.core.method import Method
from asyncsgd.engines.base import Engine
from asyncsgd.run.target import Target
from asyncsgd.tasks.base import Task


@dataclass(frozen=True)
class Request:
    """The arguments of `asyncsgd.train`, checked."""

    task: Task
    method: Method
    engine: Engine
    iterations: int
    resume: bool
    seed: int
    every: int
    target: Target | None
    checkpoint_seconds: float
    checkpoint_every: int | None
    keep: int
    max_failures: int
    meanwhile: bool = False
    """Evaluate a copy of the model in a thread, while updates arrive; else they wait."""
