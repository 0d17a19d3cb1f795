"""A Flower grid as an engine; `asyncsgd.flower.serve` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncsgd.core.events import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Engine, WorkerPool
from asyncsgd.engines.flower.clients import Clients
from asyncsgd.engines.flower.layout import Arrays, Layout
from asyncsgd.tasks.base import Task


@dataclass(frozen=True)
class Flower(Engine):
    """Clients of a Flower grid. ``workers`` is how many of them must be there for the run to begin; more may come."""

    grid: Any
    layout: Layout
    carried: Arrays = field(default_factory=dict)
    """At the start: the arrays that are not in the vector."""
    clients: Clients = field(default_factory=Clients)
    train_config: Mapping[str, Any] = field(default_factory=dict)
    evaluate_config: Mapping[str, Any] | None = None
    """None: clients do not evaluate."""
    folder: Path | None = None
    """Where numbers of clients, carried arrays and kept updates go."""
    resume: bool = False
    keep_updates: bool = False
    freeze: bool = False
    """Send the carried arrays as they were at the start, as differential privacy covers only the vector."""

    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        """``task`` and ``work`` are with the clients; a task with a method ``bind`` is given the crew."""
        from asyncsgd.engines.flower.crew import FlowerPool

        crew = FlowerPool(self, x)
        bind = getattr(task, "bind", None)
        if bind is not None:
            bind(crew)
        return crew

    def describe(self) -> dict[str, Any]:
        clients = {name: value for name, value in vars(self.clients).items() if value is not None}
        grid = type(self.grid).__name__
        return {"engine": "flower", "workers": self.workers, "grid": grid, "clients": clients}
