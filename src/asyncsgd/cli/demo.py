"""``asyncsgd demo``: train on digits with one slow worker, by four methods, to the same accuracy."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table

from asyncsgd import methods, theory
from asyncsgd.core.errors import BadParameter, MissingLibrary
from asyncsgd.core.method import Method
from asyncsgd.core.validate import count, positive
from asyncsgd.engines import processes
from asyncsgd.format import number, rounded
from asyncsgd.run import Callback, Control, LiveView, TrainingRun, train

TARGET = 0.95
STEP = 0.15
JOB = 0.012
"""Minimum seconds per job, so that four workers on two cores behave like four machines."""
MOST = 6000
HEADINGS = ("method", "seconds", "speed-up", "predicted", "gradients", "per s", "τ avg", "τ max")


@dataclass(frozen=True)
class Row:
    """The result of one method."""

    method: str
    seconds: float | None
    """Seconds to the target; None if the method did not reach it."""
    speedup: float | None
    """Measured speed-up over mini-batch SGD."""
    predicted: float
    """Speed-up that the theory predicts from the times per gradient."""
    gradients: int
    per_second: float
    average_delay: float
    maximum_delay: int


def show(workers: int, slowdown: float, directory: Path, as_json: bool) -> None:
    """Train with every method, print the table, and write the page."""
    directory = free(directory)
    runs = measure(workers, slowdown, directory)
    rows = summarise(runs, workers, slowdown)
    page = _page(runs, rows, workers, slowdown, directory)
    if as_json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    console = Console(highlight=False)
    console.print(_table(rows, workers, slowdown), "")
    console.print(f"Page: {page} (open it in a browser)", soft_wrap=True)
    console.print(f"All runs are stored. Try: {_command()} replay {directory / 'asynchronous'}", soft_wrap=True)


def _command() -> str:
    """Return the command as the user can type it: ``make demo`` runs in an environment that is not activated."""
    if shutil.which("asyncsgd") is not None:
        return "asyncsgd"
    script = Path(sys.executable).with_name("asyncsgd")
    return str(script.relative_to(Path.cwd()) if script.is_relative_to(Path.cwd()) else script)


def candidates(workers: int) -> dict[str, Method]:
    """Return the methods to compare, all with the same step size."""
    return {
        "mini-batch": methods.minibatch_sgd(STEP),
        "asynchronous": methods.async_sgd(STEP),
        "delay-adaptive": methods.delay_adaptive(STEP),
        "Algorithm 2": methods.federated_async_sgd(STEP, concurrency=workers),
    }


def measure(workers: int, slowdown: float, directory: Path) -> dict[str, TrainingRun]:
    """Train every candidate to the same accuracy, with a progress bar for each."""
    count("workers", workers)
    positive("slowdown", slowdown)
    if workers < 2:
        raise BadParameter("workers", workers, "is too few to compare a slow worker with others", "pass at least 2")
    if slowdown < 1:
        raise BadParameter("slowdown", slowdown, "makes the last worker faster than the others", "pass at least 1")
    task = _digits()
    engine = processes(workers, min_seconds=_durations(workers, slowdown))
    runs: dict[str, TrainingRun] = {}
    console = Console(stderr=True)
    columns = (TextColumn("{task.fields[name]:>15}"), BarColumn(bar_width=24), TextColumn("{task.description}"))
    with Progress(*columns, console=console, disable=not console.is_terminal) as bars:
        for name, method in candidates(workers).items():
            runs[name] = train(
                task,
                method,
                engine,
                iterations=MOST,
                until=f"accuracy >= {TARGET}",
                every=10,
                directory=directory / _folder(name),
                progress=False,
                callbacks=[_Bar(bars, name)],
            )
    return runs


def free(directory: Path) -> Path:
    """Return this directory, or one with a number appended if it already holds a demo."""
    number, found = 1, directory
    while any((found / _folder(name)).exists() for name in candidates(1)):
        number += 1
        found = directory.with_name(f"{directory.name}-{number}")
    return found


def _folder(name: str) -> str:
    return name.replace(" ", "-").lower()


class _Bar(Callback):
    """A progress bar that is full when the target accuracy is reached."""

    def __init__(self, bars: Progress, name: str) -> None:
        self._bars = bars
        self._line = bars.add_task("starting workers", total=TARGET, name=name)

    def on_evaluation(self, view: LiveView, metrics: Mapping[str, float], control: Control) -> None:
        self._bars.update(
            self._line,
            completed=min(TARGET, metrics["accuracy"]),
            description=f"accuracy {metrics['accuracy']:.3f} after {view.seconds:.1f} s and {view.iteration} gradients",
        )

    def on_progress(self, view: LiveView) -> None:
        self._bars.refresh()


def summarise(runs: Mapping[str, TrainingRun], workers: int, slowdown: float) -> list[Row]:
    """Return one row per method, measured and predicted."""
    durations = _durations(workers, slowdown)
    queued = theory.speedup(durations, workers).queued_fixed / workers
    always_busy = 1 / sum(1 / duration for duration in durations)
    expected = {"mini-batch": max(durations) / workers, "Algorithm 2": queued}
    base = runs["mini-batch"]
    rows = []
    for name, run in runs.items():
        delays = run.trace.delays
        both = run.reached and base.reached
        rows.append(
            Row(
                method=name,
                seconds=float(run.metrics["time"][-1]) if run.reached else None,
                speedup=float(base.metrics["time"][-1] / run.metrics["time"][-1]) if both else None,
                predicted=expected["mini-batch"] / expected.get(name, always_busy),
                gradients=run.trace.iterations,
                per_second=run.trace.iterations / run.seconds,
                average_delay=delays.average,
                maximum_delay=delays.maximum,
            )
        )
    return rows


def _durations(workers: int, slowdown: float) -> list[float]:
    return [JOB] * (workers - 1) + [slowdown * JOB]


def _digits() -> Any:
    """Return the task: one hidden layer on scikit-learn's 8 x 8 digits, a quarter of which is the test set."""
    try:
        import torch
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split
    except ModuleNotFoundError as error:
        raise MissingLibrary("the demo", str(error.name), "asyncsgd[demo]") from error
    from asyncsgd import tasks

    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.25, random_state=0, stratify=labels)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in parts)
    torch.manual_seed(0)
    return tasks.torch(
        model=torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)),
        loss=torch.nn.CrossEntropyLoss(),
        data=(train_x.float(), train_y),
        test=(test_x.float(), test_y),
        batch_size=32,
    )


def _table(rows: list[Row], workers: int, slowdown: float) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
        show_edge=False,  # fits into 80 columns
        title=f"{workers} workers, one {slowdown:g} times slower: seconds to {TARGET:.0%} accuracy",
        caption="predicted: from the times per gradient alone, with one core per worker; τ: delay, in updates",
    )
    for heading in HEADINGS:
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*_cells(row))
    return table


def _cells(row: Row) -> list[str]:
    speedup = "–"
    if row.seconds is not None and row.speedup is not None:  # from the rounded seconds, so that the columns agree
        speedup = f"{rounded(row.seconds * row.speedup) / rounded(row.seconds):.1f}×"
    return [
        row.method,
        "not reached" if row.seconds is None else number(row.seconds, 3),
        speedup,
        f"{row.predicted:.1f}×",
        str(row.gradients),
        f"{row.per_second:.0f}",
        f"{row.average_delay:.1f}",
        str(row.maximum_delay),
    ]


def _page(runs: Mapping[str, TrainingRun], rows: list[Row], workers: int, slowdown: float, directory: Path) -> Path:
    from asyncsgd.pages.page import Page
    from asyncsgd.pages.run_page import compose
    from asyncsgd.pages.sources import gather

    def verdict(page: Page) -> None:
        page.section("Time to the same accuracy")
        page.table(HEADINGS, [_cells(row) for row in rows], f"scikit-learn digits, time to {TARGET:.0%} test accuracy")
        page.text("Predicted: from the times per gradient alone. τ: delay, in updates.", css="why")

    lead = (
        f"{workers} workers on this machine, the last one {slowdown:g} times slower. "
        "Each run below either waits for the slow worker or does not."
    )
    return compose(gather(runs), "asyncsgd demo", lead, verdict).write(directory / "index.html")
