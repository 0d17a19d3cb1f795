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
from asyncsgd.run.evaluator import Evaluator
from asyncsgd.run.faults import Faults, Troubles
from asyncsgd.run.journal import DIAGNOSED, ENDED, RESUMED, RETIRED, STARTED
from asyncsgd.run.options import RunRequest
from asyncsgd.run.read import read_lines, read_trace


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRun(Run):
    """A `Run` by real workers: the model, the trace, the metrics, and what there is to say about it."""

    directory: Path | None = None
    seconds: float = 0.0
    """On the clock of the run: what a crash and the time until resuming cost is not in it."""
    reached: bool = True
    """Whether the target of ``until`` was met; True if there was none."""
    interrupted: str | None = None
    """The signal that ended it early, such as "SIGINT"."""
    stopped_early: str | None = None
    """The reason that a callback gave for stopping it."""
    faults: Faults = field(default_factory=Faults)
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    """What there is to see and what is wrong, in sentences."""
    config: dict[str, Any] = field(default_factory=dict)


def finished(path: Path, request: RunRequest, checkpoint: Checkpoint) -> tuple[TrainingRun, str] | None:
    """Return the run as it ended and what to pass for more, or None if there is something left to do.

    A run is finished if all that is asked for has arrived, or if its target was met. One that was killed before its
    diagnosis was written, or that diverged, is not.
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
        words = f"already reached {target} at iteration {met}; pass until=TARGET with another target to continue"
    elif checkpoint.iteration >= request.iterations:
        words = f"already at {checkpoint.iteration} iterations; pass iterations=N to continue"
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
    )
    return run, words


def since_start(journal: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the journal since the run was started or last resumed."""
    starts = [place for place, row in enumerate(journal) if row["event"] in (STARTED, RESUMED)]
    return journal[starts[-1] :] if starts else []
