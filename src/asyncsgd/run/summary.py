"""What a run says at its end, for people and for programs."""

from __future__ import annotations

import math
from typing import Any

from asyncsgd.core.events import Outcome
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
        "dropped": run.trace.counts[Outcome.DROPPED],
        "rejected": run.faults.rejected,
        "lost": run.trace.counts[Outcome.LOST],
        "exceptions": run.faults.exceptions,
        "deaths": run.faults.deaths,
        "retired": list(run.faults.retired),
        "reached": run.reached,
        "diverged": run.diverged,
        "facts": list(run.diagnosis.facts),
        "problems": list(run.diagnosis.problems),
        "directory": None if run.directory is None else str(run.directory),
    }


def as_text(run: TrainingRun) -> str:
    """A few lines: how it ended, what it reached, what there is to see and what is wrong."""
    row = as_row(run)
    last = {name: values[-1] for name, values in run.metrics.items() if name not in ("iteration", "time")}
    shown = ", ".join(f"{name} {value:.4g}" for name, value in last.items())
    end = "diverged" if run.diverged is not None else "reached its target" if run.reached else "missed its target"
    lines = [
        f"{run.method.name} {end if run.config.get('until') or run.diverged is not None else 'is done'}: "
        f"{row['iterations']} iterations in {run.seconds:.1f} s ({row['updates_per_second']:.4g}/s), {shown}",
        *(f"  {fact}" for fact in run.diagnosis.facts),
        *(f"  ! {problem}" for problem in run.diagnosis.problems),
    ]
    if run.directory is not None:
        lines.append(f"  kept in {run.directory}; asyncsgd report {run.directory} writes its page")
    return "\n".join(lines)
