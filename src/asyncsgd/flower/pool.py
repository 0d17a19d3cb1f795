"""The server's side of Flower clients: their jobs, their failures, and who is left out for a while.

Threads: the polling thread (the training loop) owns all state of the pool. Every other thread only puts an item into
the inbox, a thread-safe queue, and the polling thread handles it in its next poll:

- one thread per message in flight sends it and waits for the reply (`sender`), except in Flower's simulation,
- one thread asks for the connected nodes again and again (`presence`),
- the thread that evaluates calls `measured`, and any thread or signal handler may call `stop`.

A client process belongs to Flower: the pool can neither stop nor restart it. If a client hangs or fails too often, the
pool reports that the worker left, and ignores what it still sends for those jobs. If the server ends, the threads end
with it, as they are daemons, and no other process reads the replies that come later.
"""

from __future__ import annotations

import math
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from asyncsgd.core.errors import EngineError
from asyncsgd.core.events import Arrived, Assign, Command, Lost
from asyncsgd.core.vectors import Vector
from asyncsgd.engines.base import LATE, Died, Note, Replied, Report, WorkerPool
from asyncsgd.engines.lifecycle import Attendance
from asyncsgd.flower.allowance import Allowance
from asyncsgd.flower.arrays import Arrays
from asyncsgd.flower.client_evaluation import Evaluations, Measured
from asyncsgd.flower.clients import (
    SELDOM,
    ClientNumbers,
    ConnectedNodes,
    Patience,
    PresenceWatcher,
    Reminder,
    WorkerHandle,
    bias,
)
from asyncsgd.flower.legacy import Formats
from asyncsgd.flower.messages import MessageWriter, Told
from asyncsgd.flower.outcomes import failure
from asyncsgd.flower.reply_checks import ReplyChecks
from asyncsgd.flower.rounds import RoundLog
from asyncsgd.flower.sender import ClientMessage, ErrorReply, Fatal, Good, Outcome, RunEnded, is_simulated, sender_for
from asyncsgd.flower.task import Memory
from asyncsgd.trace import Trace
from asyncsgd.trace.labels import client_label

if TYPE_CHECKING:
    from asyncsgd.flower.engine import Flower

SOON = 0.2
"""Seconds between two looks at clients that evaluate, at the end of a run."""
CLOSING = 5.0
"""Seconds that threads in the middle of a call get to end when the pool closes."""


class FlowerPool(WorkerPool):
    """Clients of a Flower grid. Each gets one message at a time; all replies come through one queue."""

    def __init__(self, engine: Flower, x: Vector, *, steps: bool = False) -> None:
        self._engine, self._rules = engine, engine.clients
        self.dtype = x.dtype
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._sender = sender_for(engine.grid, self._inbox)
        self._numbers = ClientNumbers(engine.folder, simulated=is_simulated(engine.grid), resume=engine.resume)
        self._memory = Memory(engine, x)
        self._writer = MessageWriter(engine, self._memory, x, steps=steps)
        self.log = RoundLog(engine.rounds, engine.rounds.weighted_by_key, engine.folder, resume=engine.resume)
        self._evaluations = Evaluations(self._writer, engine.rounds, self.log, lambda: self.clock())
        self._patience = Patience(self._rules.patience, engine.timeout)
        self._checks = ReplyChecks(self._rules, self.label, engine.report_limit)
        self._allowance = Allowance(self._rules.max_updates, engine.accountant, self.label)
        self._handles: dict[int, WorkerHandle] = {}
        self._formats = Formats()
        self._live: dict[int, ClientMessage] = {}  # job -> its message
        self._attendance = Attendance()
        self._told: dict[int, tuple[Told, float]] = {}  # job -> what its reply reports, and its seconds
        self._seen = -1  # number of connected nodes in the last list
        self._reminder = Reminder(engine.needed)
        self._fatal: EngineError | None = None
        self._closed = False
        self._presence = PresenceWatcher(engine.grid, self._inbox)

    # ------------------------------------------------------------------------------------------ for the run

    def execute(self, command: Command) -> None:
        job = command.job
        handle = self._handles.get(job.worker)
        if isinstance(command, Assign):
            # If the client is not present, the server is about to read that it left, and drops the job itself. After
            # the last arrival no client should begin another job: it would evaluate the last model only after that.
            self.log.hand_out(job.iteration)
            present = job.worker in self._attendance.present
            if handle is not None and present and not self._engine.rounds.over(job.iteration):
                message = self._live[job.id] = self._writer.train(handle, command)
                handle.waiting.append(message)
                self._send(handle)
        elif handle is not None and (given := self._live.pop(job.id, None)) is not None:
            handle.drop(given)

    def poll(self, timeout: float) -> list[Report]:
        if self._fatal is not None:
            raise self._fatal
        now = time.monotonic()
        self._attendance.begin()
        self._settle()
        self._welcome_back(now)
        present = bool(self._attendance.present)
        self._note(self._reminder.due(now, present=present, online=len(self._online())))
        self._memory.save(now)
        self._evaluate()
        self._drain(0.0 if self._attendance.pending else timeout)
        self._allowance.end(self._attendance, self._online)
        self._give_up()  # last, after all replies: time for which the server was busy must not count for a client
        return self._attendance.take()

    def used(self, report: Arrived, applied: bool) -> None:
        assert report.worker is not None
        handle = self._handles[report.worker]
        handle.judged(report.job, applied)
        told, seconds = self._told.pop(report.job, (Told(None), report.seconds or 0.0))
        self._note(self.log.arrived(handle.title, told, seconds, self.clock()))
        self._note(self._allowance.used(handle.number, applied))
        if not self._allowance.admits(handle.number):
            self._leave(handle)
        if self._allowance.reopened():
            self._join()
        self._send(handle)

    def resumed(self, trace: Trace) -> None:
        self._allowance.resumed(trace)

    def label(self, worker: int) -> str:
        return client_label(worker) if (handle := self._handles.get(worker)) is None else str(handle.title)

    def _settle(self) -> None:
        """Send the jobs of clients whose last update got no verdict: the server did not apply it."""
        self._told.clear()
        for handle in self._handles.values():
            if handle.undecided >= 0:
                handle.judged(handle.undecided, applied=False)
                self._send(handle)

    def _drain(self, timeout: float) -> None:
        try:
            self._take(self._sender.next(timeout))
            while True:
                self._take(self._inbox.get_nowait())
        except Empty:
            return

    def retire(self, worker: int) -> None:
        self._attendance.retire(worker)
        self._leave(self._handles[worker])

    def finish(self) -> list[Note | Replied]:
        reports: list[Report] = []
        for message in self._live.values():
            self._handles[message.worker].drop(message)
        self._live.clear()
        self._evaluations.ending = True
        self._drain(0.0)
        self._note(self.log.close(self.clock()))
        ended = time.monotonic()
        while self._evaluations.busy and self._online():  # `overdue` ends this
            try:
                reports += self.poll(SOON)
                self._note(self._evaluations.overdue(time.monotonic(), ended, self._patience))
            except EngineError as error:
                self._attendance.report(Note("trouble", {"reason": str(error)}, str(error)))
                break
        self._note(self._evaluations.close())
        reports += self._attendance.take()
        last = (*reports, *self._evaluations.summary(), *self._checks.summary(), *bias(self._handles.values()))
        return [report for report in last if isinstance(report, LATE)]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._presence.close(CLOSING)
        self._sender.close(CLOSING)
        self._memory.save(math.inf)
        self.log.shut()

    # ------------------------------------------------------------------------------------------ for the task

    @property
    def carried(self) -> Arrays:
        """The arrays that are not in the vector, as the next message will contain them."""
        return self._memory.carried

    @property
    def evaluates(self) -> bool:
        """Whether clients evaluate too."""
        return self._engine.evaluate_config is not None

    def stop(self, why: str) -> None:
        """End the run as if Flower had ended it: the next poll raises, and the loop saves a checkpoint.

        Any thread and any signal handler may call this: it only puts an item into the inbox.
        """
        self._inbox.put((None, RunEnded(why)))

    def measured(self, iteration: int, record: Any, *notes: Note) -> None:
        """Let clients evaluate the model that the server has evaluated, if they should. Any thread may call this."""
        for item in (*notes, Measured(iteration, record)):
            self._inbox.put(item)

    # ------------------------------------------------------------------------------------------ items of the inbox

    def _take(self, item: Any) -> None:
        match item:
            case ConnectedNodes():
                self._look_at(item)
            case Note():
                self._note([item])
            case Measured(iteration=iteration, record=record) if self.evaluates:
                self._evaluations.ask(iteration, record)
                self._evaluate()
            case (message, Fatal() as fatal):
                self._fatal = fatal.error("" if message is None else self.label(message.worker))
            case (message, outcome):
                self._answered(message, outcome)

    def _answered(self, message: ClientMessage, outcome: Outcome) -> None:
        handle = self._handles[message.worker]
        was_current = handle.current is message  # else the message is from before the client left
        was_silent = was_current and handle.answered()
        if was_current:
            handle.current = None
            if handle.sends_again(message, outcome):
                self._note(self._formats.news())
                self._send(handle)
                return
        if isinstance(outcome, Good):
            self._patience.took(message.worker, message.kind, outcome.seconds)
            self._evaluations.took(message.kind, outcome.seconds)
        if message.kind == "train":  # before anything of the reply is used
            outcome, notes = self._checks.judge(message, outcome)
            self._note(notes)
        if isinstance(outcome, Good) and message.wanted and message.records is not None:
            self._attendance.report(Replied(message.worker, message.kind, message.records))
        if message.kind == "evaluate":
            if isinstance(outcome, Good):
                self._heard(handle, outcome.value)
            self._note(self._evaluations.answered(message, outcome))
            self._evaluate()
        else:
            self._live.pop(message.number, None)
            self._trained(handle, message, outcome)
        if was_current and isinstance(outcome, ErrorReply) and outcome.offline:
            self._lose(handle)
            handle.doubtful = True
        elif was_silent:
            if isinstance(outcome, ErrorReply) and outcome.expired:
                self._failed(handle, "it did not answer")
            self._join()
        self._send(handle)

    def _trained(self, handle: WorkerHandle, message: ClientMessage, outcome: Outcome) -> None:
        job, worker = message.number, message.worker
        if isinstance(outcome, Good):
            update, carried, told = outcome.value
            handle.failures = handle.pauses = 0
            handle.proven = True
            self._heard(handle, told)
            if message.wanted:
                if self._engine.up is not None or self._allowance.active:
                    handle.undecided = job
                self._memory.take(worker, carried)
                self._told[job] = told, outcome.seconds
                self._note(self._checks.notes(message, told))
                self._attendance.report(Arrived(job, update, worker, message.examples, outcome.seconds, checked=True))
            return
        undecoded = self._engine.down is not None and not handle.proven
        report, why = failure(message, outcome, handle.title, undecoded=undecoded)
        if message.wanted and not (isinstance(outcome, ErrorReply) and outcome.offline):
            if isinstance(report, Lost):
                self._attendance.report(Note("unanswered", {"worker": worker, "job": job, "reason": why}, why))
            self._attendance.report(report)
            self._failed(handle, why)

    # ------------------------------------------------------------------------------------------ coming and going

    def _online(self) -> list[WorkerHandle]:
        retired = self._attendance.retired
        return [handle for handle in self._handles.values() if handle.online and handle.number not in retired]

    def _look_at(self, connected: ConnectedNodes) -> None:
        here = self._numbers.number(connected.nodes)
        for worker, node in here.items():
            handle = self._handles.get(worker)
            if handle is None:
                new = WorkerHandle(worker, node.node_id, self._formats, node.name, is_simulated(self._engine.grid))
                handle = self._handles[worker] = new
                self._note([handle.introduce(self._numbers.name(handle.number))])
            elif not handle.online and connected.began > handle.left_at:
                handle.online, handle.node = True, node.node_id
                if handle.doubtful:
                    self._failed(handle, "Flower reported it offline, but it is connected")
        for handle in self._handles.values():
            if handle.number not in here:
                self._lose(handle)
            handle.doubtful = handle.doubtful and connected.began <= handle.left_at
        if not self._attendance.opened:
            # Nodes connect one by one: begin once there are enough, and no more have come since the last list.
            if len(here) >= self._engine.needed and len(here) == self._seen:
                self._attendance.open()
            self._seen = len(here)
        if self._attendance.opened:
            self._presence.interval = SELDOM
            self._join()
            self._evaluate()

    def _join(self) -> None:
        here = (handle.number for handle in self._online() if not handle.out)
        self._attendance.came(*sorted(worker for worker in here if self._allowance.admits(worker)))

    def _lose(self, handle: WorkerHandle) -> None:
        """Record that the client is offline. Its current message is lost, even if the client comes back."""
        if not handle.online:
            return
        handle.online = False
        if handle.number in self._attendance.present:
            self._attendance.report(Died(handle.number, "is not connected any more"))
        self._leave(handle)
        handle.answered()
        handle.current = None
        handle.waiting.clear()
        self._note(self._evaluations.gone(handle.number))

    def _leave(self, handle: WorkerHandle) -> None:
        """Report that the client left, if it was present, and drop its jobs."""
        self._attendance.went(handle.number)
        handle.leave(time.monotonic())
        for job in [job for job, message in self._live.items() if message.worker == handle.number]:
            del self._live[job]

    def _failed(self, handle: WorkerHandle, why: str) -> None:
        """Count a failure. Leave out a client that keeps failing for a while, longer each time."""
        handle.failures += 1
        if handle.failures < self._rules.max_failures:
            return
        self._attendance.report(handle.pause(self._rules.pause, why))
        handle.failures = self._rules.max_failures - 1  # after the pause, one more failure is enough
        self._leave(handle)
        self._note(self._evaluations.gone(handle.number))
        online = self._online()
        if len(online) >= self._engine.needed and all(other.back_at is not None for other in online):
            fix = "fix the ClientApp and continue with resume=True"
            self._fatal = EngineError(f"every client fails; the last was {handle.title}: {why}; {fix}")

    def _give_up(self) -> None:
        """Leave out clients that take much longer than usual, so that a client that hangs does not hold its jobs.

        A client cannot be stopped. It keeps its current message, as it could not begin another one. It joins again once
        it answers, or once Flower gives up the message.
        """
        now = time.monotonic()
        for handle in self._handles.values():
            message = handle.current
            if message is None or handle.number in self._attendance.retired or handle.silent_since is not None:
                continue
            allowed = self._patience.allowed(handle.number, message.kind)
            if now - message.sent_at > allowed:
                self._attendance.report(handle.silence(message.what, allowed))
                self._leave(handle)
                self._note(self._evaluations.silent(handle.number, allowed))

    def _welcome_back(self, now: float) -> None:
        due = [handle for handle in self._handles.values() if handle.welcome_back(now)]
        if due and self._attendance.opened:
            self._join()

    # ------------------------------------------------------------------------------------------ helpers

    def _send(self, handle: WorkerHandle) -> None:
        if (message := handle.next()) is not None:
            self._sender.send(message)

    def _evaluate(self) -> None:
        if not self._attendance.opened:  # else only the clients that connect first would evaluate the first model
            return
        for handle in self._evaluations.begin(handle for handle in self._online() if not handle.out):
            self._send(handle)

    def _note(self, notes: list[Note]) -> None:
        if not notes:  # as after most replies
            return
        self.log.keep(notes)
        for note in notes:
            self._attendance.report(note)

    def _heard(self, handle: WorkerHandle, told: Told) -> None:
        renamed = [handle.introduce(self._numbers.name(handle.number))] if handle.rename(told.name) else []
        self._note([*renamed, *self._checks.heard(handle.number, told)])
