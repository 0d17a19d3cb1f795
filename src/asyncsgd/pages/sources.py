"""Turn run directories, runs, comparisons and traces into the views that a page shows, with its title and lead."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadParameter, NoRun
from asyncsgd.core.events import Outcome
from asyncsgd.format import span
from asyncsgd.run.read import check_complete
from asyncsgd.run.view import RunView, word
from asyncsgd.simulation import Comparison, Run
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace

# --------------------------------------------------------------------------------------------------------------
# The title, the lead sentence and the counts at the top of a page.


def wasted(subject: RunView) -> dict[str, int]:
    """Return the number of jobs that were not used, by outcome."""
    counts = subject.trace.counts
    return {word(kind): counts[kind] for kind in Outcome if kind > Outcome.APPLIED and counts[kind]}


def lead(subjects: Sequence[RunView]) -> str:
    """Return the sentence under the title."""
    if len(subjects) > 1:
        return "The same axes, colours and clock for all; every number comes from the runs’ own records."
    numbers = subjects[0].headline()
    team = f"{numbers['workers']:,} worker{'s' if numbers['workers'] != 1 else ''}"
    during = f" in {span(numbers['seconds'])}" if numbers["seconds"] is not None else ""
    return f"{numbers['iterations']:,} updates by {team}{during}."


def title(subjects: Sequence[RunView]) -> str:
    """Return the default title of the page."""
    if len(subjects) > 1:
        return f"{len(subjects)} runs side by side"
    subject = subjects[0]
    name = subject.method or subject.name
    return f"{name} on {subject.task}" if subject.task else name


def distinct(subjects: list[RunView]) -> list[RunView]:
    """Return the same runs with unique names: the second ``a`` becomes ``a (2)``."""
    seen: dict[str, int] = {}
    found = []
    for subject in subjects:
        seen[subject.name] = often = seen.get(subject.name, 0) + 1
        found.append(subject if often == 1 else subject.named(f"{subject.name} ({often})"))
    return found


FIX = "pass runs, comparisons, traces, or directories of runs"


def gather(runs: Any, task: Task | None = None) -> list[RunView]:
    """Return one view per run, in the order given; ``task`` is the task of simulated runs."""
    found = distinct(_several(runs, task, ""))
    for view in found:
        view.check()
    if not found:
        raise BadParameter("runs", runs, "is empty", FIX)
    return found


def _several(runs: Any, task: Task | None, name: str) -> list[RunView]:
    match runs:
        case Run():
            return [RunView.of(runs, name, task)]
        case RunView():
            return [runs.named(name) if name else runs]
        case Comparison():
            targets = {} if runs.target is None else {runs.metric: runs.target}
            return [replace(RunView.of(run, key, task), targets=targets) for key, run in runs.runs.items()]
        case Trace():
            return [RunView.of_trace(runs, name or runs.metadata.get("method", "trace"))]
        case str() | os.PathLike():
            found = of_path(Path(runs))
            return [found[0].named(name)] if name and len(found) == 1 else found
        case Mapping():
            return [subject for key, run in runs.items() for subject in _several(run, task, str(key))]
        case Iterable():
            return [subject for run in runs for subject in _several(run, task, name)]
    raise BadParameter("runs", runs, f"is a {type(runs).__name__}", FIX)


def of_path(path: Path) -> list[RunView]:
    """Return the runs of a directory, of a folder of directories, or of a trace file. Nothing is unpickled."""
    if path.is_file():
        return [RunView.of_trace(Trace.read(path), path.stem)]
    if not path.exists():
        raise BadParameter("runs", str(path), "does not exist", "pass a run directory, such as runs/task-1")
    if (path / "run.json").exists():
        return [RunView.read(path)]
    inside = sorted(child for child in path.iterdir() if (child / "run.json").exists())
    if not inside:
        check_complete(path)
        raise NoRun(f"{path} holds no run (no run.json); pass a run directory, such as runs/task-1")
    return [RunView.read(child) for child in inside]
