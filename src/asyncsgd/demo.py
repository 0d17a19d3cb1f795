"""``make demo``: one straggler among eight workers, every method to the same accuracy on the same clock."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from asyncsgd import methods, tasks
from asyncsgd.core.check import count, positive
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.simulation import Run, durations, simulate

TARGET = 1e-3
ITERATIONS = 2000
SEEDS = 9


@dataclass(frozen=True)
class Row:
    """One method's way to the target."""

    method: str
    seconds: float | None
    """Simulated time to the target, the median over the seeds; None if most never got there."""
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
    if workers < 2:
        raise BadParameter("workers", workers, "leaves nobody to wait for", "pass at least 2")
    if slowdown < 1:
        raise BadParameter("slowdown", slowdown, "makes the last worker faster", "pass at least 1")
    task = tasks.quadratic(dim=10, workers=workers, noise=0.15)
    speeds = durations.fixed([1.0] * (workers - 1) + [slowdown])
    candidates = _candidates(0.02, workers)
    rows = []
    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as progress:
        bar = progress.add_task("the first run ever compiles for half a minute", total=len(candidates))
        for name, method in candidates.items():
            runs = [simulate(task, method, speeds, iterations=ITERATIONS, every=1, seed=seed) for seed in range(SEEDS)]
            rows.append(_summary(name, runs))
            progress.update(bar, advance=1, description=f"{name} done")
    return rows


def _summary(name: str, runs: list[Run]) -> Row:
    """The median over the seeds of the first time at which the mean of the last 20 losses is at the target."""
    places = [_first_below(run.metrics["loss"]) for run in runs]
    reached = sorted(
        (place, float(run.metrics["time"][place])) for place, run in zip(places, runs, strict=True) if place
    )
    half = len(runs) // 2
    found = reached[half] if len(reached) > half else None
    delays, time = runs[0].trace.delays, runs[0].metrics["time"]
    return Row(
        method=name,
        seconds=found[1] if found else None,
        gradients=found[0] if found else ITERATIONS,
        per_second=ITERATIONS / float(time[-1]),
        average_delay=delays.average,
        maximum_delay=delays.maximum,
    )


def _first_below(losses: NDArray[np.float64]) -> int | None:
    smooth = np.convolve(losses, np.ones(20) / 20, mode="valid")
    below = np.flatnonzero(smooth <= TARGET)
    return int(below[0]) + 19 if below.size else None


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
        caption="noisy quadratic, the same step per gradient, median of 9 seeds; τ: delays",
    )
    for heading in ("method", "seconds", "speed-up", "gradients", "gradients/s", "τ avg", "τ max"):
        table.add_column(heading, justify="left" if heading == "method" else "right", no_wrap=True)
    base = rows[0].seconds
    for row in rows:
        cells: list[Any] = [
            row.method,
            f"not in {ITERATIONS}" if row.seconds is None else f"{row.seconds:.0f}",
            "" if row.seconds is None or base is None else f"{base / row.seconds:.1f}×",
            str(row.gradients),
            f"{row.per_second:.2f}",
            f"{row.average_delay:.1f}",
            str(row.maximum_delay),
        ]
        table.add_row(*cells)
    return table
