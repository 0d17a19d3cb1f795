"""How a run stands at one moment: what the terminal draws and what a program reads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from asyncsgd.run.ending import BAD


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
    state: str
    """running, ended, interrupted, stopped, diverged or crashed."""
    words: str
    """The state in a sentence."""
    task: str
    method: str
    iteration: int
    iterations: int
    """Wanted."""
    until: str | None
    seconds: float
    """On the clock of the run."""
    silent: float
    """Seconds since its files last grew; 0 if it is over."""
    per_second: float
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
    outcomes: Mapping[str, int]
    faults: Mapping[str, int]
    """Deaths, exceptions and rejected updates."""
    metrics: Mapping[str, tuple[float, ...]]
    """Columns, "iteration" and "time" among them; one row per evaluation."""
    notes: tuple[Note, ...]

    @property
    def bad(self) -> bool:
        """Whether it ended as it should not."""
        return self.state in BAD

    def as_row(self) -> dict[str, Any]:
        """For JSON: of the metrics only the newest."""
        row = asdict(self)
        row["metrics"] = {name: _plain(values[-1]) for name, values in self.metrics.items() if values}
        row["histogram"] = [list(bar) for bar in self.histogram]
        return row


def _plain(value: float) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return value if math.isfinite(value) else None
