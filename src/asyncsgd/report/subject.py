"""What a page knows about one run, wherever it came from: a directory, a simulation, a trace."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import TraceError
from asyncsgd.run.diagnosis import Diagnosis
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace

Floats = NDArray[np.float64]
AXES = ("iteration", "time")
"""What metrics are drawn over; every other column is a metric."""
FAULTS = ("died", "failed", "rejected", "retired")
"""Events of a journal that are somebody's fault."""


@dataclass(frozen=True)
class State:
    """How a run ended, or that it has not."""

    words: str
    kind: str = ""
    """good, warn, bad, or nothing: how it is coloured."""


@dataclass(frozen=True, eq=False)
class Subject:
    """One run, as a page shows it."""

    name: str
    """What it is called beside others; any text."""
    trace: Trace
    metrics: Mapping[str, Floats]
    """Columns over "iteration" and "time", one row per evaluation."""
    method: str = ""
    recipe: str = ""
    """The method in full, as its repr, to be shown."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """The kind and the numbers of every part of the method, as `asyncsgd.core.parts.describe` gives them."""
    task: str = ""
    state: State = State("")
    seconds: float | None = None
    """On the clock of the run; None: until the last thing that the trace knows."""
    diagnosis: Diagnosis | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    journal: tuple[Mapping[str, Any], ...] = ()
    targets: Mapping[str, float] = field(default_factory=dict)
    """Where a metric was to get."""
    known: Task | None = None
    """The task itself, where somebody has it: its constants make bounds."""

    def __post_init__(self) -> None:
        try:
            self.trace.check()
        except TraceError as error:
            raise type(error)(f"{self.name}: {error}") from error

    @cached_property
    def timed(self) -> bool:
        """Whether the record has a clock; if not, iterations stand for it."""
        times = self.trace.jobs.assigned_time
        return bool(len(times)) and bool(np.isfinite(times).all())

    @cached_property
    def elapsed(self) -> float:
        """Seconds of the run; NaN where the record has no clock."""
        jobs = self.trace.jobs
        if not self.timed:
            return float("nan")
        known = [float(jobs.assigned_time.max()), float(np.nanmax(jobs.ended_time, initial=0.0))]
        times = self.metrics.get("time", ())
        return max([*known, self.seconds or 0.0, *(float(time) for time in times[-1:] if np.isfinite(time))])

    @property
    def dispatch(self) -> str:
        """The kind of its dispatch rule: ``AlwaysBusy``, ``Batch``, ...; empty if nobody knows."""
        return str(self.parts.get("dispatch", {}).get("kind", ""))

    @property
    def stepsize(self) -> float | None:
        """The step size that the method was given; None if nobody knows."""
        found = self.parts.get("step", {}).get("stepsize")
        return float(found) if isinstance(found, int | float) else None

    def faults(self) -> dict[int, dict[str, int]]:
        """Per worker, how often what went wrong."""
        found: dict[int, dict[str, int]] = {}
        for row in self.journal:
            event, worker = row.get("event"), row.get("worker")
            if event in FAULTS and isinstance(worker, int):
                of_worker = found.setdefault(worker, {})
                of_worker[event] = of_worker.get(event, 0) + 1
        return found

    def named(self, name: str) -> Subject:
        """The same run under another name."""
        return replace(self, name=name)


def metric_columns(columns: Mapping[str, Any]) -> dict[str, Floats]:
    """Columns of metrics as floats; what is no number becomes NaN."""
    return {name: np.array([_number(value) for value in values], float) for name, values in columns.items()}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float | np.number) else float("nan")


def distinct(subjects: list[Subject]) -> list[Subject]:
    """The same runs, no two of one name: the second ``a`` becomes ``a (2)``."""
    seen: dict[str, int] = {}
    found = []
    for subject in subjects:
        seen[subject.name] = often = seen.get(subject.name, 0) + 1
        found.append(subject if often == 1 else subject.named(f"{subject.name} ({often})"))
    return found
