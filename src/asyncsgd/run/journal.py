"""The events of journal.jsonl: their names, what each row holds, and how many of them are faults.

Every row also holds ``event``, ``iteration`` and ``seconds``. A replay needs the journal beside the trace: it holds
everything that changed the run and is not a job. Rows are in the order of time. A reader ignores events that it does
not know, so a new event does not need a new format.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

STARTED, RESUMED, ENDED = "started", "resumed", "ended"
JOINED, LEFT, DRAINED = "joined", "left", "drained"
STEP_CHANGED, STATE_RESET = "step_changed", "state_reset"
REJECTED, FAILED, DIED, RETIRED = "rejected", "failed", "died", "retired"
DIVERGED, STOPPED, STOPPED_EARLY, DIAGNOSED = "diverged", "stopped", "stopped_early", "diagnosed"
EVALUATION_FAILED = "evaluation_failed"

FIELDS: dict[str, tuple[str, ...]] = {
    STARTED: ("threads", "jobs"),
    RESUMED: ("threads", "jobs"),
    ENDED: ("workers", "skipped_rows"),
    JOINED: ("worker",),
    LEFT: ("worker",),
    DRAINED: ("reason",),
    STEP_CHANGED: ("factor", "reason"),
    STATE_RESET: ("worker", "reason"),
    REJECTED: ("worker", "job", "reason"),
    FAILED: ("worker", "job", "reason"),
    DIED: ("worker", "reason"),
    RETIRED: ("worker", "reason"),
    DIVERGED: (),
    STOPPED: ("reason",),
    STOPPED_EARLY: ("reason",),
    DIAGNOSED: ("problems", "facts"),
    EVALUATION_FAILED: ("reason",),
}
"""The fields of every event. ``ended``: ``skipped_rows`` is null if the task has no epochs. ``drained``: no job is
handed out from here on. ``step_changed``: steps are multiplied by ``factor`` from this iteration on. ``state_reset``:
the worker lost the state that it keeps between jobs. ``stopped``: an error stopped the run. ``stopped_early``: a
callback stopped it. ``evaluation_failed``: the evaluation of the model of this iteration raised or took too long."""


@dataclass(frozen=True)
class Faults:
    """How often jobs and workers failed during a run."""

    rejected: int = 0
    """Updates with NaN or infinity, or of the wrong kind."""
    exceptions: int = 0
    """Jobs in which the user's code raised."""
    deaths: int = 0
    """Worker processes that were killed, hung or crashed, and were replaced."""
    retired: tuple[int, ...] = ()
    """Workers that the run excluded after too many failures in a row."""
    evaluations: int = 0
    """Evaluations that raised, or took too long."""


def where(error: str) -> str:
    r"""Return the place and the type of an error, to recognise it if only the message differs from job to job.

    >>> where('Traceback:\n  File "a.py", line 3, in f\n    g()\nValueError: row 17\nof 20')
    '  File "a.py", line 3, in f\nValueError'
    """
    lines = error.strip().splitlines()
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    behind = lines[frames[-1] + 1 :] if frames else lines[-1:]
    kind = next((line.partition(":")[0] for line in behind if not line.startswith(" ")), "")
    return "\n".join([*(lines[place] for place in frames), kind])


class FaultCounter:
    """Counts the faults of a run while it trains."""

    def __init__(self) -> None:
        self._counts = {REJECTED: 0, FAILED: 0, DIED: 0, EVALUATION_FAILED: 0}
        self._retired: set[int] = set()
        self._in_a_row: dict[int, int] = defaultdict(int)  # by worker, since its last good update
        self._shown: set[str] = set()

    def count(self, what: str, worker: int) -> int:
        """Count a ``rejected`` or ``failed`` job of this worker, and return how many came in a row."""
        self._counts[what] += 1
        self._in_a_row[worker] += 1
        return self._in_a_row[worker]

    def died(self) -> None:
        """Count the death of a worker."""
        self._counts[DIED] += 1

    def missed_evaluation(self) -> None:
        """Count an evaluation that raised or took too long."""
        self._counts[EVALUATION_FAILED] += 1

    def retired(self, worker: int) -> None:
        """Remember that the run continues without this worker."""
        self._retired.add(worker)

    def fine(self, worker: int) -> None:
        """Reset the count of consecutive faults: a good update arrived."""
        self._in_a_row.pop(worker, None)

    def first(self, text: str) -> bool:
        """Return whether this text has not been shown yet, and remember it."""
        new = text not in self._shown
        self._shown.add(text)
        return new

    def load(self, journal: Iterable[Mapping[str, Any]]) -> None:
        """Count the faults before a resume. Retired workers get another chance: the user may have fixed them."""
        for row in journal:
            event = row.get("event")
            if event in self._counts:
                self._counts[event] += 1

    @property
    def faults(self) -> Faults:
        """The counts so far."""
        counts = self._counts
        retired = tuple(sorted(self._retired))
        return Faults(counts[REJECTED], counts[FAILED], counts[DIED], retired, counts[EVALUATION_FAILED])
