"""The life of a worker, without the operating system: no clock, process, thread or Ray.

An engine reports to this module what happened to its workers (started, ready, answered, died) and passes the time. The
module decides what the server learns and in which order, which jobs are still wanted, and which workers to start, ask,
stop or kill. Every method returns at once. Only the thread that polls the engine may call them.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeAlias

from asyncsgd.core.errors import EngineError
from asyncsgd.core.events import Assign, Cancel
from asyncsgd.engines.attendance import Attendance as Attendance
from asyncsgd.engines.base import Died


class Stage(Enum):
    """The stage of a worker's process."""

    ABSENT = "waits to be started"
    WAITING = "waits for room on a node"
    LOADING = "loads the task"
    READY = "computes"

    @property
    def plural(self) -> str:
        """The text for several workers.

        >>> Stage.LOADING.plural
        'load the task'
        """
        verb, _, rest = self.value.partition(" ")
        return f"{verb.removesuffix('s')} {rest}".strip()


@dataclass(frozen=True)
class Rules:
    """Time limits, and what happens after a death."""

    job_timeout: float | None = None
    """Seconds that a job may take. None: `longer` times the longest job that was used, at least `least_timeout`; until
    one was used, `least_timeout` for each of its mini-batches."""
    start_timeout: float = 120.0
    """Seconds that loading the task may take."""
    ahead: int = 2
    """Jobs that a worker may hold at once: it computes one while the next is on its way. 1: workers keep state, and
    get a job only when the server's verdict on their last update is known."""
    deaths_in_a_row: int = 5
    """The lifecycle gives up a worker that dies this often without an answer in between."""
    continue_without: bool = False
    """Whether the run continues without a worker that was given up. If not, the run ends."""
    backoff: bool = False
    """Whether the second death in a row, and every later one, delays the replacement by 1, 2, 4, ... seconds."""
    silence: float = math.inf
    """Seconds after which the engine asks a worker without a job whether it is still alive."""
    least_timeout: float = 300.0
    longer: float = 20.0
    steps: int = 1
    """Mini-batches of a job."""


class Worker:
    """The lifecycle's state of one worker. An engine may read every field, and must not change any."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.stage = Stage.ABSENT
        self.waiting: deque[Assign] = deque()  # not sent yet, in order
        self.sent: dict[int, Any] = {}  # job -> what the engine keeps for it; the first one is being computed
        self.since = 0.0  # when the job being computed became the first in line, or when the stage began
        self.heard = 0.0  # when the worker last answered anything
        self.asked = False  # whether an `Ask` has not been answered yet
        self.deaths = 0  # in a row, without an answer to a job in between
        self.reason = ""  # of its last death
        self.condemned = ""  # why the engine is killing it; empty if it is not
        self.start_at = 0.0  # no replacement starts before this time
        self.used = False  # the verdict that its next job carries: whether the server applied its last update

    @property
    def first(self) -> int:
        """The job being computed; -1 if there is none."""
        return next(iter(self.sent), -1)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process for this worker."""

    worker: int


@dataclass(frozen=True, slots=True)
class Kill:
    """Kill this worker, unless the engine finds an answer that it has not read yet. Pass ``reason`` to `condemn`."""

    worker: int
    reason: str


@dataclass(frozen=True, slots=True)
class Ask:
    """Ask this worker, which has no job, whether it is still alive."""

    worker: int


@dataclass(frozen=True, slots=True)
class Stop:
    """Signal this worker again that the job it computes was cancelled: it may have missed the first signal."""

    worker: int
    job: int


Action: TypeAlias = Start | Kill | Ask | Stop


class Lifecycle(Attendance):
    """Jobs, deaths and time-outs of workers that the engine itself starts.

    The engine pulls jobs with `peek` and `sent`, because only the engine knows whether it has room for one. Times are
    seconds of any clock that never goes back.

    The order within a poll matters. First call `begin`, then pass in every answer that can be read, then call `tick`:
    the server may have been busy for longer than a job may take, and a worker that answered meanwhile is in time.
    Likewise, pass in the last answers of a dead worker before its death.
    """

    def __init__(self, workers: int, rules: Rules, now: float = 0.0) -> None:
        super().__init__()
        self.rules = rules
        self.workers = [Worker(number) for number in range(workers)]
        self.longest = 0.0
        """Seconds of the longest job whose update was reported."""
        self.alone_since = now
        """The last time at which some worker was ready or was loading the task."""
        self._wanted: dict[int, Worker] = {}  # job -> its worker, for exactly the jobs that the server waits for
        self._undecided: dict[int, int] = {}  # worker -> job of its reported update without a verdict, if ahead is 1

    def begin(self) -> None:
        """Begin a poll: the late workers join, and the server has judged every update of the last list."""
        super().begin()
        self._undecided.clear()

    # ------------------------------------------------------------------------------------------ from the server

    def assign(self, command: Assign) -> bool:
        """Queue a job. Return False if its worker left: the server is about to read that, and drops the job itself."""
        number = command.job.worker
        if number not in self.present:
            return False
        worker = self.workers[number]
        self._wanted[command.job.id] = worker
        worker.waiting.append(command)
        return True

    def cancel(self, command: Cancel) -> int | None:
        """Forget a job. Return its worker if it was sent, as that worker may be stopped."""
        job = command.job.id
        worker = self._wanted.pop(job, None)
        if worker is None:
            return None
        if job in worker.sent:
            return worker.number
        worker.waiting = deque(assign for assign in worker.waiting if assign.job.id != job)
        return None

    def wants(self, job: int) -> bool:
        """Whether the server waits for this job."""
        return job in self._wanted

    def dismiss(self, worker: int) -> None:
        """Retire a worker. Its process may still answer and die, which has no effect."""
        self.retire(worker)
        self._disown(self.workers[worker])

    # ------------------------------------------------------------------------------------------ to the workers

    def peek(self, worker: int) -> Assign | None:
        """Return the job that the worker may be sent now, if there is one."""
        it = self.workers[worker]
        if it.waiting and it.stage is Stage.READY and len(it.sent) < self.rules.ahead and not it.condemned:
            return None if worker in self._undecided else it.waiting[0]
        return None

    def sent(self, worker: int, kept: Any, now: float) -> bool:
        """Record that the job of `peek` was sent. `answered` returns ``kept`` with the answer.

        Returns the verdict on the worker's last update, which has to travel with the job if ``ahead`` is 1.
        """
        it = self.workers[worker]
        if not it.sent:
            it.since = now  # the job is first in line, even if an `Ask` has not been answered yet
        it.sent[it.waiting.popleft().job.id] = kept
        used, it.used = it.used, False
        return used

    # ------------------------------------------------------------------------------------------ from the workers

    def started(self, worker: int, now: float, stage: Stage = Stage.LOADING) -> None:
        """Record that the engine starts a process for this worker. Call it again when the next stage begins."""
        it = self.workers[worker]
        it.stage, it.since, it.heard = stage, now, now

    def ready(self, worker: int, now: float) -> None:
        """Record that the worker has loaded the task.

        This does not reset its deaths in a row, as a task may kill its worker at the first job every time.
        """
        it = self.workers[worker]
        it.stage, it.since, it.heard = Stage.READY, now, now
        self.came(worker)

    def heard(self, worker: int, now: float) -> None:
        """Record an answer that does not belong to a job."""
        it = self.workers[worker]
        it.heard = it.since = now
        it.asked = False

    def answered(self, worker: int, job: int, now: float, seconds: float | None = None) -> tuple[Any, bool]:
        """Record that a job is finished. Return what `sent` kept, and whether the server still waits for the job.

        Args:
            worker: The worker's number.
            job: The job, which is the oldest of those that were sent.
            now: The current time.
            seconds: How long the worker computed; None if the job failed, was stopped or was rejected.
        """
        it = self.workers[worker]
        kept = it.sent.pop(job)
        it.heard = it.since = now  # the next job becomes the first in line
        it.asked = False
        it.deaths = 0
        wanted = self._wanted.pop(job, None) is not None
        if wanted and seconds is not None:
            if seconds > self.longest:
                self.longest = seconds
            if self.rules.ahead == 1:
                self._undecided[worker] = job
        return kept, wanted

    def judged(self, worker: int, job: int, applied: bool) -> None:
        """Record the verdict on a reported update, if ``ahead`` is 1. Until then its worker gets no job.

        An update without a verdict until the next poll was not applied. A verdict on another update than the last one
        of this process has no effect: the worker has died since, and its replacement started afresh.
        """
        if self._undecided.get(worker) == job:
            del self._undecided[worker]
            self.workers[worker].used = applied

    def condemn(self, worker: int, reason: str) -> None:
        """Record why the engine kills this worker: the report of its death gives this reason, not the exit status."""
        self.workers[worker].condemned = reason

    def died(self, worker: int, reason: str, now: float) -> bool:
        """Record that the worker's process died, and drop its jobs. Return whether to start a replacement at once.

        If not, the worker is retired, or `tick` asks for a start later. Raises `EngineError` if the run has to end.
        """
        it = self.workers[worker]
        if it.stage not in (Stage.ABSENT, Stage.WAITING):
            self.alone_since = now  # the process counts as alive until now, even if the server was busy for long
        self._disown(it)
        it.sent.clear()
        self._undecided.pop(worker, None)
        it.stage, it.asked, it.used = Stage.ABSENT, False, False
        it.reason, it.condemned = it.condemned or reason, ""
        if worker in self.retired:
            return False
        it.deaths += 1
        given_up = it.deaths >= self.rules.deaths_in_a_row
        often = f"died {it.deaths} times in a row without finishing a job"
        suffix = f"; it has {often}: the run continues without it" if given_up and self.rules.continue_without else ""
        self.report(Died(worker, it.reason + suffix))
        self.went(worker)
        if given_up:
            if not self.rules.continue_without:
                fix = "if memory ran out, use fewer workers or a smaller batch"
                raise EngineError(f"worker {worker} {often}: at last it {it.reason}; {fix}")
            self.retire(worker)
            if len(self.retired) == len(self.workers):
                raise EngineError(f"no worker is left; the last one, worker {worker}, {it.reason}")
            return False
        pause = 2.0 ** (it.deaths - 2) if self.rules.backoff and it.deaths > 1 else 0.0
        it.start_at = now + pause
        return pause == 0.0

    # ------------------------------------------------------------------------------------------ the clock

    @property
    def allowed(self) -> float:
        """Seconds that a job may take."""
        rules = self.rules
        if rules.job_timeout is not None:
            return rules.job_timeout
        if not self.longest:  # 500 local steps may well take longer than five minutes
            return rules.least_timeout * rules.steps
        return max(rules.least_timeout, rules.longer * self.longest)

    def tick(self, now: float) -> list[Action]:
        """Return what to do now, worker by worker. `Kill` is returned again until the worker is condemned or dead."""
        actions: list[Action] = []
        for it in self.workers:
            if it.stage not in (Stage.ABSENT, Stage.WAITING):
                self.alone_since = now
            if it.number in self.retired or it.condemned:
                continue
            match it.stage:
                case Stage.ABSENT if now >= it.start_at:
                    actions.append(Start(it.number))
                case Stage.LOADING if now - it.since > self.rules.start_timeout:
                    actions.append(Kill(it.number, _took("its start", self.rules.start_timeout)))
                case Stage.READY if it.sent:
                    if now - it.since > self.allowed:
                        actions.append(Kill(it.number, _took(f"its job {it.first}", self.allowed)))
                    elif it.first not in self._wanted:
                        actions.append(Stop(it.number, it.first))
                case Stage.READY if not it.asked and now - it.heard > self.rules.silence:
                    it.asked = True
                    actions.append(Ask(it.number))
        return actions

    def _disown(self, worker: Worker) -> None:
        """Drop every job of this worker. The worker may still answer jobs that were sent."""
        for job in (*worker.sent, *(assign.job.id for assign in worker.waiting)):
            self._wanted.pop(job, None)
        worker.waiting.clear()


def _took(what: str, seconds: float) -> str:
    return f"was killed, because {what} took more than {seconds:g} s"
