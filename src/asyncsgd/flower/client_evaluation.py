"""Evaluation on clients during training: one model at a time, at the pace of the slowest client that answers.

Only the polling thread uses this module. Other threads ask for an evaluation through the pool's inbox.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from asyncsgd.engines.base import Note
from asyncsgd.flower.clients import WorkerHandle
from asyncsgd.flower.messages import Means, MessageWriter
from asyncsgd.flower.sender import ClientMessage, ErrorReply, Good, Outcome, Refused

PATIENCE = 10.0
"""Seconds that clients get for the last evaluation of a run, in addition to twice the longest job so far."""


@dataclass(frozen=True)
class Measured:
    """The server has evaluated this model, an ``ArrayRecord``."""

    iteration: int
    record: Any


@dataclass
class _Round:
    """The evaluation of one model by the clients that were present when it began."""

    iteration: int
    pending: dict[int, tuple[WorkerHandle, ClientMessage]]
    means: Means = field(default_factory=Means)
    failed: int = 0
    why: str = ""


class Evaluations:
    """Evaluations on clients. A model that comes during another evaluation waits; only the newest one is kept."""

    def __init__(self, messages: MessageWriter) -> None:
        self._writer = messages
        self._round: _Round | None = None
        self._next: tuple[int, Any] | None = None  # (iteration, ArrayRecord)
        self._longest = 0.0

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way or waits."""
        return self._round is not None or self._next is not None

    @property
    def patience(self) -> float:
        """Seconds that clients get for the last evaluation of a run."""
        return PATIENCE + 2 * self._longest

    def took(self, seconds: float) -> None:
        """Record how long a job took. An evaluation may have to wait for one."""
        self._longest = max(self._longest, seconds)

    def ask(self, iteration: int, record: Any) -> None:
        """Evaluate this model next."""
        self._next = iteration, record

    def begin(self, handles: Iterable[WorkerHandle]) -> list[WorkerHandle]:
        """Queue the messages of the next evaluation, unless one is under way. Return the clients to send to."""
        if self._round is not None or self._next is None:
            return []
        free = [handle for handle in handles if handle.current is None or handle.current.kind != "evaluate"]
        if not free:
            return []
        (iteration, record), self._next = self._next, None
        messages = {handle.number: (handle, self._writer.evaluate(handle, iteration, record)) for handle in free}
        self._round = _Round(iteration, messages)
        for handle, message in messages.values():
            handle.waiting.appendleft(message)  # first in the queue: many jobs may wait for a slow client
        return free

    def answered(self, message: ClientMessage, outcome: Outcome) -> list[Note]:
        """Record an answer. Return a note if it was the last one."""
        here = self._round
        if here is None or message.number != here.iteration or message.worker not in here.pending:
            return []
        match outcome:
            case Good(value=reported) if reported is not None:
                here.means.add(message.worker, reported)
            case Good():
                here.failed, here.why = here.failed + 1, "its metrics cannot be averaged"
            case Refused(reason=why) | ErrorReply(reason=why):
                here.failed, here.why = here.failed + 1, why
        return self.gone(message.worker)

    def gone(self, worker: int) -> list[Note]:
        """Stop waiting for this client. Return a note if it was the last one."""
        if self._round is None:
            return []
        if (found := self._round.pending.pop(worker, None)) is not None:
            handle, message = found
            handle.drop(message)
        return [] if self._round.pending else self.close()

    def silent(self, worker: int, seconds: float) -> list[Note]:
        """Count this client as failed, as it was given up. Return a note if it was the last one."""
        if self._round is not None and worker in self._round.pending:
            self._round.failed, self._round.why = self._round.failed + 1, f"no answer in {seconds:.0f} s"
        return self.gone(worker)

    def close(self) -> list[Note]:
        """End the evaluation without the missing answers, and return a note about it."""
        if self._round is None:
            return []
        done, self._round = self._round, None
        row = {"kind": "evaluate", "at": done.iteration, "failed": done.failed, **done.means.row()}
        return [Note("client_metrics", row, f"clients, model of iteration {done.iteration}: {describe(row, done.why)}")]


def training_note(means: Means) -> Note:
    """Return a note with the metrics that clients reported about their training."""
    row = {"kind": "train", **means.row()}
    return Note("client_metrics", row, f"clients, training: {describe(row)}")


def describe(row: dict[str, Any], why: str = "") -> str:
    """Return a line about the metrics of clients.

    >>> from asyncsgd.flower.messages import ReportedMetrics
    >>> means = Means()
    >>> means.add(0, ReportedMetrics(10.0, {"accuracy": 0.5}))
    >>> describe({**means.row(), "failed": 1}, "no data")
    'accuracy 0.5 (1 client, 10 examples; 1 failed: no data)'
    """
    shown = ", ".join(f"{name} {value:.4g}" for name, value in list(row["metrics"].items())[:6]) or "no numbers"
    who = f"{row['clients']} client{'s' * (row['clients'] != 1)}, {row['examples']:.0f} examples"
    reason = why.splitlines()[-1] if why else "no error message"
    failed = f"; {row['failed']} failed: {reason}" if row.get("failed") else ""
    return f"{shown} ({who}{failed})"
