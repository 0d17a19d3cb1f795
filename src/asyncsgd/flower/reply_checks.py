"""What the polling thread checks in the reply to a job, in the order in which replies are read."""

from __future__ import annotations

from collections.abc import Callable

from asyncsgd.engines.base import Note
from asyncsgd.flower.engine import Clients
from asyncsgd.flower.known_mods import Mods
from asyncsgd.flower.messages import Told
from asyncsgd.flower.norm_limit import NormLimit
from asyncsgd.flower.sender import ClientMessage, Good, Outcome, Refused
from asyncsgd.flower.weights import ReportWatch
from asyncsgd.trace.labels import client_label


class ReplyChecks:
    """The bound on norms, the mods of clients, and who reports a weight. Only the polling thread uses it."""

    def __init__(self, rules: Clients, label: Callable[[int], str] = client_label) -> None:
        self._norms, self._mods = NormLimit(rules.max_norm, label), Mods()
        self._reports = ReportWatch(rules.weighted_by, label)

    def judge(self, message: ClientMessage, outcome: Outcome) -> tuple[Outcome, list[Note]]:
        """Return the outcome of a job, which is refused if its update is too long, and notes about that."""
        if isinstance(outcome, Good) and message.wanted and (no := self._norms.judge(message.worker, message.length)):
            return Refused(no.reason), no.notes
        return outcome, []

    def notes(self, message: ClientMessage, told: Told) -> list[Note]:
        """Return what a user should know about a good reply."""
        mods = [] if told.metrics is None else self._mods.reported(told.metrics.values)
        return [*mods, *self._reports.note(message.worker, message.examples)]

    def summary(self) -> list[Note]:
        """Return the notes for the end of the run."""
        return list(self._norms.summary())
