"""Callbacks: how a user's code follows a run, and how it can stop one."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import nearest, positive
from asyncsgd.core.vectors import Vector
from asyncsgd.format import jsonable
from asyncsgd.tasks.base import Task

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun


@dataclass(frozen=True)
class LiveView:
    """The state of a run at one moment; a callback may keep it.

    See docs/howto/callback.md for callbacks that use it.
    """

    config: Mapping[str, Any]
    """The configuration of the run, as in run.json."""
    directory: Path | None
    resumed_at: int | None
    """The iteration that the run was resumed from; None if it was started."""
    iteration: int
    wanted: int
    """The number of iterations requested."""
    seconds: float
    """Time on the clock of the run."""
    updates_per_second: float
    """Recent speed; 0 before the first update."""
    workers: int
    """Number of workers that are alive."""
    average_delay: float
    maximum_delay: int
    metrics: Mapping[str, float]
    """The newest evaluation."""
    model: Callable[[], Vector] = field(repr=False)
    epoch: float | None = None
    """Epochs that are done: 1.25 is a quarter into the second one. None if the task has no epochs."""
    epochs: int | None = None
    """The number of epochs requested; None if iterations were."""
    task: Task | None = field(default=None, repr=False)
    """The task of the run."""

    @property
    def x(self) -> Vector:
        """A copy of the current model; in ``on_evaluation``, of the evaluated one. Read it inside the hook only."""
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
            "epoch": self.epoch,
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
    """What a callback may do to a run.

    >>> control = Control()
    >>> control.stop("no progress")
    >>> control.reason
    'no progress'

    See docs/howto/callback.md for callbacks that stop a run or change its step.
    """

    def __init__(self) -> None:
        self.reason: str | None = None
        self._factors: list[tuple[float, str]] = []

    def stop(self, reason: str) -> None:
        """Stop the run after this update; it ends as after its last iteration. The journal keeps the first reason."""
        if not isinstance(reason, str) or not reason.strip():
            raise BadParameter("reason", reason, "is not a text", 'pass a short text such as "no progress"')
        if self.reason is None:
            self.reason = reason.strip()

    def scale_step(self, factor: float, reason: str = "") -> None:
        """Multiply the step size by a factor, from the next update on. Several factors multiply.

        The journal keeps the factor and the reason, so a resumed run keeps the step and a replay follows it.

        Args:
            factor: A positive finite number; 0.5 halves the step.
            reason: A short text for the journal, such as "the loss rose".

        >>> import asyncsgd as asgd
        >>> class Halve(asgd.Callback):
        ...     def on_update(self, view, control):
        ...         if view.iteration == 10:
        ...             control.scale_step(0.5, "as planned")
        >>> task, engine = asgd.tasks.quadratic(workers=2), asgd.engines.processes(2)
        >>> run = asgd.train(task, asgd.async_sgd(0.1), engine, iterations=20, callbacks=[Halve()], progress=False)
        >>> run.trace.step[9:11].tolist()
        [0.1, 0.05]
        """
        positive("factor", factor)
        if not isinstance(reason, str):
            raise BadParameter("reason", reason, "is not a text", 'pass a short text such as "the loss rose"')
        self._factors.append((float(factor), reason.strip()))

    def take_factors(self) -> list[tuple[float, str]]:
        """Return the (factor, reason) of every `scale_step` since the last call of this method."""
        taken, self._factors = self._factors, []
        return taken


class Callback:
    """Base class of callbacks: override the hooks that you need. A hook that is not overridden costs nothing.

    The run calls all hooks in its own thread, between two updates; workers compute meanwhile. An exception in a hook
    stops the run: the workers end, the run is saved, and the error names the callback and the hook. An evaluation may
    run in another thread at the same time, and a PyTorch task sets torch's global random state meanwhile: draw random
    numbers from a generator of your own. To keep something for a resume, override ``state`` and ``load``.
    docs/howto/callback.md has more examples.

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
        """Called when the run starts or resumes, while its workers start."""

    def on_update(self, view: LiveView, control: Control) -> None:
        """Called after every update, possibly thousands of times per second."""

    def on_progress(self, view: LiveView) -> None:
        """Called a few times per second."""

    def on_evaluation(self, view: LiveView, metrics: Mapping[str, float], control: Control) -> None:
        """Called after an evaluation; ``view`` has the iteration and the time of the evaluated model.

        If the evaluation took long, more updates have arrived since; ``on_update`` has seen them.
        """

    def on_checkpoint(self, view: LiveView, path: Path) -> None:
        """Called after a checkpoint was written; more updates may have arrived since its iteration, ``path.stem``."""

    def on_worker(self, view: LiveView, worker: int, what: str) -> None:
        """Called when a worker has ``joined``, ``left``, ``died``, ``failed``, or was ``rejected`` or ``retired``."""

    def on_reply(self, view: LiveView, worker: int, kind: str, records: Any) -> None:
        """Called with what a Flower client's reply contained beside the model, before its update is used.

        ``kind`` is "train" or "evaluate", and ``records`` a ``flwr.app.RecordDict``. Its values are a client's claims:
        the server has checked nothing of them. Other engines do not call this hook.
        """

    def on_note(self, text: str) -> None:
        """Called with a note for the user: a worker died, an exception in the task's code. May precede the start."""

    def on_end(self, run: TrainingRun) -> None:
        """Called when the run has ended: done, stopped early, interrupted or diverged. Not called after an error.

        An exception here or in ``close`` is raised after all callbacks were called, with the run as its attribute
        ``run``.
        """

    def close(self) -> None:
        """Release resources. Called once per run, also if the run fails or is refused."""

    def state(self) -> dict[str, Any]:
        """Return what a resumed run needs to continue, as plain JSON data. Stored with every checkpoint."""
        return {}

    @property
    def _writing(self) -> bool:
        """Whether another thread writes something that the next checkpoint should find on the disk."""
        return False

    def load(self, state: dict[str, Any]) -> str | None:
        """Continue from a ``state`` of the run that is resumed; called before ``on_start``.

        Only called if the checkpoint holds a state of a callback of this class. A text that it returns is reported as
        a note.
        """
        return None


HOOKS = (
    "on_start",
    "on_update",
    "on_progress",
    "on_evaluation",
    "on_checkpoint",
    "on_worker",
    "on_reply",
    "on_note",
    "on_end",
)


class Hooks:
    """The overridden hooks of all callbacks, by name. Leaving the context closes the callbacks in reverse order.

    The terminal, if there is one, is called first and closed first: others may print while they close.
    """

    def __init__(self, callbacks: Sequence[Callback], terminal: Callback | None = None) -> None:
        check_callbacks(callbacks)
        self.callbacks = tuple(callbacks)
        ordered = [*([] if terminal is None else [terminal]), *callbacks]
        hooks = {
            name.removeprefix("on_"): [_blaming(callback, name) for callback in ordered if _overrides(callback, name)]
            for name in HOOKS
        }
        self.start, self.update, self.progress = hooks["start"], hooks["update"], hooks["progress"]
        self.evaluation, self.checkpoint, self.worker = hooks["evaluation"], hooks["checkpoint"], hooks["worker"]
        self.reply, self.note, self._end = hooks["reply"], hooks["note"], hooks["end"]
        self._run: TrainingRun | None = None
        self._stateful = _by_name([callback for callback in callbacks if _overrides(callback, "state")])
        self._states: dict[str, dict[str, Any]] = {}  # the newest state of each, by the same names
        self._closing = ExitStack()
        for callback in (*callbacks, *([] if terminal is None else [terminal])):
            self._closing.callback(_blaming(callback, "close"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        try:
            self._closing.__exit__(*error)  # the second time, nothing is left to close
        except Exception as raised:
            self._carry_run(raised)
            raise

    def ended(self, run: TrainingRun) -> None:
        """Tell every callback that the run has ended; then raise the first exception of any, which carries the run."""
        self._run, errors = run, []
        for hook in self._end:
            try:
                hook(run)
            except Exception as error:
                errors.append(error)
        if errors:
            for other in errors[1:]:
                errors[0].add_note(f"(and {other!r}, {culprit(other)})")
            self._carry_run(errors[0])
            raise errors[0]

    def _carry_run(self, error: Exception) -> None:
        """Nothing of a run that has ended is lost: it is an attribute of the exception that `train` raises."""
        if self._run is not None and getattr(error, "run", None) is not self._run:
            error.run = self._run  # type: ignore[attr-defined]
            error.add_note("The run had ended: its result is the attribute `run` of this exception.")

    @property
    def writing(self) -> bool:
        """Whether a callback writes something in another thread: then a checkpoint had better wait for a while."""
        return any(callback._writing for callback in self.callbacks)

    # ------------------------------------------------------------------------------------------ a resume

    def state(self, *, rescue: bool = False) -> str:
        """Return the states of all callbacks as JSON text; empty if none has a state.

        In a ``rescue`` after an error, a callback that cannot give its state keeps the one that it gave last.
        """
        for name, callback in self._stateful.items():
            try:
                self._states[name] = _plain(_blaming(callback, "state")())
            except Exception:
                if not rescue:
                    raise
        return json.dumps(self._states) if self._states else ""

    def load(self, text: str) -> list[str]:
        """Give every callback its state from a checkpoint; return notes about callbacks that differ from the run's."""
        stored: dict[str, dict[str, Any]] = json.loads(text) if text else {}
        notes = []
        for name, callback in self._stateful.items():
            if name in stored:
                note = _blaming(callback, "load")(stored[name])
                notes += [note] if note else []
            else:
                notes.append(f"callback {name} is new in this run, so it knows nothing of what happened before")
        notes += [
            f"the run had a callback {name}, which is not passed now: what it knew is dropped"
            for name in stored
            if name not in self._stateful
        ]
        return notes


def _overrides(callback: Callback, name: str) -> bool:
    hook = getattr(callback, name)
    return getattr(hook, "__func__", hook) is not getattr(Callback, name)


RAISED = "raised in "
SHOWN_ONCE = "(shown once)"
"""Stands in the notes that show an exception in the user's code, which are given once for each place in it."""


def _blaming(callback: Callback, name: str) -> Callable[..., Any]:
    """Return a method of a callback that adds the names of both to any exception."""
    method = getattr(callback, name)

    def call(*given: Any) -> Any:
        try:
            return method(*given)
        except Exception as error:
            if not culprit(error):
                error.add_note(f"{RAISED}{name} of the callback {type(callback).__name__}")
            raise

    return call


def culprit(error: BaseException) -> str:
    """Return the note that names the callback and the hook that raised an exception; empty if none did."""
    return next((note for note in getattr(error, "__notes__", ()) if note.startswith(RAISED)), "")


def _by_name(callbacks: Sequence[Callback]) -> dict[str, Callback]:
    """Return callbacks by the names of their states: the class, with a number from the second of a class on.

    A logger that is put in front of them in a resumed run therefore does not change the names.
    """
    counted: Counter[str] = Counter()
    found = {}
    for callback in callbacks:
        kind = type(callback).__name__
        counted[kind] += 1
        found[kind if counted[kind] == 1 else f"{kind} {counted[kind]}"] = callback
    return found


def _plain(state: Any) -> dict[str, Any]:
    """Return a state as JSON would return it; refuse what JSON cannot hold."""
    fix = "return a dict of texts, finite numbers, lists, dicts and None"
    if not isinstance(state, dict):
        raise BadParameter("state", state, f"is a {type(state).__name__}", fix)
    try:
        found: dict[str, Any] = json.loads(json.dumps(state, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise BadParameter("state", state, f"is not plain JSON data ({error})", fix) from error
    return found


def check_callbacks(callbacks: Any) -> None:
    """Refuse anything but a list of callbacks, and hooks that do not exist."""
    if not isinstance(callbacks, Sequence) or isinstance(callbacks, str):
        raise BadParameter("callbacks", callbacks, "is not a list", "pass [callback, ...], or leave it out")
    for callback in callbacks:
        if not isinstance(callback, Callback):
            fix = "pass an object of a class derived from asgd.Callback"
            raise BadParameter("callbacks", callback, "is not a callback", fix)
        for name in (*HOOKS, "close", "state", "load"):
            if not callable(getattr(callback, name)):
                fix = "store it under another name"
                raise BadParameter("callbacks", callback, f"has a value {name} in place of a method", fix)
        unknown = [name for name in dir(callback) if name.startswith("on_") and name not in HOOKS]
        if unknown:
            problem = f"has a method {unknown[0]}, which no run calls"
            raise BadParameter("callbacks", callback, problem, nearest(unknown[0], HOOKS))
