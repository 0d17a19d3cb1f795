"""What `asyncsgd.train` returns, and a run that a resume finds finished."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncsgd.core.server import Server
from asyncsgd.result import Run
from asyncsgd.run import configuration
from asyncsgd.run.checkpoints import Checkpoint
from asyncsgd.run.diagnosis import Diagnosis, stored
from asyncsgd.run.ending import since_start
from asyncsgd.run.epochs import per_epoch
from asyncsgd.run.evaluator import Evaluator
from asyncsgd.run.faults import Faults, Troubles
from asyncsgd.run.journal import DIAGNOSED, ENDED, RETIRED
from asyncsgd.run.options import RunRequest
from asyncsgd.run.read import read_lines, read_trace


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRun(Run):
    """A `Run` by real workers: the model, the trace, the metrics, the faults and a diagnosis."""

    directory: Path | None = None
    seconds: float = 0.0
    """Time on the clock of the run, without the time between a crash and its resume."""
    reached: bool = True
    """Whether the target of ``until`` was met; True without a target."""
    interrupted: str | None = None
    """The signal that stopped the run, such as "SIGINT"."""
    stopped_early: str | None = None
    """The reason that a callback gave to stop the run."""
    faults: Faults = field(default_factory=Faults)
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    """Facts about the run and its problems, in sentences."""
    config: dict[str, Any] = field(default_factory=dict)
    skipped_rows: int | None = None
    """Rows of data that no step used, as their jobs were lost, rejected, cancelled or dropped; None if the task does
    not walk its data in epochs."""


def finished(path: Path, request: RunRequest, checkpoint: Checkpoint) -> tuple[TrainingRun, str] | None:
    """Return the finished run and a hint how to continue it, or None if the run is not finished.

    A run is finished if it has all its iterations or epochs, or if its target was met. A run that was killed before its
    diagnosis was written, or that diverged, is not finished.
    """
    journal = configuration.journal(path)
    since = since_start(journal)
    ended = next((row for row in since if row["event"] == ENDED), None)
    whole = bool(journal) and journal[-1]["event"] == DIAGNOSED and ended is not None
    if not whole or ended is None or ended["iteration"] != checkpoint.iteration:
        return None
    metrics = Evaluator(request.task, request.evaluation)
    metrics.load(read_lines(path, "metrics.jsonl"))
    target = request.evaluation.target
    met = None if target is None else next((row["iteration"] for row in metrics.rows if target.met(row)), None)
    if met is not None:
        hint = f"already reached {target} at iteration {met}; pass until=TARGET with another target to continue"
    elif request.epochs is not None:
        done = checkpoint.state["batches"]["handed_out"] / (per_epoch(request.task) or 1)
        if done < request.epochs or checkpoint.state["active"]:
            return None
        hint = f"already at {done:g} epochs; pass epochs=N to continue"
    elif checkpoint.iteration >= request.iterations:
        hint = f"already at {checkpoint.iteration} iterations; pass iterations=N to continue"
    else:
        return None
    troubles = Troubles()
    troubles.load(journal)
    for row in since:
        if row["event"] == RETIRED:
            troubles.retired(row["worker"])
    config = configuration.read(path)
    run = TrainingRun(
        x=Server.restore(checkpoint.state, request.method).output.copy(),
        trace=read_trace(path),
        metrics=metrics.columns(),
        method=request.method,
        directory=path,
        seconds=float(ended["seconds"]),
        reached=target is None or met is not None,
        faults=troubles.faults,
        diagnosis=stored(journal[-1]),
        config={name: value for name, value in config.items() if name not in ("format", "job")},
        skipped_rows=ended.get("skipped_rows"),
    )
    return run, hint
