"""What the polling thread checks in the reply to a job, in the order in which replies are read."""

from __future__ import annotations

from collections.abc import Callable

from asyncsgd.engines.base import Note
from asyncsgd.flower.engine import Clients
from asyncsgd.flower.known_mods import Mods
from asyncsgd.flower.messages import Told
from asyncsgd.flower.norm_limit import NormLimit
from asyncsgd.flower.sender import ClientMessage, Good, Outcome, Refused
from asyncsgd.flower.weights import EXAMPLES, ReportWatch
from asyncsgd.trace.labels import client_label


class ReplyChecks:
    """The bound on norms, the mods of clients, and what they report. Only the polling thread uses it."""

    def __init__(self, rules: Clients, label: Callable[[int], str] = client_label, limit: float | None = None) -> None:
        self._norms, self._mods, self._label = NormLimit(rules.max_norm, label), Mods(), label
        self._reports = ReportWatch(rules.weighted_by, label, limit)
        self._weighted_by = rules.weighted_by
        self._noted: set[str] = set()  # events of notes that come once

    def judge(self, message: ClientMessage, outcome: Outcome) -> tuple[Outcome, list[Note]]:
        """Return the outcome of a job, which is refused if its update is too long, and notes about that."""
        if isinstance(outcome, Good) and message.wanted and (no := self._norms.judge(message.worker, message.length)):
            return Refused(no.reason), no.notes
        return outcome, []

    def heard(self, worker: int, told: Told) -> list[Note]:
        """Return a note, the first time that metrics of a reply cannot be averaged."""
        if not told.left_out:
            return []
        text = f"{self._label(worker)} reports {told.left_out}: this is left out of the mean (shown once)"
        return self._once(Note("metrics_left_out", {"worker": worker, "reason": told.left_out}, text))

    def _once(self, note: Note) -> list[Note]:
        if note.event in self._noted:
            return []
        self._noted.add(note.event)
        return [note]

    def notes(self, message: ClientMessage, told: Told) -> list[Note]:
        """Return what a user should know about a good reply."""
        worker, examples, metrics = message.worker, message.examples, told.metrics
        notes = [] if metrics is None else self._mods.reported(metrics.values)
        if metrics is not None and self._weighted_by == EXAMPLES and metrics.weight % 1:
            fix = "report fractions under another name, and pass it as weighted_by_key="
            text = f"{self._label(worker)} reports {metrics.weight:g} {EXAMPLES!r}, which counts as {examples}; {fix}"
            notes += self._once(Note("fraction_of_examples", {"worker": worker, "reported": metrics.weight}, text))
        return [*notes, *self._reports.note(worker, examples)]

    def summary(self) -> list[Note]:
        """Return the notes for the end of the run."""
        return list(self._norms.summary())
