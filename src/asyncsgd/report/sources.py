"""From whatever a user has to what a page shows: run directories, runs, comparisons, traces, and several of them."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter, BadRunDirectory, NoRun, TraceError, UsageError
from asyncsgd.core.parts import describe
from asyncsgd.report.subject import Floats, State, Subject, distinct, metric_columns
from asyncsgd.run import TrainingRun, ending
from asyncsgd.run.diagnosis import Diagnosis, diagnose, stored
from asyncsgd.run.directory import in_use, read_config, read_lines, read_trace
from asyncsgd.run.faults import Faults, Troubles
from asyncsgd.run.reading import check_complete
from asyncsgd.run.target import Target
from asyncsgd.simulation import Comparison, Run
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace

CELLS: dict[str, dict[str, type]] = {
    "journal.jsonl": {"event": str, "iteration": int, "seconds": float},
    "metrics.jsonl": {"iteration": int, "time": float},
}
"""What every line of a file has."""
FIX = "pass runs, comparisons, traces, or directories of runs"


def gather(runs: Any, task: Task | None = None) -> list[Subject]:
    """One subject per run, in the order given; ``task`` is what simulated runs were of."""
    found = distinct(_several(runs, task, ""))
    if not found:
        raise BadParameter("runs", runs, "is empty", FIX)
    return found


def _several(runs: Any, task: Task | None, name: str) -> list[Subject]:
    match runs:
        case Run():
            return [of_run(runs, name, task)]
        case Comparison():
            targets = {} if runs.target is None else {runs.metric: runs.target}
            return [of_run(run, key, task, targets) for key, run in runs.runs.items()]
        case Trace():
            return [of_trace(runs, name or runs.metadata.get("method", "trace"))]
        case str() | os.PathLike():
            found = of_path(Path(runs))
            return [found[0].named(name)] if name and len(found) == 1 else found
        case Mapping():
            return [subject for key, run in runs.items() for subject in _several(run, task, str(key))]
        case Iterable():
            return [subject for run in runs for subject in _several(run, task, name)]
    raise BadParameter("runs", runs, f"is a {type(runs).__name__}", FIX)


# ---------------------------------------------------------------------------------------------- in memory


def of_run(run: Run, name: str = "", task: Task | None = None, targets: Mapping[str, float] | None = None) -> Subject:
    """A simulated run, or one by real workers."""
    config, journal, seconds, diagnosis = {}, [], None, None
    state = State("simulated")
    if isinstance(run, TrainingRun):
        config, seconds, diagnosis = dict(run.config), run.seconds, run.diagnosis
        state = _state(ending.of_run(run), run.directory)
        if run.directory is not None:
            journal = _lines(run.directory, "journal.jsonl")
    else:
        blown = run.diverged is not None
        diagnosis = diagnose(run.trace, run.metrics, run.method, task, run.x, Faults(), diverged=blown)
        if run.diverged is not None:
            state = State(f"diverged at iteration {run.diverged:,}", "bad")
    return Subject(
        name=name or run.method.name,
        trace=run.trace,
        metrics=metric_columns(run.metrics),
        method=run.method.name,
        recipe=repr(run.method),
        parts=describe(run.method),
        task=str(config.get("task", "" if task is None else getattr(task, "name", type(task).__name__))),
        state=state,
        seconds=seconds,
        diagnosis=diagnosis,
        config=config or {"seed": run.trace.metadata.get("seed", "")},
        journal=tuple(journal),
        targets=_targets(config) if targets is None else targets,
        known=task,
    )


def of_trace(trace: Trace, name: str) -> Subject:
    """A record alone: no metrics, nobody to say what was meant."""
    words = dict(trace.metadata)
    state = State("its log was torn by a kill", "warn") if trace.truncated else State("a trace")
    seen = diagnose(trace, {}, None, None, np.empty(0), Faults())
    return Subject(name, trace, {}, method=words.get("method", ""), state=state, diagnosis=seen, config=words)


def _state(end: ending.Ending, directory: Path | None) -> State:
    return State(end.words(directory), end.tone)


def _targets(config: Mapping[str, Any]) -> dict[str, float]:
    if not config.get("until"):
        return {}
    target = Target.parse(str(config["until"]))
    return {target.metric: target.bound}


# ---------------------------------------------------------------------------------------------- on disk


def of_path(path: Path) -> list[Subject]:
    """A run's directory, a folder of such directories, or the file of a trace. Nothing in it is unpickled."""
    if path.is_file():
        return [of_trace(Trace.read(path), path.stem)]
    if not path.exists():
        raise BadParameter("path", str(path), "does not exist", "pass the directory given to asgd.train")
    if (path / "run.json").exists():
        return [of_directory(path)]
    inside = sorted(child for child in path.iterdir() if (child / "run.json").exists())
    if not inside:
        check_complete(path)
        raise NoRun(f"{path} holds no run (no run.json); pass the directory given to asgd.train")
    return [of_directory(child) for child in inside]


def of_directory(path: Path) -> Subject:
    """A run on disk: ended, still running, or crashed."""
    running = in_use(path)  # first: a run that ends while its files are read would look like one that crashed
    config = read_config(path)
    try:
        trace, targets = read_trace(path), _targets(config)
    except TraceError as error:
        raise BadRunDirectory(f"the trace of {path} cannot be read: {error}") from error
    except UsageError as error:
        raise BadRunDirectory(f"{path / 'run.json'} is damaged ({error})") from error
    journal = _lines(path, "journal.jsonl")
    rows = _lines(path, "metrics.jsonl")
    clock = [row["seconds"] for row in journal if row["event"] != "diagnosed"]  # that comes after the end
    metrics = _columns(rows)
    return Subject(
        name=path.resolve().name,
        trace=trace,
        metrics=metrics,
        method=str(config.get("method_name", "")),
        recipe=str(config.get("method", "")),
        parts=parts if isinstance(parts := config.get("parts"), dict) else {},
        task=str(config.get("task", "")),
        state=_state(ending.of_records(config, journal, rows, trace.iterations, running=running), path),
        seconds=max(clock, default=None),
        diagnosis=_stored(journal) or diagnose(trace, metrics, None, None, np.empty(0), _faults(journal)),
        config=config,
        journal=tuple(journal),
        targets=targets,
    )


def _lines(path: Path, name: str) -> list[dict[str, Any]]:
    """The lines of a file, each with the cells that every line has."""
    rows = read_lines(path, name)
    for number, row in enumerate(rows, 1):
        if not all(_fits(row.get(key), kind) for key, kind in CELLS[name].items()):
            wanted = ", ".join(CELLS[name])
            raise BadRunDirectory(
                f"{path / name} is damaged: line {number} lacks one of {wanted}; restore it from a backup"
            )
    return rows


def _fits(value: Any, kind: type) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) if kind is float else isinstance(value, kind)


def _columns(rows: list[dict[str, Any]]) -> dict[str, Floats]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return metric_columns({name: [row.get(name) for row in rows] for name in names})


def _faults(journal: list[dict[str, Any]]) -> Faults:
    troubles = Troubles()
    troubles.load(journal)
    for row in journal:
        if row["event"] == "retired" and isinstance(row.get("worker"), int):
            troubles.retired(row["worker"])
    return troubles.faults


def _stored(journal: list[dict[str, Any]]) -> Diagnosis | None:
    """What the run said about itself when it ended."""
    row = next((row for row in reversed(journal) if row["event"] == "diagnosed"), None)
    return None if row is None else stored(row)
