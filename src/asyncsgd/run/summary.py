"""What a run says at its end, for people and for programs."""

from __future__ import annotations

import math
from typing import Any

from asyncsgd.core.events import Outcome
from asyncsgd.run.directory import LAST_FINITE
from asyncsgd.run.ending import DIVERGED, INTERRUPTED, of_run
from asyncsgd.run.results import TrainingRun


def as_row(run: TrainingRun) -> dict[str, Any]:
    """The numbers of a run, as JSON knows them."""
    delays = run.trace.delays
    last = {name: float(values[-1]) for name, values in run.metrics.items() if name not in ("iteration", "time")}
    return {
        "method": run.method.name,
        "iterations": run.trace.iterations,
        "seconds": run.seconds,
        **{name: value if math.isfinite(value) else None for name, value in last.items()},
        "updates_per_second": run.trace.iterations / run.seconds if run.seconds else None,
        "average_delay": delays.average,
        "maximum_delay": delays.maximum,
        "concurrency": delays.concurrency,
        "unused": run.unused,
        "dropped": run.trace.counts[Outcome.DROPPED],
        "rejected": run.faults.rejected,
        "lost": run.trace.counts[Outcome.LOST],
        "exceptions": run.faults.exceptions,
        "deaths": run.faults.deaths,
        "retired": list(run.faults.retired),
        "reached": run.reached,
        "interrupted": run.interrupted,
        "diverged": run.diverged,
        "x_iteration": run.x_iteration,
        "facts": list(run.diagnosis.facts),
        "problems": list(run.diagnosis.problems),
        "directory": None if run.directory is None else str(run.directory),
    }


def as_text(run: TrainingRun) -> str:
    """A few lines: how it ended, what it reached, what there is to see and what is wrong."""
    row = as_row(run)
    last = {name: values[-1] for name, values in run.metrics.items() if name not in ("iteration", "time")}
    shown = "".join(f", {name} {value:.4g}" for name, value in last.items())
    speed = "" if not row["updates_per_second"] else f" ({row['updates_per_second']:.4g}/s)"
    lines = [
        f"{run.method.name} {_end(run)}: {row['iterations']} iterations in {run.seconds:.1f} s{speed}{shown}",
        *(f"  {fact}" for fact in run.diagnosis.facts),
        *(f"  ! {problem}" for problem in run.diagnosis.problems),
    ]
    if run.x_iteration is not None and run.trace.iterations:
        where = "" if run.directory is None else f"; it is kept in {run.directory / LAST_FINITE}"
        lines.append(f"  x is the model of iteration {run.x_iteration}, the last one with finite metrics{where}")
    interrupted = of_run(run).state == INTERRUPTED
    if interrupted and run.directory is None:
        lines.append("  nothing was kept: there is no directory")
    elif interrupted:
        lines.append(f"  saved in {run.directory}: resume with resume=True, or --resume on the command line")
    elif run.directory is not None:
        lines.append(f"  kept in {run.directory}; asyncsgd report {run.directory} writes its page")
    return "\n".join(lines)


def _end(run: TrainingRun) -> str:
    end = of_run(run)
    if end.state == DIVERGED:
        return "diverged" if run.trace.iterations else "diverged at the initial model"
    if end.state == INTERRUPTED:
        return f"was stopped by {run.interrupted}"
    if end.until is None:
        return "is done"
    return "reached its target" if end.reached else "missed its target"
