"""What a training run leaves behind, and how it can fail."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncsgd.result import Run
from asyncsgd.run.diagnosis import Diagnosis
from asyncsgd.run.faults import Faults


@dataclass(frozen=True, eq=False, repr=False)
class TrainingRun(Run):
    """A `Run` by real workers: the model, the trace, the metrics, and what there is to say about it."""

    directory: Path | None = None
    seconds: float = 0.0
    """On the clock of the run: what a crash and the time until resuming cost is not in it."""
    reached: bool = True
    """Whether the target of ``until`` was met; True if there was none."""
    interrupted: str | None = None
    """The signal that ended it early, such as "SIGINT"."""
    stopped_early: str | None = None
    """The reason that a callback gave for stopping it."""
    faults: Faults = field(default_factory=Faults)
    diagnosis: Diagnosis = field(default_factory=Diagnosis)
    """What there is to see and what is wrong, in sentences."""
    config: dict[str, Any] = field(default_factory=dict)
