"""Who is told while a run goes on: the terminal, a logger, whoever the user passes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

    from asyncsgd.run.results import TrainingRun


@dataclass(frozen=True, slots=True)
class Status:
    """How a run stands."""

    iteration: int
    iterations: int
    seconds: float
    per_second: float
    """Iterations, lately; 0 before the first one."""
    workers: int
    """Alive."""
    average_delay: float
    maximum_delay: int
    metrics: Mapping[str, Any]
    """The newest evaluation."""


class Listener:
    """Base of those who want to hear; give the methods that you need. They are called in the server's own thread."""

    def starting(self, words: str) -> None:
        """The workers are about to be started, which takes a while: where. Comes before ``started``, if at all."""

    def started(self, config: Mapping[str, Any]) -> None:
        """The run begins, or goes on. Beside what run.json says, ``config`` has these keys.

        ``directory``, or None; ``resumed_at``: the iteration that it goes on from, None if it begins.
        """

    def measured(self, iteration: int, seconds: float, metrics: Mapping[str, Any]) -> None:
        """The task has been evaluated."""

    def progressed(self, status: Status) -> None:
        """A few times per second."""

    def noted(self, message: str) -> None:
        """Something that a user should know: a worker died, an exception in the user's code."""

    def ended(self, run: TrainingRun) -> None:
        """The run is over."""

    def stop(self) -> None:
        """`asyncsgd.train` or `asyncsgd.flower.serve` returns or raises: give back what you hold.

        Comes even where ``ended`` does not.
        """


class Terminal(Listener):
    """A line that moves, on a terminal; elsewhere a line every half minute. Notes are printed above it."""

    def __init__(self, every: float = 30.0, *, summary: bool = True) -> None:
        """Print a line every so many seconds where no line can move; at the end what there is to say, if ``summary``.

        An interrupted run is always summed up: nobody else is given it.
        """
        from rich.console import Console

        self._summary = summary
        self._console = Console(stderr=True, highlight=False)
        self._bar: Progress | None = None
        self._every, self._next = every, every
        self._total = 0

    def starting(self, words: str) -> None:
        """Say so to whoever looks at the terminal."""
        if self._console.is_terminal:
            self.noted(words)

    def started(self, config: Mapping[str, Any]) -> None:
        """Begin to draw."""
        from rich.progress import BarColumn, Progress, TextColumn
        from rich.table import Column

        self._total = int(config["iterations"])
        if config.get("resumed_at") is None:
            for note in config.get("notes", ()):
                self.noted(note)
        if self._console.is_terminal:
            words = TextColumn("{task.description}", table_column=Column())  # the one that narrow terminals break
            columns = (BarColumn(bar_width=12), TextColumn("{task.fields[left]}"), words)
            self._bar = Progress(*columns, console=self._console, transient=True)
            self._line = self._bar.add_task("starting workers", total=self._total, left="")
            self._bar.start()

    def progressed(self, status: Status) -> None:
        """Draw how it stands."""
        if self._bar is not None:
            left = time_left(status).strip()
            self._bar.update(self._line, completed=status.iteration, description=describe(status), left=left)
        elif status.seconds >= self._next:
            self._next = status.seconds + self._every
            self._console.print(describe(status) + time_left(status), soft_wrap=True)

    def noted(self, message: str) -> None:
        """Print it."""
        self._console.print(message, markup=False, soft_wrap=True)

    def ended(self, run: TrainingRun) -> None:
        """Stop drawing, and say how it went."""
        from asyncsgd.run.view import RunView

        self.stop()
        if self._summary or run.interrupted is not None:
            self.noted(RunView.of(run).text())

    def stop(self) -> None:
        """Give the terminal back."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None


def describe(status: Status) -> str:
    """One line: iterations, speed, metrics, delays, workers.

    >>> describe(Status(200, 1000, 2.0, 100.0, 4, 3.5, 12, {"loss": 0.25, "accuracy": 0.9}))
    '200/1000  100/s  loss 0.25  accuracy 0.9  τ avg 3.5 max 12  4 workers'
    """
    shown = [f"{name} {value:.4g}" for name, value in status.metrics.items() if isinstance(value, int | float)]
    return "  ".join(
        [
            f"{status.iteration}/{status.iterations}",
            *([f"{status.per_second:.4g}/s"] if status.per_second else []),
            *shown[:3],
            f"τ avg {status.average_delay:.2g} max {status.maximum_delay}",
            f"{status.workers} workers",
        ]
    )


def time_left(status: Status) -> str:
    """At the speed of late; nothing where that cannot be said.

    >>> time_left(Status(200, 1000, 2.0, 100.0, 4, 3.5, 12, {}))
    '  0:00:08 left'
    """
    if status.per_second <= 0:
        return ""
    return f"  {timedelta(seconds=round((status.iterations - status.iteration) / status.per_second))} left"
