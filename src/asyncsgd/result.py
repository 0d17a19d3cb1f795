"""The result of a run, simulated or real, and the updates that were not used at its end."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.aggregation import Buffer, Memory
from asyncsgd.core.dispatch import Batch
from asyncsgd.core.events import Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace


@dataclass(frozen=True, eq=False)
class Run:
    """The result of a run: the model, the trace of all jobs, and the metrics over iterations and time."""

    x: Vector
    """The resulting model; if the run diverged, the last one that was measured and finite."""
    trace: Trace
    metrics: dict[str, NDArray[Any]]
    """The task's metrics, with the "iteration" and the "time" of each evaluation."""
    method: Method
    diverged: int | None = None
    """The iteration at which the run was found to diverge (at a measurement, or by an update that was not finite), or
    None. The run ends there: trace and metrics hold what came before."""
    compiled: bool = False
    """Whether the compiled replay computed the numbers (the same bits as the core's, only faster)."""
    x_iteration: int | None = None
    """The iteration of the model ``x`` if the run diverged; None for the last one."""
    slow_because: str = ""
    """Why a simulation did not run in compiled code, such as "optimizer Adam has no compiled form"; empty if it did."""

    def __repr__(self) -> str:
        end = ", ".join(f"{name} {values[-1]:.4g}" for name, values in self.metrics.items() if len(values))
        fate = "" if self.diverged is None else f", diverged at {self.diverged}"
        rest = leftover(self.method, self.trace)
        return f"<{type(self).__name__} of {self.method.name}: {end}{fate}{'' if rest is None else f'; {rest}'}>"

    @property
    def unused(self) -> int:
        """The number of updates at the end that the model has not used, such as those of a buffer that was not full."""
        return unused(self.method, self.trace)

    def report(self, path: str | Path | None = None, *, title: str = "", task: Task | None = None) -> Path:
        """Write one self-contained HTML page about the run, and return its path.

        Args:
            path: The path of the page; by default ``report.html``, in the run's directory if it has one.
            title: The heading of the page.
            task: The task of the run. With its constants, the page shows the theorems' bounds too.
        """
        if path is None:
            path = Path(getattr(self, "directory", None) or "") / "report.html"
        return write_report(self, path, title, task)


def write_report(runs: Any, path: str | Path, title: str, task: Task | None) -> Path:
    """Write the page of runs. It imports ``pages`` by name, because pages are in a layer above runs."""
    written: Path = import_module("asyncsgd.pages").report(runs, path, title=title, task=task)
    return written


def unused(method: Method, trace: Trace) -> int:
    """Return the number of updates at the end that the model has not used, such as those of a buffer that was not full.

    >>> from asyncsgd import methods, simulate, tasks, durations
    >>> method = methods.fedbuff(0.1, concurrency=2, buffer=4)
    >>> run = simulate(tasks.quadratic(workers=2), method, durations.fixed([1, 2]), iterations=11)
    >>> unused(method, run.trace)
    3
    """
    applied = trace.counts[Outcome.APPLIED]
    if isinstance(method.aggregation, Buffer):
        return applied % method.aggregation.size
    if isinstance(method.aggregation, Memory) and not trace.step.any():  # some worker was never heard
        return applied
    return 0


def leftover(method: Method, trace: Trace) -> str | None:
    """Return which updates at the end were not used, as a sentence; None if all were."""
    waiting = unused(method, trace)
    if waiting:
        who = "the last update was" if waiting == 1 else f"the last {waiting} updates were"
        why = "not every worker was heard"
        if isinstance(method.aggregation, Buffer):
            why = f"the model moves after every {method.aggregation.size}"
        return f"{who} not used, as {why}; more iterations use {'it' if waiting == 1 else 'them'}"
    flying = trace.jobs.in_flight
    if isinstance(method.dispatch, Batch) and flying.any():
        began = int(trace.jobs.assigned_iteration[flying].min())
        arrived = trace.iterations - began
        if arrived:
            of = arrived + int(np.count_nonzero(flying))
            return (
                f"the last batch is not complete: {arrived} of its {of} updates arrived, and the model has used these"
            )
    return None
