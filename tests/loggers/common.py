"""Short runs with a logger, and fakes of what a run says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

import asyncsgd as asgd
from asyncsgd.run import Callback, LiveView, TrainingRun

CONFIG: dict[str, Any] = {
    "task": "Quadratic",
    "method": "async_sgd(...)",
    "method_name": "async_sgd",
    "iterations": 60,
    "seed": 0,
    "engine": {"engine": "processes", "workers": 2},
    "until": None,
}


def train(directory: Path | None, logger: Callback, iterations: int = 40, **options: Any) -> TrainingRun:
    """A short run; the last evaluation is the last iteration's."""
    given = {"task": asgd.tasks.quadratic(workers=2), "every": 10, "checkpoints": asgd.Checkpoints(every=20), **options}
    return asgd.train(
        given.pop("task"),
        asgd.async_sgd(0.05),
        engine=asgd.engines.processes(2),
        iterations=iterations,
        directory=directory,
        callbacks=[logger, *given.pop("others", ())],
        progress=False,
        **given,
    )


def live(iteration: int = 0, seconds: float = 0.0, **changed: Any) -> LiveView:
    """How a run stands that nobody trains; keys of its configuration, its directory, ``resumed_at`` may be changed."""
    where, resumed_at = (changed.pop(name, None) for name in ("directory", "resumed_at"))
    config = {**CONFIG, **changed}
    return LiveView(config, where, resumed_at, iteration, 100, seconds, 50.0, 2, 1.5, 3, {}, lambda: np.zeros(1))


class Seen(Callback):
    """Remembers what it was told, to hold a logger against."""

    def __init__(self) -> None:
        self.statuses: list[Any] = []
        self.notes: list[str] = []

    def on_progress(self, view: Any) -> None:
        self.statuses.append(view)

    def on_note(self, text: str) -> None:
        self.notes.append(text)
