"""The connected clients, seen from the server: who has which job, who failed, who is left out for a while."""

from __future__ import annotations

import math
import time
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

from asyncsgd.core.errors import EngineError
from asyncsgd.core.events import Arrived, Assign, Command, Lost
from asyncsgd.core.vectors import Vector
from asyncsgd.engines.base import Died, Failed, Note, Rejected, Report, WorkerPool
from asyncsgd.engines.lifecycle import Attendance
from asyncsgd.flower.arrays import Arrays
from asyncsgd.flower.client_evaluation import Evaluations, Measured, told
from asyncsgd.flower.client_handle import Patience, WorkerHandle, bias
from asyncsgd.flower.client_metrics import Means
from asyncsgd.flower.error_text import EXPIRED, OFFLINE, UNDELIVERED, meaning
from asyncsgd.flower.messages import Letters
from asyncsgd.flower.presence import SELDOM, Reminder, Roll, RollCall, Roster, is_simulated
from asyncsgd.flower.sender import Good, Letter, Outcome, Over, Post, Refused, Trouble, Unkept, Unwritten
from asyncsgd.flower.task import Memory

if TYPE_CHECKING:
    from asyncsgd.flower.engine import Flower

LAST = 60.0
"""Seconds that the end of a run waits for clients that evaluate, at most."""
CLOSING = 5.0
"""Seconds that threads in the middle of a call get to end."""


class FlowerPool(WorkerPool):
    """Clients of a Flower grid. Each is sent one message at a time; replies come in through one queue."""

    def __init__(self, engine: Flower, x: Vector) -> None:
        self._engine, self._rules = engine, engine.clients
        self.dtype = x.dtype
        self._inbox: SimpleQueue[Any] = SimpleQueue()
        self._post = Post(engine.grid, self._inbox)
        self._roster = Roster(engine.folder, simulated=is_simulated(engine.grid), resume=engine.resume)
        self._memory = Memory(engine, x)
        self._letters = Letters(engine, self._memory, x)
        self._evaluations = Evaluations(self._letters)
        self._patience = Patience(self._rules)
        self._members: dict[int, WorkerHandle] = {}
        self._live: dict[int, Letter] = {}  # job -> its letter
        # Only the polling thread touches it. The threads that wait for replies or look for nodes write to the inbox.
        self._attendance = Attendance()
        self._told = Means()  # since the last evaluation
        self._seen = -1  # nodes at the last look
        self._reminder = Reminder(engine.workers)
        self._fatal: EngineError | None = None
        self._closed = False
        self.history: list[dict[str, Any]] = []
        """What clients have reported, averaged, in order."""
        self._roll = RollCall(engine.grid, self._inbox)

    # ------------------------------------------------------------------------------------------ for the run

    def execute(self, command: Command) -> None:
        job = command.job
        member = self._members.get(job.worker)
        if isinstance(command, Assign):
            # If it is not present, the server is about to hear that it left, and the job goes with it.
            if member is not None and job.worker in self._attendance.present:
                letter = self._live[job.id] = self._letters.train(member, command)
                member.waiting.append(letter)
                self._send(member)
        elif member is not None and (given := self._live.pop(job.id, None)) is not None:
            member.drop(given)

    def poll(self, timeout: float) -> list[Report]:
        if self._fatal is not None:
            raise self._fatal
        now = time.monotonic()
        self._attendance.begin()
        self._welcome_back(now)
        present = bool(self._attendance.present)
        self._note(self._reminder.due(now, present=present, online=len(self._online())))
        self._memory.save(now)
        self._evaluate()
        self._drain(0.0 if self._attendance.pending else timeout)
        self._give_up()  # last: a server that was busy must not take its own time for a client's
        return self._attendance.take()

    def _drain(self, timeout: float) -> None:
        try:
            self._take(self._inbox.get(timeout=timeout))
            while True:
                self._take(self._inbox.get_nowait())
        except Empty:
            return

    def retire(self, worker: int) -> None:
        self._attendance.retire(worker)
        self._leave(self._members[worker])

    def finish(self) -> list[Note]:
        reports: list[Report] = []
        for letter in self._live.values():
            self._members[letter.worker].drop(letter)
        self._live.clear()
        self._drain(0.0)
        self._note(self._told_since())
        deadline = time.monotonic() + min(self._evaluations.patience, LAST)
        while self._evaluations.busy and self._online() and (left := deadline - time.monotonic()) > 0:
            try:
                reports += self.poll(min(left, SELDOM))
            except EngineError as error:
                self._attendance.report(Note("trouble", {"reason": str(error)}, str(error)))
                break
        self._note(self._evaluations.close())
        reports += self._attendance.take()
        return [report for report in (*reports, *bias(self._members.values())) if isinstance(report, Note)]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._roll.close(CLOSING)
        self._post.close(CLOSING)
        self._memory.save(math.inf)

    # ------------------------------------------------------------------------------------------ for the task

    @property
    def carried(self) -> Arrays:
        """The arrays that are not in the vector, as clients are sent them now."""
        return self._memory.carried

    @property
    def evaluates(self) -> bool:
        """Whether clients do so too."""
        return self._engine.evaluate_config is not None

    def stop(self, why: str) -> None:
        """End the run as if Flower had: it is saved, and the next poll raises. From any thread, and from a signal."""
        self._inbox.put((None, Over(why)))

    def measured(self, iteration: int, record: Any) -> None:
        """The server has evaluated a model, in any thread: let the clients do so too, if that was asked for."""
        self._inbox.put(Measured(iteration, record))

    # ------------------------------------------------------------------------------------------ what has happened

    def _take(self, item: Any) -> None:
        match item:
            case Roll():
                self._look_at(item)
            case Note():
                self._note([item])
            case Measured(iteration=iteration, record=record):
                self._note(self._told_since())
                if self.evaluates:
                    self._evaluations.ask(iteration, record)
                    self._evaluate()
            case (_, Over(reason=reason)):
                fix = "start it again, with resume=True to go on from the checkpoint"
                self._fatal = EngineError(f"Flower's run has ended ({reason}); {fix}")
            case (_, Unkept(reason=reason)):
                fix = "make room and go on with resume=True"
                self._fatal = EngineError(f"an update could not be kept on disk ({reason}); {fix}")
            case (letter, Unwritten(reason=reason)):
                self._fatal = EngineError(f"no message to client {letter.worker} could be made ({reason}); mend it")
            case (letter, outcome):
                self._answered(letter, outcome)

    def _answered(self, letter: Letter, outcome: Outcome) -> None:
        member = self._members[letter.worker]
        was_current = member.current is letter  # else of a time before it left
        was_silent = was_current and member.heard()
        if was_current:
            member.current = None
        if isinstance(outcome, Good):
            self._patience.took(letter.worker, letter.kind, outcome.seconds)
        if letter.kind == "evaluate":
            self._note(self._evaluations.answered(letter, outcome))
            self._evaluate()
        else:
            self._live.pop(letter.number, None)
            self._trained(member, letter, outcome)
        if was_current and isinstance(outcome, Trouble) and outcome.code == OFFLINE:
            self._lose(member)
            member.doubtful = True
        elif was_silent:
            if isinstance(outcome, Trouble) and outcome.code in EXPIRED:
                self._failed(member, "it did not answer")
            self._join()
        self._send(member)

    def _trained(self, member: WorkerHandle, letter: Letter, outcome: Outcome) -> None:
        job, worker = letter.number, letter.worker
        match outcome:
            case Good(value=(update, carried, said), seconds=seconds):
                self._evaluations.took(seconds)
                member.failures = member.pauses = 0
                if letter.wanted:
                    self._memory.take(worker, carried)
                    if said is not None:
                        self._told.add(worker, said)
                    self._attendance.report(Arrived(job, update, worker, seconds=seconds, checked=True))
                return
            case Refused(reason=why):
                report: Report = Rejected(job, worker, why)
            case Trouble(code=code, reason=why) if code in EXPIRED:
                late = f"client {worker} did not answer job {job} in {self._rules.timeout:g} s"
                why = f"job {job} did not reach client {worker}: {why}" if code == UNDELIVERED else late
                report = Lost(job)
            case Trouble(code=code, reason=why):
                report = Failed(job, worker, f"{meaning(code)}: {why}")
        if letter.wanted and not (isinstance(outcome, Trouble) and outcome.code == OFFLINE):
            if isinstance(report, Lost):
                self._attendance.report(Note("unanswered", {"worker": worker, "job": job, "reason": why}, why))
            self._attendance.report(report)
            self._failed(member, why)

    # ------------------------------------------------------------------------------------------ coming and going

    def _online(self) -> list[WorkerHandle]:
        retired = self._attendance.retired
        return [member for member in self._members.values() if member.online and member.number not in retired]

    def _look_at(self, roll: Roll) -> None:
        here = self._roster.number(roll.nodes)
        for worker, node in here.items():
            member = self._members.get(worker)
            if member is None:
                self._members[worker] = WorkerHandle(worker, node.node_id)
                self._attendance.report(Note("client", {"worker": worker, "node": self._roster.name(worker)}))
            elif not member.online and roll.began > member.left_at:
                member.online, member.node = True, node.node_id
                if member.doubtful:
                    self._failed(member, "it was said to be offline, and is connected")
        for member in self._members.values():
            if member.number not in here:
                self._lose(member)
            member.doubtful = member.doubtful and roll.began <= member.left_at
        if not self._attendance.opened:
            # Nodes come one by one: the run begins once there are enough, and as many as a moment ago.
            if len(here) >= self._engine.workers and len(here) == self._seen:
                self._attendance.open()
            self._seen = len(here)
        if self._attendance.opened:
            self._roll.interval = SELDOM
            self._join()
            self._evaluate()

    def _join(self) -> None:
        self._attendance.came(*sorted(member.number for member in self._online() if not member.out))

    def _lose(self, member: WorkerHandle) -> None:
        """It is offline. Whatever it was doing is lost, should it come back."""
        if not member.online:
            return
        member.online = False
        if member.number in self._attendance.present:
            self._attendance.report(Died(member.number, "is not connected any more"))
        self._leave(member)
        member.heard()
        member.current = None
        member.waiting.clear()
        self._note(self._evaluations.gone(member.number))

    def _leave(self, member: WorkerHandle) -> None:
        """Report that it left, if it was present. Its jobs are over."""
        self._attendance.went(member.number)
        member.leave(time.monotonic())
        for job in [job for job, letter in self._live.items() if letter.worker == member.number]:
            del self._live[job]

    def _failed(self, member: WorkerHandle, why: str) -> None:
        """Who fails again and again is left out for a while, longer each time."""
        member.failures += 1
        if member.failures < self._rules.max_failures:
            return
        self._attendance.report(member.pause(self._rules.pause, why))
        member.failures = self._rules.max_failures - 1  # it gets one chance
        self._leave(member)
        self._note(self._evaluations.gone(member.number))
        online = self._online()
        if len(online) >= self._engine.workers and all(other.back_at is not None for other in online):
            fix = "mend the ClientApp and go on with resume=True"
            self._fatal = EngineError(f"every client fails, at last client {member.number}: {why}; {fix}")

    def _give_up(self) -> None:
        """Leave out who takes far longer than usual, so that a client that hangs does not hold the jobs behind it.

        A client cannot be stopped. It keeps its message, as it could not begin another; once it answers, or Flower
        gives the message up, it joins again.
        """
        now = time.monotonic()
        for member in self._members.values():
            letter = member.current
            if letter is None or member.number in self._attendance.retired or member.silent_since is not None:
                continue
            allowed = self._patience.allowed(member.number, letter.kind)
            if now - letter.sent_at <= allowed:
                continue
            what = f"job {letter.number}" if letter.kind == "train" else f"the evaluation of model {letter.number}"
            self._attendance.report(member.silence(what, allowed))
            self._leave(member)
            self._note(self._evaluations.silent(member.number, allowed))

    def _welcome_back(self, now: float) -> None:
        due = [member for member in self._members.values() if member.back_at is not None and member.back_at <= now]
        for member in due:
            member.back_at = None
        if due and self._attendance.opened:
            self._join()

    # ------------------------------------------------------------------------------------------ small things

    def _send(self, member: WorkerHandle) -> None:
        if (letter := member.next()) is not None:
            self._post.send(letter)

    def _evaluate(self) -> None:
        if not self._attendance.opened:  # else the first model would be evaluated by those who happen to be there first
            return
        for member in self._evaluations.begin(member for member in self._online() if not member.out):
            self._send(member)

    def _note(self, notes: list[Note]) -> None:
        self.history += [dict(note.details) for note in notes if note.event == "client_metrics"]
        for note in notes:
            self._attendance.report(note)

    def _told_since(self) -> list[Note]:
        means, self._told = self._told, Means()
        return [told(means)] if means.replies else []
