"""Who is present: which workers the server believes to be there, and the next list of reports for the server.

`asyncsgd.engines.lifecycle` builds on it for workers that an engine starts itself; an engine whose workers come and go
by themselves uses it alone. It has no clock, process or thread. Only the thread that polls the engine may call it.
"""

from __future__ import annotations

from asyncsgd.core.events import Joined, Left
from asyncsgd.engines.base import Report


class Attendance:
    """The workers that the server believes to be present, and the next list of reports for the server.

    ``present`` holds every worker whose last report was ``Joined`` and not ``Left``.

    A worker that left must not join again within the same list. The server handles a list report by report, and the
    engine executes the commands at once: a job that the server assigned before it read ``Left`` would otherwise count
    as a job of the replacement. So a worker that is back too early is *late*: it joins in the next list.
    """

    def __init__(self) -> None:
        self.present: set[int] = set()
        self.retired: set[int] = set()
        self.opened = False
        self._reports: list[Report] = []
        self._left: set[int] = set()  # workers that left in the list that is being written
        self._late: set[int] = set()  # workers that join in the next list, or once `open` was called

    @property
    def late(self) -> frozenset[int]:
        """The workers that join when the next list begins."""
        return frozenset(self._late)

    @property
    def pending(self) -> bool:
        """Whether there is something to report."""
        return bool(self._reports)

    def open(self) -> None:
        """Let workers join. All that are ready join in one report, in order, so that equal runs begin equally."""
        self.opened = True

    def begin(self) -> None:
        """Begin a poll: the late workers join."""
        if self.opened and self._late:
            late, self._late = sorted(self._late), set()
            self._join(late)

    def came(self, *workers: int) -> None:
        """Let these workers join in one report; workers that left in this list join in the next one."""
        now = []
        for worker in workers:
            if worker in self.retired or worker in self.present:
                continue
            if not self.opened or worker in self._left:
                self._late.add(worker)
            else:
                now.append(worker)
        if now:
            self._join(now)

    def went(self, worker: int) -> None:
        """Report that a worker left, if the server knew it."""
        self._late.discard(worker)
        if worker in self.present:
            self.present.remove(worker)
            self._left.add(worker)
            self._reports.append(Left(worker))

    def retire(self, worker: int) -> None:
        """Remove this worker for good. Nothing is reported, as the caller asked for it."""
        self.retired.add(worker)
        self.present.discard(worker)
        self._late.discard(worker)

    def report(self, report: Report) -> None:
        """Append a report to the list."""
        self._reports.append(report)

    def take(self) -> list[Report]:
        """End the list and return it."""
        reports, self._reports = self._reports, []
        self._left.clear()
        return reports

    def _join(self, workers: list[int]) -> None:
        self.present.update(workers)
        self._reports.append(Joined(workers))
