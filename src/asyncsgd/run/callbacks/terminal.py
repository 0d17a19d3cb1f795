"""The terminal as a callback: a line that moves, notes above it, and a summary at the end."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncsgd.format import clock, number
from asyncsgd.run.callbacks.base import Callback, LiveView

if TYPE_CHECKING:
    from rich.progress import Progress

    from asyncsgd.run.results import TrainingRun


class Terminal(Callback):
    """A line that moves, on a terminal; elsewhere a line every half minute. Notes are printed above it."""

    def __init__(self, every: float = 30.0, *, summary: bool = True) -> None:
        """Print a line every so many seconds where no line can move; at the end a summary, if ``summary``.

        An interrupted run is always summed up, as `asyncsgd.train` does not return it.
        """
        from rich.console import Console

        self._summary = summary
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._every, self._next = every, every

    def on_start(self, view: LiveView) -> None:
        """Start to draw."""
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        if view.resumed_at is None:
            for note in view.config.get("notes", ()):
                self.on_note(note)
        if self._console.is_terminal:
            words = TextColumn("{task.description}", table_column=Column())  # the one that narrow terminals break
            columns = (BarColumn(bar_width=12), TextColumn("{task.fields[left]}"), words)
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._line = self._bar.add_task("starting workers", total=view.wanted, left="")
            self._bar.start()

    def on_progress(self, view: LiveView) -> None:
        """Draw how the run stands."""
        if self._bar is not None:
            left = time_left(view).strip()
            self._bar.update(self._line, completed=view.iteration, description=describe(view), left=left)
        elif view.seconds >= self._next:
            self._next = view.seconds + self._every
            self._console.print(describe(view) + time_left(view), soft_wrap=True)

    def on_note(self, text: str) -> None:
        """Print it."""
        self._console.print(text, markup=False, soft_wrap=True)

    def on_end(self, run: TrainingRun) -> None:
        """Stop drawing, and print a summary."""
        from asyncsgd.run.view import RunView

        self.close()
        if self._summary or run.interrupted is not None:
            self.on_note(RunView.of(run).text())

    def close(self) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def describe(view: LiveView) -> str:
    """Return one line: iterations, speed, metrics, delays, workers."""
    shown = [f"{name} {number(value)}" for name, value in view.metrics.items() if isinstance(value, int | float)]
    return "  ".join(
        [
            f"{view.iteration:,}/{view.wanted:,}",
            *([f"{number(view.updates_per_second)}/s"] if view.updates_per_second else []),
            *shown[:3],
            f"τ avg {number(view.average_delay, 2)} max {view.maximum_delay}",
            f"{view.workers} workers",
        ]
    )


def time_left(view: LiveView) -> str:
    """Return how long the rest takes at the speed of late; nothing where that is not known."""
    if view.updates_per_second <= 0:
        return ""
    return f"  {clock(round((view.wanted - view.iteration) / view.updates_per_second))} left"
