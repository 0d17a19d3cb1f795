"""``make demo``: one straggler among eight workers, every method to the same accuracy on the same clock."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from asyncsgd import methods, tasks
from asyncsgd.core.check import count, positive
from asyncsgd.core.method import Method
from asyncsgd.simulation import Run, durations, simulate

TARGET = 1e-3


@dataclass(frozen=True)
class Row:
    """One method's way to the target."""

    method: str
    seconds: float | None
    """Simulated time until the loss stays at or below the target; None if it never did."""
    gradients: int
    per_second: float
    average_delay: float
    maximum_delay: int


def _candidates(stepsize: float, workers: int) -> dict[str, Method]:
    most = max(1, workers - 1)
    return {
        "mini-batch": methods.minibatch_sgd(stepsize),
        "over-selection": methods.over_selection(stepsize * most, goal=most, ask=workers),
        "asynchronous": methods.async_sgd(stepsize),
        "delay-adaptive": methods.delay_adaptive(stepsize),
    }


def measure(workers: int, slowdown: float) -> list[Row]:
    """Every candidate to the same loss, with progress on the terminal."""
    count("workers", workers)
    positive("slowdown", slowdown)
    task = tasks.quadratic(dim=10, workers=workers, noise=0.3)
    speeds = durations.fixed([1.0] * (workers - 1) + [slowdown])
    candidates = _candidates(0.02, workers)
    rows = []
    with Progress(console=Console(stderr=True), transient=True) as progress:
        bar = progress.add_task("the first run ever compiles for half a minute", total=len(candidates))
        for name, method in candidates.items():
            rows.append(_summary(name, simulate(task, method, speeds, iterations=2000, every=1)))
            progress.update(bar, advance=1, description=f"{name} done")
    return rows


def _summary(name: str, run: Run) -> Row:
    """Read the way to the target off the metrics: from there on, the loss averaged over 50 values stays below."""
    smooth = np.convolve(run.metrics["loss"], np.ones(50) / 50, mode="valid")
    above = np.flatnonzero(smooth > TARGET)
    reached = 0 if not above.size else int(above[-1]) + 1
    place = reached + 49
    found = place < len(run.metrics["time"])
    delays, time = run.trace.delays, run.metrics["time"]
    return Row(
        method=name,
        seconds=float(time[place]) if found else None,
        gradients=int(run.metrics["iteration"][place]) if found else len(time) - 1,
        per_second=(len(time) - 1) / float(time[-1]),
        average_delay=delays.average,
        maximum_delay=delays.maximum,
    )


def show(workers: int, slowdown: float, as_json: bool) -> None:
    """Print the comparison."""
    rows = measure(workers, slowdown)
    if as_json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=2)
        sys.stdout.write("\n")
        return
    Console().print(_table(rows, workers, slowdown))


def _table(rows: list[Row], workers: int, slowdown: float) -> Table:
    table = Table(
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        title=f"{workers} workers, one {slowdown:g} times slower: simulated seconds to loss {TARGET:g}",
        caption="noisy quadratic, the same step per gradient for all; τ: delay in iterations",
    )
    for heading in ("method", "seconds", "speed-up", "gradients", "gradients/s", "τ avg", "τ max"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    base = rows[0].seconds
    for row in rows:
        cells: list[Any] = [
            row.method,
            "not reached" if row.seconds is None else f"{row.seconds:.0f}",
            "" if row.seconds is None or base is None else f"{base / row.seconds:.1f}×",
            str(row.gradients),
            f"{row.per_second:.2f}",
            f"{row.average_delay:.1f}",
            str(row.maximum_delay),
        ]
        table.add_row(*cells)
    return table
