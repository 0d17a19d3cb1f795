"""How a run stands at one moment: what the terminal draws and what a program reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from asyncsgd.format import jsonable
from asyncsgd.run.ending import End, Ending


@dataclass(frozen=True)
class WorkerSeen:
    """One worker."""

    worker: int
    state: str
    """working, idle, retired or gone; empty if the run is over."""
    jobs: int
    """Updates of it that arrived."""
    mean_delay: float | None
    in_flight: int
    last_seen: float | None
    """Seconds since its last update arrived."""
    faults: int
    """Jobs of it that were lost or rejected."""
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
    """How a run stands."""

    directory: str
    ending: Ending
    task: str
    method: str
    iterations: int
    """Updates that have arrived."""
    seconds: float
    """On the clock of the run."""
    silent: float
    """Seconds since its files last grew; 0 if it is over."""
    updates_per_second: float
    """Updates, lately, 0 before the first one; over all its time if it is over."""
    left: float | None
    """Seconds to the last iteration at this speed."""
    average_delay: float | None
    maximum_delay: int
    histogram: tuple[tuple[int, int], ...]
    """(delay, jobs), for delays that occurred."""
    in_flight: int
    alive: int
    """Workers."""
    workers: tuple[WorkerSeen, ...]
    jobs: Mapping[str, int]
    """How many ended how."""
    faults: Mapping[str, int]
    """Deaths, exceptions, rejected updates and retired workers: what `RunView.headline` calls faults."""
    metrics: Mapping[str, tuple[float, ...]]
    """Columns, "iteration" and "time" among them; one row per evaluation."""
    notes: tuple[Note, ...]

    @property
    def running(self) -> bool:
        """Whether a process is training."""
        return self.ending.kind is End.RUNNING

    @property
    def sentence(self) -> str:
        """How it ended, or how to resume it."""
        return self.ending.sentence(Path(self.directory))

    def headline(self) -> dict[str, Any]:
        """Return the frame for JSON, under the names of `asyncsgd.run.view.RunView.headline` where that has them."""
        row = {name: value for name, value in asdict(self).items() if name not in ("ending", "workers")}
        row["metrics"] = {name: values[-1] for name, values in self.metrics.items() if values}
        row |= {"state": str(self.ending.kind), "sentence": self.sentence}
        row |= {"wanted": self.ending.wanted, "until": self.ending.until}
        row |= {"workers": len(self.workers), "per_worker": [asdict(worker) for worker in self.workers]}
        found: dict[str, Any] = jsonable(row)
        return found
