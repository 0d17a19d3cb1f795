"""What `asyncsgd.train` returns, and a run that a resume finds finished."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadCheckpoint, Damage
from asyncsgd.core.method import Method
from asyncsgd.core.server import Server
from asyncsgd.core.vectors import Vector
from asyncsgd.result import Run
from asyncsgd.run import checkpoints as checkpoints
from asyncsgd.run import configuration
from asyncsgd.run.checkpoints import Checkpoint
from asyncsgd.run.diagnosis import Diagnosis
from asyncsgd.run.diagnosis import stored as stored_diagnosis
from asyncsgd.run.directory import LAST_FINITE
from asyncsgd.run.ending import since_start
from asyncsgd.run.epochs import per_epoch
from asyncsgd.run.evaluator import Evaluator
from asyncsgd.run.journal import DIAGNOSED, DIVERGED, ENDED, RETIRED, STOPPED_EARLY, FaultCounter, Faults
from asyncsgd.run.options import RunRequest
from asyncsgd.run.read import as_path, read_lines, read_metrics, read_trace
from asyncsgd.tasks.base import Task
from asyncsgd.trace.arrays import read_arrays


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

    @classmethod
    def read(
        cls, directory: str | Path, *, task: Task | None = None, method: Method | None = None, trust: bool = False
    ) -> TrainingRun:
        """Return the run of a directory, with the model of its last checkpoint; the directory does not change.

        Use it to write the model, or to draw the run, after the process that trained has ended. If the run diverged,
        the model is the last one with finite metrics, or, if it is large, that of the last checkpoint before. A run
        that is still training, or that was killed, gives what it has saved so far.

        Args:
            directory: The run directory, as passed to `asyncsgd.train`.
            task: The task, if the one of the directory cannot be loaded.
            method: The method, if the one of the directory cannot be loaded.
            trust: Allow loading job.pkl of a directory that another user owns, see `asyncsgd.replay`.

        >>> import tempfile
        >>> import asyncsgd as asgd
        >>> task, engine = asgd.tasks.quadratic(workers=2), asgd.engines.processes(2)
        >>> options = {"iterations": 50, "directory": tempfile.mkdtemp(), "progress": False}
        >>> run = asgd.train(task, asgd.async_sgd(0.1), engine, **options)
        >>> again = asgd.TrainingRun.read(run.directory)
        >>> again.x.tobytes() == run.x.tobytes(), again.trace == run.trace
        (True, True)
        """
        from asyncsgd.run.stored import unpackage  # here, because it imports the rest of the package

        path = as_path(directory)
        config = configuration.read(path)
        if task is None or method is None:
            kept = unpackage(path, trust=trust)
            task = kept[0] if task is None else task
            method = kept[1] if method is None else method
        bound = config.get("bound") or {"workers": config["engine"].get("workers", 1), "iterations": 0}
        method = method.bind(**bound)
        journal = configuration.journal(path)
        x, iteration = _model(path, method)
        metrics = read_metrics(path)
        since = since_start(journal)
        diverged = next((row["iteration"] for row in since if row["event"] == DIVERGED), None)
        seen = next((row for row in reversed(journal) if row["event"] == DIAGNOSED), None)
        return cls(
            x=x,
            trace=read_trace(path),
            metrics=metrics,
            method=method,
            task=task,
            diverged=diverged,
            x_iteration=None if diverged is None else iteration,
            directory=path,
            seconds=max((float(row["seconds"]) for row in journal if row["event"] != DIAGNOSED), default=0.0),
            interrupted=next((row.get("signal") for row in since if row["event"] == ENDED), None),
            stopped_early=next((row["reason"] for row in since if row["event"] == STOPPED_EARLY), None),
            faults=_faults(journal, since),
            diagnosis=Diagnosis() if seen is None else stored_diagnosis(seen),
            config={name: value for name, value in config.items() if name not in ("format", "job")},
        )


def _model(path: Path, method: Method) -> tuple[Vector, int]:
    """Return the last model of a directory and its iteration; of a run that diverged, the last finite one."""
    if (path / LAST_FINITE).exists():
        try:
            arrays, facts = read_arrays(path / LAST_FINITE)
            return arrays["x"], int(facts["iteration"])
        except (Damage, KeyError) as error:
            raise BadCheckpoint(f"{path / LAST_FINITE} {error}; run `asyncsgd verify {path}`") from error
    for file in checkpoints.listed(path / "checkpoints")[:1]:
        checkpoint = checkpoints.read(file)
        return Server.restore(checkpoint.state, method).output.copy(), checkpoint.iteration
    raise BadCheckpoint(f"{path} has no checkpoint, so it has no model; restore checkpoints/ from a backup")


def _faults(journal: Sequence[Mapping[str, Any]], since: Sequence[Mapping[str, Any]]) -> Faults:
    fault_counter = FaultCounter()
    fault_counter.load(journal)
    for row in since:
        if row["event"] == RETIRED:
            fault_counter.retired(row["worker"])
    return fault_counter.faults


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
    config = configuration.read(path)
    run = TrainingRun(
        x=Server.restore(checkpoint.state, request.method).output.copy(),
        trace=read_trace(path),
        metrics=metrics.columns(),
        method=request.method,
        task=request.task,
        directory=path,
        seconds=float(ended["seconds"]),
        reached=target is None or met is not None,
        faults=_faults(journal, since),
        diagnosis=stored_diagnosis(journal[-1]),
        config={name: value for name, value in config.items() if name not in ("format", "job")},
        skipped_rows=ended.get("skipped_rows"),
    )
    return run, hint
