"""Short runs with a logger, and fakes of what a run says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncsgd as asgd
from asyncsgd.run import Listener, TrainingRun

CONFIG: dict[str, Any] = {
    "task": "Quadratic",
    "method": "async_sgd(...)",
    "method_name": "async_sgd",
    "iterations": 60,
    "seed": 0,
    "engine": {"engine": "processes", "workers": 2},
    "until": None,
    "directory": None,
    "resumed_at": None,
}


def train(directory: Path | None, logger: Listener, iterations: int = 40, **options: Any) -> TrainingRun:
    """A short run; the last evaluation is the last iteration's."""
    given = {"task": asgd.tasks.quadratic(workers=2), "every": 10, "checkpoint_every": 20, **options}
    return asgd.train(
        given.pop("task"),
        asgd.async_sgd(0.05),
        engine=asgd.engines.processes(2),
        iterations=iterations,
        directory=directory,
        listeners=[logger, *given.pop("others", ())],
        progress=False,
        **given,
    )


class Seen(Listener):
    """Remembers what it was told, to hold a logger against."""

    def __init__(self) -> None:
        self.statuses: list[Any] = []
        self.notes: list[str] = []

    def progressed(self, status: Any) -> None:
        self.statuses.append(status)

    def noted(self, message: str) -> None:
        self.notes.append(message)
