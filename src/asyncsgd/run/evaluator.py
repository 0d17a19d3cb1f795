"""Evaluate the task during a run, in the loop's thread or in another one, and keep the metrics."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.vectors import Vector
from asyncsgd.run.options import Evaluation
from asyncsgd.tasks.base import Task
from asyncsgd.trace.columns import WHEN

TICK = 0.2
"""Seconds between two checks of the clock when nothing happens, and between two calls of ``on_progress``."""
BLOWN_UP = 10.0
"""A loss above this multiple of its first value has blown up."""

Row = dict[str, Any]


class Measured(NamedTuple):
    """A finished evaluation."""

    iteration: int
    seconds: float
    x: Vector
    row: Row
    """``iteration``, ``time``, ``epoch`` if the task has epochs, and the metrics."""


class Evaluator:
    """Evaluates the task, one model at a time, and keeps the metrics."""

    def __init__(self, task: Task, evaluation: Evaluation) -> None:
        self._task, self._every, self._target = task, evaluation.every, evaluation.target
        self.rows: list[Row] = []
        self.last: int | None = None
        """The iteration of the last evaluation that was started."""
        self.reached = evaluation.target is None
        """Whether the target was met; True if there is none."""
        self.problem = ""
        """Text that names the newest metrics that are not finite; empty if all are finite."""
        self._next = 0
        self._epoch: float | None = None  # of the newest evaluation
        # The evaluation that is under way: its iteration, its time, the model, and the future result. Only the loop's
        # thread touches this tuple; the evaluating thread has nothing but the Future and a model that stays unchanged.
        self._under_way: tuple[int, float, Vector, Future[Row | None]] | None = None

    def due(self, iteration: int) -> bool:
        """Return whether it is time to evaluate."""
        return iteration >= self._next

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way, or its result was not yet fetched with `finished`."""
        return self._under_way is not None

    def begin(
        self, iteration: int, seconds: float, x: Vector, *, background: bool = False, epoch: float | None = None
    ) -> None:
        """Start to evaluate a model that no longer changes; `finished` returns the result."""
        self._epoch = epoch
        self._next = (iteration // self._every + 1) * self._every
        self.last = iteration
        # A task may define ``planned()``: it is called here, in the loop's thread, before any other event.
        planned: Callable[[], None] | None = getattr(self._task, "planned", None)
        if planned is not None:
            planned()
        result: Future[Row | None] = Future()
        self._under_way = iteration, seconds, x, result

        def evaluate() -> None:
            try:
                result.set_result(self._evaluate(iteration, x))
            except BaseException as error:
                result.set_exception(error)

        if background:
            # A daemon thread: the user's function may hang, and must not keep the process from ending.
            threading.Thread(target=evaluate, name="asyncsgd-evaluation", daemon=True).start()
        else:
            evaluate()

    def _evaluate(self, iteration: int, x: Vector) -> Row | None:
        """Return the task's metrics, or None if the task returns none this time. May run in another thread.

        A task that has a method ``evaluate_at`` is also given the iteration.
        """
        at: Callable[[int, Vector], Row | None] | None = getattr(self._task, "evaluate_at", None)
        return self._task.evaluate(x) if at is None else at(iteration, x)

    def finished(self, *, wait: bool, should_stop: Callable[[], bool]) -> Measured | None:
        """Return the evaluation that was under way if it has finished; ``wait`` for it unless the run must stop."""
        if self._under_way is None:
            return None
        iteration, seconds, x, result = self._under_way
        while wait and not result.done() and not should_stop():
            wait_for([result], TICK)
        if not result.done():
            return None
        self._under_way = None
        found = result.result()
        return None if found is None else Measured(iteration, seconds, x, self._enter(iteration, seconds, found))

    def _enter(self, iteration: int, seconds: float, found: Row) -> Row:
        values = {name: float(value) for name, value in found.items()}
        when = {} if self._epoch is None else {"epoch": self._epoch}
        row = {"iteration": iteration, "time": seconds, **when, **values}
        self.problem = ", ".join(f"{name} = {value}" for name, value in values.items() if not np.isfinite(value))
        if not self.problem:
            self.rows.append(row)
        return row

    def judge(self, row: Row) -> None:
        """Compare a row with the target."""
        if self._target is not None and self._target.met(row):
            self.reached = True

    @property
    def metrics(self) -> Row:
        """The newest values."""
        return {name: value for name, value in self.rows[-1].items() if name not in WHEN} if self.rows else {}

    @property
    def blown_up(self) -> bool:
        """Whether the loss is far above its first value."""
        return blown_up([row["loss"] for row in (*self.rows[:1], *self.rows[-1:]) if "loss" in row])

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return one array per name."""
        return {name: np.array([row[name] for row in self.rows]) for name in (self.rows[0] if self.rows else ())}

    def load(self, rows: list[Row]) -> None:
        """Resume after the rows of a directory."""
        self.rows = rows
        if rows:
            self.last = rows[-1]["iteration"]
            self._next = (rows[-1]["iteration"] // self._every + 1) * self._every
        if self._target is not None:
            self.reached = any(self._target.met(row) for row in rows)


def blown_up(losses: Sequence[float] | NDArray[Any]) -> bool:
    """Return whether the last of these is far above the first.

    >>> blown_up([2.0, 1.0, 21.0]), blown_up([2.0, 19.0]), blown_up([])
    (True, False, False)
    """
    return len(losses) > 1 and not losses[-1] <= BLOWN_UP * max(abs(losses[0]), 1e-12)
