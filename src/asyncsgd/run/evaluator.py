"""Evaluate the task during a run, in a thread beside the loop, and keep the metrics."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from concurrent.futures import wait as wait_for
from contextlib import suppress
from contextvars import copy_context
from copy import copy
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.vectors import Vector
from asyncsgd.run.options import Evaluation, within_share
from asyncsgd.run.read import columns
from asyncsgd.tasks.base import Task
from asyncsgd.trace.columns import WHEN

TICK = 0.2
"""Seconds between two checks of the clock when nothing happens, and between two calls of ``on_progress``."""
QUICK = 0.02
"""Seconds that updates wait for an evaluation, if the one before took no longer. So a quick evaluation never misses its
turn, and a target stops the run at the model that met it; a long one does not stall the run."""
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


class Missed(NamedTuple):
    """An evaluation that raised, or took too long and was abandoned."""

    iteration: int
    reason: str
    error: BaseException | None
    """What it raised; None if it took too long."""


class UnderWay(NamedTuple):
    """An evaluation that has begun."""

    iteration: int
    seconds: float
    x: Vector
    began: float
    result: Future[tuple[Row | None, float]]
    """The metrics, and how long they took. Only this is shared with the evaluating thread."""
    epoch: float | None
    """Epochs that were done; None if the task has none."""


class Evaluator:
    """Evaluates the task in a thread of its own, one model at a time, and keeps the metrics.

    Only the loop's thread uses it. The evaluating thread has the task, a model that stays unchanged, and a Future. It
    is a daemon: the user's function may hang, and must not keep the process from ending.

    A thread cannot be stopped. An evaluation that takes longer than ``limit`` seconds is abandoned: its result is
    ignored, but it keeps its thread, its copy of the model and what the task uses until it returns by itself. So that
    it does not interfere with the next evaluation, that one uses a shallow copy of the task (`copy.copy`).
    """

    def __init__(self, task: Task, evaluation: Evaluation, limit: float | None = None) -> None:
        self._task, self._every, self._target = task, evaluation.every, evaluation.target
        self._share = evaluation.share
        self._limit = math.inf if limit is None else limit
        self.rows: list[Row] = []
        self.last: int | None = None
        """The iteration of the last evaluation that was started."""
        self.reached = evaluation.target is None
        """Whether the target was met; True if there is none."""
        self.problem = ""
        """Text that names the newest metrics that are not finite; empty if all are finite."""
        self.skipped = 0
        """How many evaluations were due while the one before was still under way."""
        self.hung = 0
        """How many evaluations were abandoned."""
        self.spared = 0
        """How many evaluations were left out, because they would have taken too large a share of the time."""
        self._last_skipped = self._last_spared = -1  # the last iteration that each of them counts
        self._spent = 0.0  # seconds of evaluations since `_since`, without the first one
        self._took = 0.0  # seconds of the last evaluation
        self._since: float | None = None  # the time on the run's clock at which the shares begin
        self._quick = True  # whether the last evaluation took at most QUICK seconds
        self._next = 0
        self._under_way: UnderWay | None = None

    def due(self, iteration: int) -> bool:
        """Return whether it is time to evaluate."""
        return iteration >= self._next

    def skip(self, iteration: int) -> None:
        """Leave out the evaluation that is due: the one before is still under way."""
        self.skipped += 1
        self._last_skipped = iteration
        self._plan(iteration)

    def affordable(self, iteration: int, seconds: float) -> bool:
        """Return whether an evaluation now would stay within its share of the time, or is free; else leave it out.

        It is expected to take as long as the last one. The clock starts here, so after a resume only the time since
        then counts, for evaluations as for the run.
        """
        if self._share is None:
            return True
        if self._since is None:
            self._since = 0.0 if self.last in (None, 0) else seconds
        if within_share(self._spent + self._took, self._share, seconds - self._since):
            return True
        self.spared += 1
        self._last_spared = iteration
        self._plan(iteration)
        return False

    def _plan(self, iteration: int) -> None:
        self._next = (iteration // self._every + 1) * self._every

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way, or its result was not yet fetched with `finished`."""
        return self._under_way is not None

    @property
    def patience(self) -> float:
        """Seconds that updates should wait for the evaluation under way: a moment if the last one was quick."""
        return QUICK if self._quick else 0.0

    def begin(self, iteration: int, seconds: float, x: Vector, *, epoch: float | None = None) -> None:
        """Start to evaluate a model that no longer changes; `finished` returns the result."""
        self._plan(iteration)
        self.last = iteration
        self.skipped -= iteration == self._last_skipped  # the last model of a run is evaluated after all
        self.spared -= iteration == self._last_spared
        # A task may define ``planned()``: it is called here, in the loop's thread, before any other event.
        planned: Callable[[], None] | None = getattr(self._task, "planned", None)
        if planned is not None:
            planned()
        result: Future[tuple[Row | None, float]] = Future()
        task, began = self._task, time.monotonic()

        def evaluate() -> None:
            try:
                found = _evaluate(task, iteration, x)
                result.set_result((found, time.monotonic() - began))
            except BaseException as error:
                result.set_exception(error)

        if getattr(task, "evaluates_at_once", False):  # a thread would take longer than the evaluation
            evaluate()
        else:
            context = copy_context()  # np.errstate and the like hold in the other thread too
            thread = threading.Thread(target=context.run, args=(evaluate,), name="asyncsgd-evaluation", daemon=True)
            thread.start()
        self._under_way = UnderWay(iteration, seconds, x, began, result, epoch)

    def peek(self) -> Row | None:
        """Wait for the evaluation under way, and return its metrics, or raise its error; `finished` still returns it.

        None if it takes too long, or if the task returns none this time.
        """
        under_way = self._under_way
        assert under_way is not None
        left = under_way.began + self._limit - time.monotonic()
        wait_for([under_way.result], None if math.isinf(left) else max(0.0, left))
        return under_way.result.result()[0] if under_way.result.done() else None

    def now(self, iteration: int, x: Vector) -> Row:
        """Evaluate a model in the caller's thread, and record nothing."""
        return _evaluate(self._task, iteration, x) or {}

    def finished(
        self, *, patience: float = 0.0, should_stop: Callable[[], bool] | None = None
    ) -> Measured | Missed | None:
        """Return the evaluation that was under way if it has ended, or has taken too long.

        Wait for it for ``patience`` seconds, unless the run must stop.
        """
        under_way = self._under_way
        if under_way is None:
            return None
        result, expires = under_way.result, under_way.began + self._limit
        until = min(time.monotonic() + patience, expires)
        while not result.done() and (left := until - time.monotonic()) > 0 and not (should_stop and should_stop()):
            wait_for([result], min(left, TICK))
        if not result.done():
            return self._abandon(under_way) if time.monotonic() >= expires else None
        self._under_way = None
        error = result.exception()
        if error is not None:
            return Missed(under_way.iteration, f"{type(error).__name__}: {error}".rstrip(": "), error)
        found, took = result.result()
        self._quick, self._took = took <= QUICK, took
        self._spent += took if under_way.iteration else 0.0  # that of the initial model comes before the clock starts
        return None if found is None else self._enter(under_way, found)

    def _abandon(self, under_way: UnderWay) -> Missed:
        self._under_way, self._quick = None, False
        self.hung += 1
        with suppress(Exception):  # a task that cannot be copied is used as it is
            self._task = copy(self._task)
        reason = f"it took more than {self._limit:g} s and was abandoned"
        return Missed(under_way.iteration, reason, None)

    def _enter(self, under_way: UnderWay, values: Row) -> Measured:
        when = {} if under_way.epoch is None else {"epoch": under_way.epoch}
        row = {"iteration": under_way.iteration, "time": under_way.seconds, **when, **values}
        self.problem = ", ".join(f"{name} = {value}" for name, value in values.items() if not np.isfinite(value))
        if not self.problem:
            self.rows.append(row)
        return Measured(under_way.iteration, under_way.seconds, under_way.x, row)

    def judge(self, row: Row) -> None:
        """Compare a row with the target."""
        if self._target is not None:
            self._target.require(self.rows)
            self.reached = self.reached or self._target.met(row)

    @property
    def metrics(self) -> Row:
        """The newest values."""
        return {name: value for name, value in self.rows[-1].items() if name not in WHEN} if self.rows else {}

    @property
    def blown_up(self) -> bool:
        """Whether the loss is far above its first value."""
        return blown_up([row["loss"] for row in (*self.rows[:1], *self.rows[-1:]) if "loss" in row])

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return one array per name; NaN where an evaluation did not measure a metric."""
        return columns(self.rows)

    def load(self, rows: list[Row]) -> None:
        """Resume after the rows of a directory."""
        self.rows = rows
        if rows:
            self.last = rows[-1]["iteration"]
            self._plan(rows[-1]["iteration"])
        if self._target is not None:
            self._target.require(rows)
            self.reached = any(self._target.met(row) for row in rows)


def _evaluate(task: Task, iteration: int, x: Vector) -> Row | None:
    """Return the task's metrics as floats, or None if the task returns none this time. In the evaluating thread.

    A task that has a method ``evaluate_at`` is also given the iteration.
    """
    at: Callable[[int, Vector], Row | None] | None = getattr(task, "evaluate_at", None)
    found = task.evaluate(x) if at is None else at(iteration, x)
    return None if found is None else {name: float(value) for name, value in found.items()}


def blown_up(losses: Sequence[float] | NDArray[Any]) -> bool:
    """Return whether the last of these is far above the first.

    >>> blown_up([2.0, 1.0, 21.0]), blown_up([2.0, 19.0]), blown_up([])
    (True, False, False)
    """
    return len(losses) > 1 and not losses[-1] <= BLOWN_UP * max(abs(losses[0]), 1e-12)
