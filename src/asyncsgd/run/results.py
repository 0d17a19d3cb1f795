"""What a training run leaves behind, and how it can fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import AsyncSGDError
from asyncsgd.simulation import Run


class WorkersFailed(AsyncSGDError):
    """The user's code fails again and again, or no worker is left."""


@dataclass(frozen=True)
class Faults:
    """What went wrong on the way, in jobs and in workers."""

    rejected: int = 0
    """Updates with NaN or infinity, or of the wrong kind."""
    exceptions: int = 0
    """Jobs in which the user's code raised."""
    deaths: int = 0
    """Worker processes that were killed, hung or crashed, and were replaced."""
    retired: tuple[int, ...] = ()
    """Workers that the run went on without."""


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRun(Run):
    """A `Run` by real workers: the model, the trace, the metrics, and what there is to say about it."""

    directory: Path | None = None
    seconds: float = 0.0
    """On the clock of the run: what a crash and the time until resuming cost is not in it."""
    reached: bool = True
    """Whether the target of ``until`` was met; True if there was none."""
    faults: Faults = field(default_factory=Faults)
    diagnosis: tuple[str, ...] = ()
    """What is wrong, in sentences; empty if nothing is."""
    config: dict[str, Any] = field(default_factory=dict)
