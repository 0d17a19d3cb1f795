"""What all loggers do alike: gather rows, write them now and then, remember ids, and never stand in the run's way."""

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
    """Numbers of one moment."""

    iteration: int
    seconds: float
    """On the clock of the run."""
    stamp: float
    """Seconds since 1970."""
    values: Mapping[str, float]


class Logger(Callback):
    """Base of the loggers. Give ``kind`` and the methods below it; whatever they raise, the run goes on."""

    kind = ""
    """Its name, its extra, and its key in loggers.json."""

    def _open(self, config: Mapping[str, Any], known: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """A run begins, or one with these ids goes on; the ids to remember. May raise."""
        raise NotImplementedError

    def _write(self, rows: list[Row]) -> None:
        raise NotImplementedError

    def _say(self, note: str, iteration: int) -> None:
        raise NotImplementedError

    def _finish(self, run: TrainingRun, summary: Mapping[str, Any]) -> None:
        raise NotImplementedError

    def _close(self, run: TrainingRun | None) -> None:
        """Give back everything; None: the run has failed."""
        raise NotImplementedError

    # ------------------------------------------------------------------------------------------ a callback

    def __init__(self, every: float) -> None:
        positive("every", every)
        self._every = every
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
        """Remember a row; it is written with the next progress."""
        self._iteration = view.iteration
        self._rows.append(Row(view.iteration, view.seconds, self.now(), {**metrics, "run/seconds": view.seconds}))

    def on_progress(self, view: LiveView) -> None:
        """Write, if it is time to."""
        self._iteration = view.iteration
        if view.seconds < self._next:
            return
        self._next = view.seconds + self._every
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
        """Write it down at once."""
        self._try(self._say, text, self._iteration)

    def on_end(self, run: TrainingRun) -> None:
        """Write what is left, and the summary."""
        self._run = run
        self._flush()
        self._try(self._finish, run, RunView.of(run).headline())

    def close(self) -> None:
        """Close, whatever happened."""
        self._flush()
        self._try(self._close, self._run)
        self._is_open = False

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if rows:
            self._try(self._write, rows)

    def _try(self, do: Callable[..., None], *what: Any) -> None:
        if not self._is_open:  # it has failed, or never began
            return
        try:
            do(*what)
        except Exception as error:
            self._is_open = False
            words = f"logging to {self.kind} has ended: {type(error).__name__}: {error}; the run goes on"
            warnings.warn(words, LoggerWarning, stacklevel=2)


def needs(kind: str, imported: Callable[[], Any]) -> Any:
    """Import what an extra brings, or say which extra."""
    try:
        return imported()
    except ModuleNotFoundError as error:
        raise MissingLibrary(
            f"asgd.callbacks.{kind}", (error.name or kind).partition(".")[0], f"asyncsgd[{kind}]"
        ) from error


def flat(config: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Nested words and numbers with dots between the names; what is nothing is left out.

    >>> dict(flat({"seed": 0, "engine": {"workers": 4, "slowdown": [1, 10]}, "until": None}))
    {'seed': 0, 'engine.workers': 4, 'engine.slowdown': '[1, 10]'}
    """
    for name, value in config.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif value is not None:
            yield prefix + name, value if isinstance(value, str | int | float) else json.dumps(value, default=str)


def title(config: Mapping[str, Any]) -> str:
    """What a run is called if nobody says: its method, and where it is kept."""
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
        raise BadRunDirectory(f"{directory / IDS} is damaged (it is no object); remove it to log under new ids")
    return found
