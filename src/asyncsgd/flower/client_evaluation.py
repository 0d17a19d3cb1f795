"""Evaluation on clients during training: one model at a time, at the pace of the slowest client that answers.

Only the polling thread uses this module. Other threads ask for an evaluation through the pool's inbox.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from asyncsgd.engines.base import Note
from asyncsgd.flower.clients import LONGEST_END, Patience, WorkerHandle
from asyncsgd.flower.messages import MessageWriter, Told
from asyncsgd.flower.round_rules import RoundRules
from asyncsgd.flower.rounds import Gathered, RoundLog, describe
from asyncsgd.flower.sender import ClientMessage, ErrorReply, Good, Outcome, Refused
from asyncsgd.run.options import within_share


@dataclass(frozen=True)
class Measured:
    """The server has evaluated this model, an ``ArrayRecord``."""

    iteration: int
    record: Any


@dataclass
class _Evaluation:
    """The evaluation of one model by the clients that were chosen when it began."""

    iteration: int
    pending: dict[int, tuple[WorkerHandle, ClientMessage]]
    gathered: Gathered
    failed: int = 0
    why: str = ""


class Evaluations:
    """Evaluations on clients. A model that comes during another evaluation waits; only the newest one is kept."""

    def __init__(self, messages: MessageWriter, rules: RoundRules, log: RoundLog, clock: Callable[[], float]) -> None:
        self._writer, self._rules, self._log, self._clock = messages, rules, log, clock
        self._now: _Evaluation | None = None
        self._next: tuple[int, Any] | None = None  # (iteration, ArrayRecord)
        self._left_out = 0  # models that clients did not evaluate
        self._spent = {"train": 0.0, "evaluate": 0.0}  # seconds that clients took for answers of each kind
        self._answers = 0
        self.ending = False
        """Whether the run is over. Its last model is evaluated however long that takes."""

    @property
    def busy(self) -> bool:
        """Whether an evaluation is under way or waits."""
        return self._now is not None or self._next is not None

    def took(self, kind: str, seconds: float) -> None:
        """Record how long a client took for an answer."""
        self._spent[kind] += seconds
        self._answers += kind == "evaluate"

    def ask(self, iteration: int, record: Any) -> None:
        """Evaluate this model next. As in Flower, clients do not evaluate the initial model."""
        if iteration:
            self._left_out += self._next is not None
            self._next = iteration, record

    def begin(self, handles: Iterable[WorkerHandle]) -> list[WorkerHandle]:
        """Queue the messages of the next evaluation, unless one is under way. Return the clients to send to.

        An evaluation that would take too much of the clients' time is left out.
        """
        if self._now is not None or self._next is None:
            return []
        free = [handle for handle in handles if handle.current is None or handle.current.kind != "evaluate"]
        if not free:
            return []
        (iteration, record), self._next = self._next, None
        chosen = self._rules.choose(free, iteration)
        if not chosen or not (self.ending or self._affordable(len(chosen))):
            self._left_out += 1
            return []
        messages = {handle.number: (handle, self._writer.evaluate(handle, iteration, record)) for handle in chosen}
        self._now = _Evaluation(iteration, messages, self._log.gathered("evaluate"))
        for handle, message in messages.values():
            handle.waiting.appendleft(message)  # first in the queue: many jobs may wait for a slow client
        return chosen

    def _affordable(self, clients: int) -> bool:
        if self._rules.share is None or not self._answers:
            return True
        after = self._spent["evaluate"] * (1 + clients / self._answers)
        return within_share(after, self._rules.share, self._spent["train"] + after, times=clients)

    def answered(self, message: ClientMessage, outcome: Outcome) -> list[Note]:
        """Record an answer. Return a note if it was the last one."""
        here = self._now
        if here is None or message.number != here.iteration or message.worker not in here.pending:
            return []
        match outcome:
            case Good(value=Told() as told, seconds=seconds):
                who = here.pending[message.worker][0].title
                self._log.evaluated(here.iteration, who, told, seconds, self._clock())
                here.gathered.add(message.worker, told)
                if told.metrics is None:
                    here.failed, here.why = here.failed + 1, f"it reports {told.left_out or 'no metrics'}"
            case Refused(reason=why) | ErrorReply(reason=why):
                here.failed, here.why = here.failed + 1, why
        return self.gone(message.worker)

    def gone(self, worker: int) -> list[Note]:
        """Stop waiting for this client. Return a note if it was the last one."""
        if self._now is None:
            return []
        if (found := self._now.pending.pop(worker, None)) is not None:
            handle, message = found
            handle.drop(message)
        return [] if self._now.pending else self.close()

    def silent(self, worker: int, seconds: float) -> list[Note]:
        """Count this client as failed, as it was given up. Return a note if it was the last one."""
        if self._now is not None and worker in self._now.pending:
            self._now.failed, self._now.why = self._now.failed + 1, f"no answer in {seconds:.0f} s"
        return self.gone(worker)

    def overdue(self, now: float, ended: float, patience: Patience) -> list[Note]:
        """Give up clients that take too long, once the run has ended at the time ``ended``. Return notes about it.

        A client may still compute a job that is not wanted any more; only then does its evaluation begin. It gets at
        most `LONGEST_END` seconds to end the job, and its time for the evaluation after that. A model that no client
        can begin to evaluate in these seconds, as all of them hang in an earlier evaluation, is not evaluated. So the
        wait ends whatever clients do.
        """
        over = now - ended > LONGEST_END
        if self._now is None and over:
            self._next = None
        notes: list[Note] = []
        for worker, (handle, _) in list(self._now.pending.items()) if self._now is not None else ():
            current = handle.current
            began, kind = (ended, "evaluate") if current is None else (current.sent_at, current.kind)
            limit = patience.last(worker, kind)
            if now - began > limit or (over and kind == "train"):
                notes += self.silent(worker, min(limit, now - began))
        return notes

    def summary(self) -> list[Note]:
        """Return a note about the models that clients did not evaluate, if there are any."""
        if not self._left_out:
            return []
        rounds = "1 round was" if self._left_out == 1 else f"{self._left_out:,} rounds were"
        text = f"{rounds} not evaluated by clients, because they were still evaluating an earlier model"
        if self._rules.share is not None:
            text += ", or because evaluation would have taken too much of their time"
        return [Note("not_evaluated", {"rounds": self._left_out}, text)]

    def close(self) -> list[Note]:
        """End the evaluation without the missing answers, and return a note about it."""
        if self._now is None:
            return []
        done, self._now = self._now, None
        number = self._rules.of_model(done.iteration)
        row = {"kind": "evaluate", "round": number, "at": done.iteration, "failed": done.failed, **done.gathered.row()}
        return [Note("client_metrics", row, f"round {number}, evaluated by clients: {describe(row, done.why)}")]
