"""Follow a run directory while it grows; each refresh reads only what is new."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadRunDirectory, Torn
from asyncsgd.format import jsonable, latest
from asyncsgd.run.directory import in_use
from asyncsgd.run.ending import End, Ending, ending_of_files, since_start
from asyncsgd.run.epochs import expected
from asyncsgd.run.journal import (
    DIAGNOSED,
    DIED,
    DIVERGED,
    DRAINED,
    EVALUATION_FAILED,
    FAILED,
    JOINED,
    LEFT,
    REJECTED,
    RESUMED,
    RETIRED,
    STEP_CHANGED,
    STOPPED,
    STOPPED_EARLY,
)
from asyncsgd.run.read import read_config
from asyncsgd.run.tail import Lines, Log, Tally
from asyncsgd.run.view import fault_counts, faults_of, word
from asyncsgd.trace import Trace
from asyncsgd.trace.labels import WorkerLabels


@dataclass(frozen=True)
class WorkerSeen:
    """One worker at one moment."""

    worker: int
    label: str
    """The name by which texts call it: "worker 2", or "client 2 (clinic-a)" in a Flower run."""
    state: str
    """working, idle, retired or gone; empty if the run has ended."""
    jobs: int
    """Number of its updates that arrived."""
    mean_delay: float | None
    in_flight: int
    last_seen: float | None
    """Seconds since its last update arrived."""
    faults: int
    """Number of its jobs that were lost or rejected."""
    deaths: int


@dataclass(frozen=True)
class Note:
    """Something that a user should know."""

    seconds: float
    iteration: int
    text: str
    bad: bool = True


@dataclass(frozen=True)
class Frame:
    """The state of a run at one moment, as the terminal draws it and as ``--json`` prints it."""

    directory: str
    ending: Ending
    task: str
    method: str
    iterations: int
    """Updates that have arrived."""
    seconds: float
    """Time on the clock of the run."""
    silent: float
    """Seconds since its files last grew; 0 if the run has ended."""
    updates_per_second: float
    """Recent speed, 0 before the first update; the mean speed if the run has ended."""
    left: float | None
    """Seconds to the last iteration at this speed."""
    average_delay: float | None
    maximum_delay: int
    histogram: tuple[tuple[int, int], ...]
    """(delay, jobs), for delays that occurred."""
    in_flight: int
    alive: int
    """Number of workers that are alive."""
    workers: tuple[WorkerSeen, ...]
    jobs: Mapping[str, int]
    """Number of jobs by outcome."""
    faults: Mapping[str, int]
    """Deaths, exceptions, rejected updates and retired workers: what `RunView.headline` calls faults."""
    metrics: Mapping[str, tuple[float, ...]]
    """Columns, "iteration", "time" and "epoch" among them; one row per evaluation."""
    notes: tuple[Note, ...]
    epoch: float | None = None
    """Epochs that were done at the last evaluation; None if the task has no epochs."""
    epochs: int | None = None
    """The number of epochs requested; None if iterations were."""

    @property
    def running(self) -> bool:
        """Whether a process is training."""
        return self.ending.kind is End.RUNNING

    @property
    def sentence(self) -> str:
        """How the run ended, and how to resume it."""
        return self.ending.sentence(Path(self.directory))

    def headline(self) -> dict[str, Any]:
        """Return the frame for JSON, with the names of `asyncsgd.run.view.RunView.headline`."""
        row = {name: value for name, value in asdict(self).items() if name not in ("ending", "workers")}
        row["metrics"] = {name: latest(values) for name, values in self.metrics.items() if values}
        row |= {"state": str(self.ending.kind), "sentence": self.sentence}
        row |= {"wanted": self.ending.wanted, "until": self.ending.until}
        row |= {"workers": len(self.workers), "per_worker": [asdict(worker) for worker in self.workers]}
        found: dict[str, Any] = jsonable(row)
        return found


NOTED = {
    DIED: "{who} {reason}",
    FAILED: "{who}, job {job}: {reason}",
    REJECTED: "{who}, job {job} was rejected: {reason}",
    RETIRED: "{who} is retired: {reason}",
    DIVERGED: "the loss is not finite",
    EVALUATION_FAILED: "the evaluation of iteration {iteration} failed: {reason}",
    STOPPED: "stopped: {reason}",
    STOPPED_EARLY: "stopped early: {reason}",
    STEP_CHANGED: "a callback multiplied the step by {factor}",
    DRAINED: "{reason}; no more jobs are handed out",
    RESUMED: "resumed",
}
"""The notes that a user sees, by event of the journal."""
NOTES = 50
"""Number of notes in a frame; the newest are kept."""


class Watcher:
    """Watches one run directory. ``look()`` returns the current state of the run.

    >>> import tempfile, asyncsgd as asgd
    >>> folder = tempfile.mkdtemp()
    >>> options = {"engine": asgd.engines.processes(2), "directory": folder, "progress": False}
    >>> run = asgd.train(asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1), iterations=20, **options)
    >>> with Watcher(folder) as watcher:
    ...     frame = watcher.look()
    >>> frame.sentence, frame.iterations, frame.average_delay == run.trace.delays.average
    ('done', 20, True)
    """

    def __init__(self, path: str | Path, now: Callable[[], float] = time.time) -> None:
        self.path = Path(path)
        self._now = now
        self._log = Log(self.path / "trace.log")
        self._metrics, self._journal = Lines(self.path / "metrics.jsonl"), Lines(self.path / "journal.jsonl")
        self._tails = (self._log, self._metrics, self._journal)
        self._forget()

    def __enter__(self) -> Watcher:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the files."""
        for tail in self._tails:
            tail.close()

    def _forget(self) -> None:
        self.close()
        self._tally = Tally()
        self._rows: list[dict[str, Any]] = []
        self._events: list[dict[str, Any]] = []

    def look(self) -> Frame:
        """Read what is new, and return the state of the run."""
        running = in_use(self.path)  # first: if no process trains here now, then the files read below are complete
        config = read_config(self.path)
        try:
            self._read()
        except Torn:  # a resume has shortened the file just now
            self._forget()
            try:
                self._read()
            except Torn as error:
                raise BadRunDirectory(f"{error}; restore it from a backup") from error
        return self._frame(config, running)

    def _read(self) -> None:
        # A resume replaces trace.log and shortens the other files: then start over.
        if any([tail.look() for tail in self._tails]):
            self._forget()
            for tail in self._tails:
                tail.look()
        for batch in self._log.news():
            self._tally.add(batch)
        self._rows.extend(self._metrics.news())
        self._events.extend(self._journal.news())
        if not self._tally.workers and not self._log.path.exists() and (self.path / "trace.parquet").exists():
            self._tally.add(Trace.read(self.path / "trace.parquet").jobs)  # the user has deleted trace.log

    def _frame(self, config: dict[str, Any], running: bool) -> Frame:
        tally = self._tally
        epoch = next((_number(row, "epoch") for row in reversed(self._rows) if "epoch" in row), None)
        wanted = expected(config, tally.iterations, epoch)
        changed = [time for tail in self._tails if (time := tail.changed) is not None]
        silent = max(0.0, self._now() - max(changed)) if running and changed else 0.0
        seconds = self._seconds() + silent
        end = ending_of_files(config, self._events, self._rows, tally.iterations, running=running)
        end = replace(end, wanted=wanted) if running else end
        alive = self._alive()
        speed = tally.iterations / seconds if seconds > 0 else 0.0
        if running:
            speed = tally.speed(seconds, len(alive))
        histogram = tally.histogram()
        jobs = int(histogram.sum())
        return Frame(
            directory=str(self.path),
            ending=end,
            task=str(config.get("task", "")),
            method=str(config.get("method_name", "")),
            iterations=tally.iterations,
            seconds=seconds,
            silent=silent,
            updates_per_second=speed,
            left=(wanted - tally.iterations) / speed if running and speed > 0 else None,
            average_delay=int(histogram @ np.arange(len(histogram))) / jobs if jobs else None,
            maximum_delay=max(0, len(histogram) - 1),
            histogram=tuple((int(delay), int(histogram[delay])) for delay in np.flatnonzero(histogram)),
            in_flight=len(tally.in_flight),
            alive=len(alive) if running else 0,
            workers=self._workers(alive, running, seconds),
            jobs={word(outcome): count for outcome, count in tally.outcomes.items()},
            faults=fault_counts(faults_of(self._events)),
            metrics=self._columns(),
            notes=self._notes(),
            epoch=epoch,
            epochs=config.get("epochs"),
        )

    def _seconds(self) -> float:
        """Return the run's clock when it last wrote. The diagnosis is written after the end, so it does not count."""
        journalled = (_number(row, "seconds") for row in self._events if row.get("event") != DIAGNOSED)
        measured = (_number(row, "time") for row in self._rows[-1:])
        return max(self._tally.latest, *journalled, *measured, 0.0)

    def _alive(self) -> set[int]:
        alive: set[int] = set()
        for row in since_start(self._events):
            if row.get("event") == JOINED:
                alive.add(row["worker"])
            elif row.get("event") == LEFT:
                alive.discard(row["worker"])
        return alive

    def _workers(self, alive: set[int], running: bool, seconds: float) -> tuple[WorkerSeen, ...]:
        tally = self._tally
        retired = {row.get("worker") for row in since_start(self._events) if row.get("event") == RETIRED}
        deaths = Counter(row.get("worker") for row in self._events if row.get("event") == DIED)
        flying = Counter(worker for worker, _, _ in tally.in_flight.values())
        means, label = tally.per_worker(), WorkerLabels.of(self._events)

        def state(worker: int) -> str:
            if not running:
                return ""
            if worker not in alive:
                return "retired" if worker in retired else "gone"
            return "working" if flying[worker] else "idle"

        def seen(worker: int) -> WorkerSeen:
            doing = tally.workers.get(worker)
            last = None if doing is None or doing.last is None else max(0.0, seconds - doing.last)
            jobs, faults = (0, 0) if doing is None else (doing.jobs, doing.faults)
            moment = state(worker), jobs, means.get(worker), flying[worker], last, faults, deaths[worker]
            return WorkerSeen(worker, label(worker), *moment)

        return tuple(seen(worker) for worker in sorted({*tally.workers, *alive}))

    def _notes(self) -> tuple[Note, ...]:
        found: list[Note] = []
        label = WorkerLabels.of(self._events)
        for row in reversed(self._events):
            found.extend(_notes(row, label))
            if len(found) >= NOTES:
                break
        return tuple(reversed(found[:NOTES]))

    def _columns(self) -> dict[str, tuple[float, ...]]:
        names = dict.fromkeys(name for row in self._rows for name in row)
        return {name: tuple(_number(row, name, float("nan")) for row in self._rows) for name in names}


def _number(row: dict[str, Any], name: str, otherwise: float = 0.0) -> float:
    value = row.get(name)
    return float(value) if isinstance(value, int | float) else otherwise


def _notes(row: dict[str, Any], label: WorkerLabels) -> list[Note]:
    event, seconds, iteration = row.get("event"), _number(row, "seconds"), int(_number(row, "iteration"))
    if event == DIAGNOSED:  # reversed, because the journal is read backwards
        return [Note(seconds, iteration, str(problem)) for problem in reversed(row.get("problems") or ())]
    if event not in NOTED:
        return []
    worker = row.get("worker")
    who = label(worker) if isinstance(worker, int) else "worker ?"
    text = NOTED[event].format_map({"who": who, "job": "?", "reason": "unknown reason", "factor": "?"} | row)
    return [Note(seconds, iteration, text, bad=event not in (RESUMED, STOPPED_EARLY, STEP_CHANGED, DRAINED))]
