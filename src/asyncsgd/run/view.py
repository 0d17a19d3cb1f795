"""One view of a run for all outputs: how it ended, and its headline numbers.

The terminal, the page, ``asyncsgd watch``, the loggers and ``--json`` all use it, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadRunDirectory, TraceError, UsageError
from asyncsgd.core.events import Outcome
from asyncsgd.core.parts import describe, described_bytes, described_schedule
from asyncsgd.format import jsonable, latest, number, size, span
from asyncsgd.result import Run, traffic
from asyncsgd.run.diagnosis import Diagnosis, Observed, diagnose, stored
from asyncsgd.run.directory import LAST_FINITE, in_use
from asyncsgd.run.ending import End, Ending, ending_of_files, ending_of_run
from asyncsgd.run.journal import DIAGNOSED, DIED, ENDED, FAILED, REJECTED, RETIRED, FaultCounter, Faults
from asyncsgd.run.options import Target
from asyncsgd.run.read import read_config, read_lines, read_trace
from asyncsgd.run.results import TrainingRun
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace
from asyncsgd.trace.columns import WHEN
from asyncsgd.trace.labels import PLAIN, WorkerLabels

Floats = NDArray[np.float64]
AXES = ("iteration", "time")
"""The axes over which metrics are drawn."""
FAULTS = (DIED, FAILED, REJECTED, RETIRED)
"""Journal events that count as faults of a worker."""


NOT_KNOWN = Ending(End.TRACE)


@dataclass(frozen=True, eq=False)
class RunView:
    """One run from any source: a call of `asyncsgd.train`, a simulation, a directory or a trace."""

    name: str
    """Name of the run beside others; any text."""
    trace: Trace
    metrics: Mapping[str, Floats]
    """Columns over "iteration" and "time", one row per evaluation."""
    method: str = ""
    recipe: str = ""
    """The repr of the method."""
    parts: Mapping[str, Any] = field(default_factory=dict)
    """The kind and the numbers of every part of the method, as `asyncsgd.core.parts.describe` gives them."""
    task: str = ""
    ending: Ending = NOT_KNOWN
    seconds: float | None = None
    """Time on the clock of the run; None: up to the last event of the trace."""
    faults: Faults = field(default_factory=Faults)
    diagnosis: Diagnosis | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    journal: tuple[Mapping[str, Any], ...] = ()
    targets: Mapping[str, float] = field(default_factory=dict)
    """The bound of the target metric, by its name."""
    directory: Path | None = None
    known: Task | None = None
    """The task itself, if available: its constants give bounds."""
    run: Run | None = None
    """The run itself, if available."""
    label: WorkerLabels = PLAIN
    """The labels of the workers: ``view.label(2)`` is "worker 2", or "client 2 (clinic-a)" in a Flower run."""

    @classmethod
    def of(cls, run: Run, name: str = "", task: Task | None = None) -> RunView:
        """Return the view of a run object, simulated or by real workers; ``task`` is its task."""
        config: dict[str, Any] = {"seed": run.trace.metadata.get("seed", "")}
        rest: dict[str, Any] = {}
        if isinstance(run, TrainingRun):
            config = run.config
            rest = {"seconds": run.seconds, "faults": run.faults, "diagnosis": run.diagnosis}
            rest |= {"ending": ending_of_run(run), "targets": targets(config), "directory": run.directory}
            rest["label"] = getattr(run, "label", PLAIN)  # clients of Flower have names
            if run.directory is not None:
                rest["journal"] = tuple(read_lines(run.directory, "journal.jsonl"))
        else:
            rest["ending"] = Ending(End.DIVERGED, run.diverged) if run.diverged is not None else Ending(End.SIMULATED)
            known = Observed(run.trace, run.metrics, Faults(), run.method, task, run.x, run.diverged is not None)
            rest["diagnosis"] = diagnose(known)
        return cls(
            name=name or run.method.name,
            trace=run.trace,
            metrics=metric_columns(run.metrics),
            method=run.method.name,
            recipe=repr(run.method),
            parts=describe(run.method),
            task=str(config.get("task", "" if task is None else getattr(task, "name", type(task).__name__))),
            config=config,
            known=task,
            run=run,
            **rest,
        )

    @classmethod
    def of_trace(cls, trace: Trace, name: str) -> RunView:
        """Return the view of a trace without metrics and configuration."""
        facts = dict(trace.metadata)
        end = Ending(End.TRACE, reason="its log ends in an incomplete block, left by a kill" if trace.truncated else "")
        seen = diagnose(Observed(trace, {}))
        return cls(name, trace, {}, method=facts.get("method", ""), ending=end, diagnosis=seen, config=facts)

    @classmethod
    def read(cls, path: Path) -> RunView:
        """Return the view of a run directory: ended, still running, or crashed. Nothing in it is unpickled."""
        running = in_use(path)  # first: a run that ends while its files are read would look crashed
        config = read_config(path)
        try:
            trace, bounds = read_trace(path), targets(config)
        except TraceError as error:
            raise BadRunDirectory(f"the trace of {path} cannot be read: {error}") from error
        except UsageError as error:
            raise BadRunDirectory(f"{path / 'run.json'} is damaged ({error})") from error
        journal, rows = read_lines(path, "journal.jsonl"), read_lines(path, "metrics.jsonl")
        clock = [row["seconds"] for row in journal if row["event"] != DIAGNOSED]  # written after the end
        metrics, faults, label = _columns(rows), faults_of(journal), WorkerLabels.of(journal)
        return cls(
            name=path.resolve().name,
            trace=trace,
            metrics=metrics,
            method=str(config.get("method_name", "")),
            recipe=str(config.get("method", "")),
            parts=parts if isinstance(parts := config.get("parts"), dict) else {},
            task=str(config.get("task", "")),
            ending=ending_of_files(config, journal, rows, trace.iterations, running=running),
            seconds=max(clock, default=None),
            faults=faults,
            diagnosis=_stored(journal) or diagnose(Observed(trace, metrics, faults, label=label)),
            config=config,
            journal=tuple(journal),
            targets=bounds,
            directory=path,
            label=label,
        )

    def check(self) -> None:
        """Refuse an inconsistent trace."""
        try:
            self.trace.check()
        except TraceError as error:
            raise type(error)(f"{self.name}: {error}") from error

    @property
    def state(self) -> str:
        """How the run ended, in a sentence."""
        return self.ending.sentence(self.directory)

    @cached_property
    def timed(self) -> bool:
        """Whether the trace has times; if not, iterations stand for them."""
        times = self.trace.jobs.assigned_time
        return bool(len(times)) and bool(np.isfinite(times).all())

    @cached_property
    def elapsed(self) -> float:
        """Seconds of the run; NaN if the trace has no times."""
        jobs = self.trace.jobs
        if not self.timed:
            return float("nan") if self.seconds is None else self.seconds
        known = [float(jobs.assigned_time.max()), float(np.nanmax(jobs.ended_time, initial=0.0))]
        times = self.metrics.get("time", ())
        return max([*known, self.seconds or 0.0, *(float(time) for time in times[-1:] if np.isfinite(time))])

    @property
    def dispatch(self) -> str:
        """The kind of its dispatch rule: ``AlwaysBusy``, ``Batch``, ...; empty if unknown."""
        return str(self.parts.get("dispatch", {}).get("kind", ""))

    @property
    def stepsize(self) -> float | None:
        """The method's step size, or the peak of its schedule."""
        return described_schedule(self.parts)[0]

    @property
    def schedule(self) -> str | None:
        """The schedule of the step size with its options; None if the step size is a number."""
        return described_schedule(self.parts)[1]

    def faults_by_worker(self) -> dict[int, dict[str, int]]:
        """Return the number of faults of each kind, by worker."""
        found: dict[int, dict[str, int]] = {}
        for row in self.journal:
            event, worker = row.get("event"), row.get("worker")
            if event in FAULTS and isinstance(worker, int):
                of_worker = found.setdefault(worker, {})
                of_worker[event] = of_worker.get(event, 0) + 1
        return found

    def named(self, name: str) -> RunView:
        """Return the same run under another name."""
        return replace(self, name=name)

    # ------------------------------------------------------------------------------------------ headline numbers

    @property
    def last_metrics(self) -> dict[str, float]:
        """The last known value of every metric."""
        return {name: latest(values) for name, values in self.metrics.items() if name not in WHEN and len(values)}

    @property
    def skipped_rows(self) -> int | None:
        """Rows of data that no step used; None if the run has no epochs, or has not ended."""
        if isinstance(self.run, TrainingRun):
            return self.run.skipped_rows
        ended: Mapping[str, Any] = next((row for row in reversed(self.journal) if row.get("event") == ENDED), {})
        found = ended.get("skipped_rows")
        return found if isinstance(found, int) else None

    @cached_property
    def traffic(self) -> tuple[int, int] | None:
        """Bytes of all updates that arrived, and of all models handed out; None if the size of the model is unknown."""
        if self.run is not None:
            return self.run.bytes_up, self.run.bytes_down
        n, dtype = self.config.get("dimension"), self.config.get("dtype")
        if not isinstance(n, int) or not isinstance(dtype, str) or not self.parts:
            return None
        each = described_bytes(self.parts, n, dtype)
        return None if each is None else traffic(self.trace, each)

    @cached_property
    def outcomes(self) -> dict[str, int]:
        """Number of jobs by outcome: ``applied``, ``dropped``, ..., ``in flight``."""
        return {word(outcome): often for outcome, often in self.trace.counts.items()}

    def headline(self) -> dict[str, Any]:
        """Return the numbers of the run under the names that every output uses; None if a number is unknown."""
        delays, seconds, made = self.trace.delays, self.elapsed, self.trace.iterations
        seen = self.diagnosis or Diagnosis()
        row = {
            "name": self.name,
            "method": self.method,
            "task": self.task,
            "stepsize": self.stepsize,
            "schedule": self.schedule,
            "directory": None if self.directory is None else str(self.directory),
            "state": str(self.ending.kind),
            "sentence": self.state,
            "iterations": made,
            "wanted": self.ending.wanted or None,
            "epoch": float(self.metrics["epoch"][-1]) if len(self.metrics.get("epoch", ())) else None,
            "epochs": self.config.get("epochs"),
            "skipped_rows": self.skipped_rows,
            "until": self.ending.until,
            "seconds": seconds,
            "updates_per_second": made / seconds if seconds > 0 else None,
            "examples_per_second": self._examples_per_second(),
            "bytes_up": None if self.traffic is None else self.traffic[0],
            "bytes_down": None if self.traffic is None else self.traffic[1],
            "metrics": self.last_metrics,
            "average_delay": delays.average,
            "maximum_delay": delays.maximum,
            "concurrency": delays.concurrency,
            "mean_concurrency": delays.mean_concurrency,
            "workers": len(np.unique(self.trace.jobs.worker)),
            "jobs": self.outcomes,
            "faults": fault_counts(self.faults),
            "facts": list(seen.facts),
            "problems": list(seen.problems),
        }
        if self.run is not None:
            row |= {"unused": self.run.unused, "diverged": self.run.diverged, "x_iteration": self.run.x_iteration}
        found: dict[str, Any] = jsonable(row)
        return found

    def _examples_per_second(self) -> float | None:
        """Return the rows of data of all arrivals, per second; None if the task did not count those of each job."""
        jobs = self.trace.jobs
        rows = jobs.examples[(jobs.outcome == Outcome.APPLIED) | (jobs.outcome == Outcome.DROPPED)]
        if not len(rows) or (rows < 0).any() or self.elapsed <= 0:
            return None
        return float(rows.sum()) / self.elapsed

    def text(self) -> str:
        """Return a few lines for a terminal: how the run ended, what it reached, what is wrong."""
        row, made = self.headline(), self.trace.iterations
        shown = "".join(f", {name} {number(value)}" for name, value in self.last_metrics.items())
        speed = "" if not row["updates_per_second"] else f" ({number(row['updates_per_second'])}/s)"
        if row["examples_per_second"]:
            speed = f"{speed[:-1]}, {number(row['examples_per_second'])} examples/s)"
        lines = [
            f"{self.method} {self.ending.sentence()}: {made} iterations in {span(self.elapsed)}{speed}{shown}",
            *([] if self.traffic is None else [f"  sent: {sent(*self.traffic)}"]),
            *(f"  {fact}" for fact in row["facts"]),
            *(f"  ! {problem}" for problem in row["problems"]),
        ]
        if row.get("x_iteration") is not None and row["iterations"]:
            where = "" if self.directory is None else f"; it is stored in {self.directory / LAST_FINITE}"
            measured = row["x_iteration"] in self.metrics.get("iteration", ())
            which = "the last one with finite metrics" if measured else "from the last good checkpoint"
            lines.append(f"  x is the model of iteration {row['x_iteration']}, {which}{where}")
        lines.append(f"  {self._kept()}")
        return "\n".join(line for line in lines if line.strip())

    def _kept(self) -> str:
        if self.directory is None:
            return "nothing was saved, because the run has no directory" if self.ending.kind is End.INTERRUPTED else ""
        if self.ending.resumable:
            return f"saved in {self.directory}: resume with resume=True, or --resume on the command line"
        return f"saved in {self.directory}; asyncsgd report {self.directory} writes its page"


def sent(up: int, down: int) -> str:
    """Return a sentence part about what was sent.

    >>> sent(1_200_000_000, 4_800_000_000)
    '1.2 GB of updates to the server, 4.8 GB of models to workers'
    """
    return f"{size(up)} of updates to the server, {size(down)} of models to workers"


def word(outcome: Outcome) -> str:
    """Return the name of an outcome: ``in flight``."""
    return outcome.name.lower().replace("_", " ")


def fault_counts(faults: Faults) -> dict[str, Any]:
    """Return faults under the names that every output uses."""
    return {
        "deaths": faults.deaths,
        "exceptions": faults.exceptions,
        "rejected": faults.rejected,
        "retired": list(faults.retired),
        "evaluations": faults.evaluations,
    }


def targets(config: Mapping[str, Any]) -> dict[str, float]:
    """Return the bound of each metric that run.json has a target for."""
    if not config.get("until"):
        return {}
    target = Target.parse(str(config["until"]))
    return {target.metric: target.bound}


def metric_columns(columns: Mapping[str, Any]) -> dict[str, Floats]:
    """Return columns of metrics as floats; values that are not numbers become NaN."""
    return {name: np.array([_number(value) for value in values], float) for name, values in columns.items()}


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float | np.number) else float("nan")


# ---------------------------------------------------------------------------------------------- files


def _columns(rows: list[dict[str, Any]]) -> dict[str, Floats]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return metric_columns({name: [row.get(name) for row in rows] for name in names})


def faults_of(journal: Sequence[Mapping[str, Any]]) -> Faults:
    """Return the faults in a whole journal; retired workers include those that a resume started again."""
    fault_counter = FaultCounter()
    fault_counter.load(journal)
    for row in journal:
        if row.get("event") == RETIRED and isinstance(row.get("worker"), int):
            fault_counter.retired(row["worker"])
    return fault_counter.faults


def _stored(journal: list[dict[str, Any]]) -> Diagnosis | None:
    """Return the diagnosis that the run wrote when it ended."""
    row = next((row for row in reversed(journal) if row["event"] == DIAGNOSED), None)
    return None if row is None else stored(row)
