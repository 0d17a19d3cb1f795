"""What went wrong on the way: counted, and how often in a row for each worker."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from asyncsgd.run.journal import DIED, FAILED, REJECTED


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


def where(error: str) -> str:
    r"""What two tracebacks have in common if only the words of the exception differ, as they may from job to job.

    >>> where('Traceback:\n  File "a.py", line 3, in f\n    g()\nValueError: row 17\nof 20')
    '  File "a.py", line 3, in f\nValueError'
    """
    lines = error.strip().splitlines()
    frames = [place for place, line in enumerate(lines) if line.startswith("  File ")]
    behind = lines[frames[-1] + 1 :] if frames else lines[-1:]
    kind = next((line.partition(":")[0] for line in behind if not line.startswith(" ")), "")
    return "\n".join([*(lines[place] for place in frames), kind])


class Troubles:
    """Counts faults while a run goes on."""

    def __init__(self) -> None:
        self._counts = {REJECTED: 0, FAILED: 0, DIED: 0}
        self._retired: set[int] = set()
        self._in_a_row: dict[int, int] = defaultdict(int)  # of a worker, since its last good update
        self._shown: set[str] = set()

    def count(self, what: str, worker: int) -> int:
        """A job of this worker was ``rejected`` or has ``failed``: how many now in a row."""
        self._counts[what] += 1
        self._in_a_row[worker] += 1
        return self._in_a_row[worker]

    def died(self) -> None:
        """A worker process is gone."""
        self._counts[DIED] += 1

    def retired(self, worker: int) -> None:
        """The run goes on without it."""
        self._retired.add(worker)

    def fine(self, worker: int) -> None:
        """A good update came."""
        self._in_a_row.pop(worker, None)

    def first(self, words: str) -> bool:
        """Whether this has not been shown yet."""
        new = words not in self._shown
        self._shown.add(words)
        return new

    def load(self, journal: Iterable[Mapping[str, Any]]) -> None:
        """What had gone wrong before a resume. Retired workers get another chance: the user may have mended them."""
        for row in journal:
            event = row.get("event")
            if event in self._counts:
                self._counts[event] += 1

    @property
    def faults(self) -> Faults:
        """All of it."""
        counts = self._counts
        return Faults(counts[REJECTED], counts[FAILED], counts[DIED], tuple(sorted(self._retired)))
