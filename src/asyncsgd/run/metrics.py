"""The metrics of a run: one row per evaluation, and an eye on the loss blowing up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import count
from asyncsgd.core.events import Vector
from asyncsgd.run.directory import read_lines
from asyncsgd.tasks.base import Task

BLOWN_UP = 10.0
"""A loss so many times its first value has blown up."""


class Metrics:
    """Rows of ``iteration``, ``time`` and what the task evaluates."""

    def __init__(self, task: Task, every: int) -> None:
        count("every", every)
        self._task, self._every = task, every
        self.rows: list[dict[str, Any]] = []
        self.diverged = ""
        """Which of the newest values are not finite, in words."""
        self.last: int | None = None
        """The iteration of the last evaluation."""
        self._next = 0

    def due(self, iteration: int) -> bool:
        """Whether it is time to evaluate."""
        return iteration >= self._next

    def plan(self, iteration: int) -> None:
        """The task is evaluated at this iteration; a task with a method ``planned`` hears of it before time goes on."""
        self._next = (iteration // self._every + 1) * self._every
        self.last = iteration
        planned: Callable[[], None] | None = getattr(self._task, "planned", None)
        if planned is not None:
            planned()

    def evaluate(self, iteration: int, x: Vector) -> dict[str, Any] | None:
        """What the task says of x, or None if it has nothing to say this time.

        With the iteration, if the task asks for it with a method ``evaluate_at``. May be called in another thread.
        """
        at: Callable[[int, Vector], dict[str, Any] | None] | None = getattr(self._task, "evaluate_at", None)
        return self._task.evaluate(x) if at is None else at(iteration, x)

    def enter(self, iteration: int, seconds: float, told: dict[str, Any]) -> dict[str, Any]:
        """Write down what the task said; the row."""
        values = {name: float(value) for name, value in told.items()}
        row = {"iteration": iteration, "time": seconds, **values}
        self.diverged = ", ".join(f"{name} = {value}" for name, value in values.items() if not np.isfinite(value))
        if not self.diverged:
            self.rows.append(row)
        return row

    @property
    def shown(self) -> dict[str, Any]:
        """The newest values."""
        return {k: v for k, v in self.rows[-1].items() if k not in ("iteration", "time")} if self.rows else {}

    @property
    def blown_up(self) -> bool:
        """Whether the loss is far above where it began."""
        return blown_up([row["loss"] for row in (*self.rows[:1], *self.rows[-1:]) if "loss" in row])

    def columns(self) -> dict[str, NDArray[Any]]:
        """One array per name."""
        return {name: np.array([row[name] for row in self.rows]) for name in (self.rows[0] if self.rows else ())}

    def load(self, path: Path) -> None:
        """Go on after the rows that a directory holds."""
        self.rows = read_lines(path, "metrics.jsonl")
        if self.rows:
            self.last = self.rows[-1]["iteration"]
            self._next = (self.last // self._every + 1) * self._every


def blown_up(losses: Sequence[float] | NDArray[Any]) -> bool:
    """Whether the last of these is far above the first.

    >>> blown_up([2.0, 1.0, 21.0]), blown_up([2.0, 19.0]), blown_up([])
    (True, False, False)
    """
    return len(losses) > 1 and not losses[-1] <= BLOWN_UP * max(abs(losses[0]), 1e-12)
