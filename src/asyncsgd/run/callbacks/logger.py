"""Base of the loggers: collect rows, write them periodically, remember ids, and never stop the run."""

from __future__ import annotations

import json
import math
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from asyncsgd._files import write_text
from asyncsgd.core.errors import BadRunDirectory, LoggerWarning, MissingLibrary
from asyncsgd.core.validate import positive
from asyncsgd.run.callbacks.base import Callback, Control, LiveView
from asyncsgd.run.view import RunView

if TYPE_CHECKING:
    from asyncsgd.run.results import TrainingRun

IDS = "loggers.json"


@dataclass(frozen=True)
class Row:
    """The numbers of one moment."""

    iteration: int
    seconds: float
    """Time on the clock of the run."""
    stamp: float
    """Seconds since 1970."""
    values: Mapping[str, float]


class Logger(Callback):
    """Base class of the loggers. Override ``kind`` and the methods below; if they raise, the run continues.

    See docs/howto/callback.md for the hooks of a callback.
    """

    kind = ""
    """Name of the logger, of its extra, and its key in loggers.json."""

    def _open(self, config: Mapping[str, Any], known: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Start a run, or continue the one with the ``known`` ids; return the ids to remember. May raise."""
        raise NotImplementedError

    def _write(self, rows: list[Row]) -> None:
        raise NotImplementedError

    def _say(self, note: str, iteration: int) -> None:
        raise NotImplementedError

    def _finish(self, run: TrainingRun, summary: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _close(self, run: TrainingRun | None) -> None:
        """Release everything; ``run`` is None if the run failed."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ a callback

    def __init__(self, seconds: float) -> None:
        positive("seconds", seconds)
        self._seconds = seconds
        self._rows: list[Row] = []
        self._next = -math.inf
        self._iteration = 0
        self._is_open = False
        self._run: TrainingRun | None = None
        self.now: Callable[[], float] = time.time

    def on_start(self, view: LiveView) -> None:
        """Start, or resume what loggers.json names."""
        directory = view.directory
        known = _read(directory).get(self.kind) if directory and view.resumed_at is not None else None
        self._rows, self._next, self._run = [], -math.inf, None
        self._iteration = view.resumed_at or 0
        where = None if directory is None else str(directory)
        config = {**view.config, "directory": where, "resumed_at": view.resumed_at}
        ids = self._open(config, known)
        self._is_open = True
        if directory is not None and ids:
            write_text(directory / IDS, json.dumps({**_read(directory), self.kind: dict(ids)}, indent=2) + "\n")

    def on_evaluation(self, view: LiveView, metrics: Mapping[str, float], control: Control) -> None:
        """Keep a row; the next ``on_progress`` writes it."""
        self._iteration = view.iteration
        self._rows.append(Row(view.iteration, view.seconds, self.now(), {**metrics, "run/seconds": view.seconds}))

    def on_progress(self, view: LiveView) -> None:
        """Write the rows, at most once in ``seconds`` seconds."""
        self._iteration = view.iteration
        if view.seconds < self._next:
            return
        self._next = view.seconds + self._seconds
        values = {
            "run/updates_per_second": view.updates_per_second,
            "run/workers": float(view.workers),
            "run/seconds": view.seconds,
            "delay/average": view.average_delay,
            "delay/maximum": float(view.maximum_delay),
        }
        self._rows.append(Row(view.iteration, view.seconds, self.now(), values))
        self._flush()

    def on_note(self, text: str) -> None:
        """Write a note at once."""
        self._try(self._say, text, self._iteration)

    def on_end(self, run: TrainingRun) -> None:
        """Write the remaining rows and the summary."""
        self._run = run
        self._flush()
        self._try(self._finish, run, RunView.of(run).headline())

    def close(self) -> None:
        """Write the remaining rows and close the logger."""
        self._flush()
        self._try(self._close, self._run)
        self._is_open = False

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._try(self._write, rows)

    def _try(self, do: Callable[..., None], *what: Any) -> None:
        if not self._is_open:  # it failed, or never started
            return
        try:
            do(*what)
        except Exception as error:
            self._is_open = False
            text = f"logging to {self.kind} has ended: {type(error).__name__}: {error}; the run continues"
            warnings.warn(text, LoggerWarning, stacklevel=2)


def needs(kind: str, imported: Callable[[], Any]) -> Any:
    """Import the libraries of an extra, or name the extra to install."""
    try:
        return imported()
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"asgd.callbacks.{kind}", (error.name or kind).partition(".")[0], f"asyncsgd[{kind}]"
        ) from error


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested values under names joined by dots, without those that are None.

    >>> dict(flat({"seed": 0, "engine": {"workers": 4, "slowdown": [1, 10]}, "until": None}))
    {'seed': 0, 'engine.workers': 4, 'engine.slowdown': '[1, 10]'}
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value if isinstance(value, str | int | float) else json.dumps(value, default=str)


def title(config: Mapping[str, Any]) -> str:
    """Return the default name of a run: its method and its directory."""
    where = config["directory"]
    return config["method_name"] if where is None else f"{config['method_name']} {Path(where).name}"


def finite(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return the numbers of a headline, the metrics, outcomes and faults in it included."""
    numbers: dict[str, Any] = {**summary["faults"], **summary["jobs"], **summary["metrics"], **summary}
    numbers = {name: value for name, value in numbers.items() if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if math.isfinite(value)}


def _read(directory: Path) -> dict[str, Any]:
    try:
        found = json.loads((directory / IDS).read_text("utf-8"))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise BadRunDirectory(f"{directory / IDS} is damaged ({error}); remove it to log under new ids") from error
    if not isinstance(found, dict):
        raise BadRunDirectory(f"{directory / IDS} is damaged (not a JSON object); remove it to log under new ids")
    return found
