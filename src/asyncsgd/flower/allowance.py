"""How much each client may still contribute: ``Clients(max_updates=...)``, and the budget of `Privacy`.

A client that has used up its allowance leaves: its jobs go to other clients. The pool asks before it sends a job, and
sends a client its next job only after the server has used the last one. So an update that arrives is always within the
allowance, and none is thrown away. Only the polling thread touches an `Allowance`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable

from asyncsgd.core.events import Outcome
from asyncsgd.engines.attendance import Attendance
from asyncsgd.engines.base import Exhausted, Note
from asyncsgd.flower.clients import WorkerHandle
from asyncsgd.flower.privacy import Accountant
from asyncsgd.trace import Trace
from asyncsgd.trace.labels import client_label


class Allowance:
    """Which clients may get another job.

    A budget can stop a client in two ways. If one more update would exceed it however the sums are filled, the client
    has left for good. If only a further update in the *present* sum would exceed it, because n updates in one sum cost
    n², the client waits until that sum is released.
    """

    def __init__(
        self, max_updates: int | None, accountant: Accountant | None, label: Callable[[int], str] = client_label
    ) -> None:
        self._most, self._label = max_updates, label
        self._size = 1 if accountant is None else accountant.size
        self._book = None if accountant is None or accountant.book.limit is None else accountant.book
        if self._book is not None:
            self._book.label = label
        self._used: Counter[int] = Counter()
        self._waiting: set[int] = set()
        self._told = False
        self._over = False

    @property
    def active(self) -> bool:
        """Whether anything is bounded."""
        return self._most is not None or self._book is not None

    def resumed(self, trace: Trace) -> None:
        """Count what the run used before a resume. The book knows the releases, and the trace what it does not."""
        used = trace.worker[trace.outcome == Outcome.APPLIED].tolist()
        self._used.update(used)
        if self._book is not None:
            self._book.sum = Counter(used[len(used) - len(used) % self._size :])

    def admits(self, worker: int) -> bool:
        """Return whether this client may get a job now."""
        if self._most is not None and self._used[worker] >= self._most:
            return False
        return self._book is None or self._book.admits(worker)

    def used(self, worker: int, applied: bool) -> list[Note]:
        """Count an update, if it was applied. Return a note if it was the client's last one."""
        self._used[worker] += applied
        if self.admits(worker):
            return []
        why = self._why(worker)
        if why is None:
            self._waiting.add(worker)
            return []
        text = f"{self._label(worker)} gets no more jobs: {why} (reported once; the journal has the others)"
        told, self._told = self._told, True
        return [
            Note("used_up", {"worker": worker, "updates": self._used[worker], "reason": why}, None if told else text)
        ]

    def reopened(self) -> bool:
        """Return whether a release has ended the wait of a client since the last call."""
        back = {worker for worker in self._waiting if self.admits(worker)}
        self._waiting -= back
        return bool(back)

    def end(self, attendance: Attendance, online: Callable[[], Iterable[WorkerHandle]]) -> None:
        """Report, once, that the run ends, if none of the connected clients may contribute any more.

        A client that may contribute is present, or is left out for a while and may come back.
        """
        if self._over or not self.active or attendance.present or not attendance.opened:
            return
        workers = [handle.number for handle in online()]
        if not workers or any(self.admits(worker) for worker in workers):
            return
        self._over = True
        reason = f"every connected client has contributed max_updates = {self._most} updates"
        if self._book is not None and not all(self._book.admits(worker) for worker in workers):
            reason = "privacy budget: no connected client can contribute any more "
            reason += f"without exceeding ε = {self._book.budget:g}"
        attendance.report(Exhausted(reason))

    def _why(self, worker: int) -> str | None:
        """Return why the client may never contribute again; None if it may after the next release."""
        if self._most is not None and self._used[worker] >= self._most:
            return f"it has contributed max_updates = {self._most} updates"
        assert self._book is not None
        if self._book.exhausted(worker):
            return f"another update would exceed the budget ε = {self._book.budget:g}"
        return None
