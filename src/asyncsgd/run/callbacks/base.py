"""Callbacks: what a user's own code hears of a run, and how it can stop one."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import nearest
from asyncsgd.core.vectors import Vector
from asyncsgd.format import jsonable

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun


@dataclass(frozen=True)
class LiveView:
    """How a run stands at one moment; a callback may keep it."""

    config: Mapping[str, Any]
    """What was asked for, as run.json has it."""
    directory: Path | None
    resumed_at: int | None
    """The iteration that the run was resumed from; None if it was started."""
    iteration: int
    wanted: int
    """The iterations that were asked for."""
    seconds: float
    """On the clock of the run."""
    updates_per_second: float
    """Lately; 0 before the first update."""
    workers: int
    """Alive."""
    average_delay: float
    maximum_delay: int
    metrics: Mapping[str, float]
    """The newest evaluation."""
    model: Callable[[], Vector] = field(repr=False)

    @property
    def x(self) -> Vector:
        """A copy of the model; in ``on_evaluation``, of the one that was evaluated. Read it inside the hook."""
        return self.model().copy()

    def headline(self) -> dict[str, Any]:
        """Return the numbers under the names of `asyncsgd.run.view.RunView.headline`."""
        row = {
            "method": self.config.get("method_name", ""),
            "task": self.config.get("task", ""),
            "directory": None if self.directory is None else str(self.directory),
            "state": "running",
            "iterations": self.iteration,
            "wanted": self.wanted,
            "until": self.config.get("until"),
            "seconds": self.seconds,
            "updates_per_second": self.updates_per_second,
            "metrics": dict(self.metrics),
            "average_delay": self.average_delay,
            "maximum_delay": self.maximum_delay,
            "workers": self.workers,
        }
        found: dict[str, Any] = jsonable(row)
        return found


class Control:
    """What a callback may do to a run."""

    def __init__(self) -> None:
        self.reason: str | None = None

    def stop(self, reason: str) -> None:
        """Stop the run after this update, as soundly as at its last iteration. The journal keeps the first reason."""
        if not isinstance(reason, str) or not reason.strip():
            raise BadParameter("reason", reason, "says nothing", 'pass a few words such as "no progress"')
        if self.reason is None:
            self.reason = reason.strip()


class Callback:
    """Base class of callbacks: override the hooks that you need. A hook that is not overridden costs nothing.

    The run calls all hooks in its own thread, between two updates, so workers compute meanwhile. What a hook raises
    stops the run, which is saved first.

    >>> import asyncsgd as asgd
    >>> class Enough(asgd.Callback):
    ...     def on_evaluation(self, view, metrics, control):
    ...         if metrics["loss"] < 1.0:
    ...             control.stop("the loss is below 1")
    >>> task, engine = asgd.tasks.quadratic(workers=2), asgd.engines.processes(2)
    >>> run = asgd.train(task, asgd.async_sgd(0.1), engine, iterations=10_000, callbacks=[Enough()], progress=False)
    >>> run.stopped_early
    'the loss is below 1'
    """

    def on_start(self, view: LiveView) -> None:
        """The run starts or resumes; its workers are starting."""

    def on_update(self, view: LiveView, control: Control) -> None:
        """An update has arrived. May be called thousands of times per second."""

    def on_progress(self, view: LiveView) -> None:
        """Called a few times per second."""

    def on_evaluation(self, view: LiveView, metrics: Mapping[str, float], control: Control) -> None:
        """The task was evaluated; ``view`` has the iteration and the time of the model that was evaluated."""

    def on_checkpoint(self, view: LiveView, path: Path) -> None:
        """A checkpoint was written."""

    def on_worker(self, view: LiveView, worker: int, what: str) -> None:
        """A worker ``joined``, ``left``, ``died``, ``failed``, had an update ``rejected``, or was ``retired``."""

    def on_note(self, text: str) -> None:
        """Something that a user should know: a worker died, an exception in the task's code. May precede the start."""

    def on_end(self, run: TrainingRun) -> None:
        """The run has ended: done, stopped early, interrupted or diverged. Not called where an error ends it."""

    def close(self) -> None:
        """Release what the callback holds. Called once per run, also where the run fails or is refused."""


HOOKS = ("on_start", "on_update", "on_progress", "on_evaluation", "on_checkpoint", "on_worker", "on_note", "on_end")


class Hooks:
    """The hooks that some callback overrides, by name; leaving it closes all callbacks, in reverse order.

    The terminal, if there is one, hears first and is closed first: others may print while they close.
    """

    def __init__(self, callbacks: Sequence[Callback], terminal: Callback | None = None) -> None:
        check_callbacks(callbacks)
        told = [*([] if terminal is None else [terminal]), *callbacks]
        self.start, self.update, self.progress, self.evaluation, self.checkpoint, self.worker, self.note, self.end = (
            _overridden(told, name) for name in HOOKS
        )
        self._closing = ExitStack()
        for callback in (*callbacks, *([] if terminal is None else [terminal])):
            self._closing.callback(callback.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        self._closing.__exit__(*error)  # a second time there is nothing left to close


def _overridden(callbacks: list[Callback], name: str) -> list[Callable[..., None]]:
    plain = getattr(Callback, name)
    return [hook for callback in callbacks if getattr(hook := getattr(callback, name), "__func__", hook) is not plain]


def check_callbacks(callbacks: Any) -> None:
    """Refuse what is not a list of callbacks, and hooks that no run calls."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise BadParameter("callbacks", callbacks, "is not a list", "pass [callback, ...], or leave it out")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            fix = "pass an object of a class derived from asgd.Callback"
            raise BadParameter("callbacks", callback, "is not a callback", fix)
        unknown = [name for name in dir(callback) if name.startswith("on_") and name not in HOOKS]
        if unknown:
            problem = f"has a method {unknown[0]}, which no run calls"
            raise BadParameter("callbacks", callback, problem, nearest(unknown[0], HOOKS))
