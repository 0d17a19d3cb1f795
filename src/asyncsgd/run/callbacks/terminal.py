"""The terminal callback: a progress line, notes above it, and a summary at the end."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from asyncsgd.format import clock, number
from asyncsgd.run.callbacks.base import SHOWN_ONCE, Callback, Control, LiveView

if TYPE_CHECKING:
    from rich.progress import Progress

    from asyncsgd.run.results import TrainingRun


class Terminal(Callback):
    """A live progress line on a terminal; elsewhere one line every half minute. Notes are printed above it."""

    def __init__(
        self,
        seconds: float = 30.0,
        *,
        summary: bool = True,
        evaluated: Callable[[LiveView, Mapping[str, float]], str] | None = None,
    ) -> None:
        """Print a line every ``seconds`` where output cannot be redrawn, and a summary at the end if ``summary``.

        ``evaluated`` returns a line to print for every evaluation; by default the progress line alone shows them. An
        interrupted run always gets a summary, because `asyncsgd.train` does not return it.
        """
        from rich.console import Console

        self._summary, self._evaluated = summary, evaluated
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._seconds, self._next = seconds, seconds

    def on_start(self, view: LiveView) -> None:
        """Start the progress line."""
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        if view.resumed_at is None:
            for note in view.config.get("notes", ()):
                self.on_note(note)
        if self._console.is_terminal:
            text = TextColumn("{task.description}", table_column=Column())  # narrow terminals wrap only this column
            columns = (BarColumn(bar_width=12), TextColumn("{task.fields[left]}"), text)
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._line = self._bar.add_task("starting workers", total=view.wanted, left="")
            self._bar.start()

    def on_progress(self, view: LiveView) -> None:
        """Draw the current state."""
        if self._bar is not None:
            left = time_left(view).strip()
            self._bar.update(self._line, completed=view.iteration, description=describe(view), left=left)
        elif view.seconds >= self._next:
            self._next = view.seconds + self._seconds
            self._console.print(describe(view) + time_left(view), soft_wrap=True)

    def on_evaluation(self, view: LiveView, metrics: Mapping[str, float], control: Control) -> None:
        """Print the metrics, if every evaluation has a line of its own."""
        if self._evaluated is not None and metrics:
            self.on_note(self._evaluated(view, metrics))

    def on_note(self, text: str) -> None:
        """Print a note."""
        self._console.print(text, markup=False, soft_wrap=True)

    def on_end(self, run: TrainingRun) -> None:
        """Stop drawing, and print a summary."""
        from asyncsgd.run.view import RunView

        self.close()
        if self._summary or run.interrupted is not None:
            self.on_note(RunView.of(run).text())

    def close(self) -> None:
        """Remove the progress line."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


class ExceptionsAlone(Callback):
    """Prints nothing but the exceptions in the user's code that do not stop the run: for ``progress=False``."""

    def on_note(self, text: str) -> None:
        """Print a note that has a traceback."""
        if SHOWN_ONCE in text:
            print(text, file=sys.stderr)


def terminal(callbacks: object, *, progress: bool) -> Callback | None:
    """Return what prints on the terminal beside these callbacks; None if one of them does it already."""
    if progress:
        return Terminal()
    given = callbacks if isinstance(callbacks, Sequence) else ()
    return None if any(isinstance(callback, Terminal) for callback in given) else ExceptionsAlone()


def describe(view: LiveView) -> str:
    """Return one line: iterations, epochs, speed, metrics, delays, workers."""
    shown = [f"{name} {number(value)}" for name, value in view.metrics.items() if isinstance(value, int | float)]
    return "  ".join(
        [
            f"{view.iteration:,}/{view.wanted:,}",
            *([f"epoch {epochs(view)}"] if view.epoch is not None else []),
            *([f"{number(view.updates_per_second)}/s"] if view.updates_per_second else []),
            *shown[:3],
            f"τ avg {number(view.average_delay, 2)} max {view.maximum_delay}",
            f"{view.workers} workers",
        ]
    )


def epochs(view: LiveView) -> str:
    """Return how many epochs are done, and how many are wanted if that decides where the run ends: ``1.25/3``."""
    return f"{view.epoch:.2f}" + ("" if view.epochs is None else f"/{view.epochs}")


def time_left(view: LiveView) -> str:
    """Return the remaining time at the recent speed; empty if the speed is unknown."""
    if view.updates_per_second <= 0:
        return ""
    return f"  {clock(round((view.wanted - view.iteration) / view.updates_per_second))} left"
