"""A simulated engine around a `Lifecycle`, a real server, and a reference model computed from a log of events."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from asyncsgd import methods
from asyncsgd.core.dispatch import Uniform
from asyncsgd.core.errors import EndedJob, EngineError
from asyncsgd.core.events import Arrived, Assign, Cancel, Command, Left, Lost, Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.server import Server
from asyncsgd.engines.base import Died, Failed, Rejected, Report
from asyncsgd.engines.lifecycle import Action, Ask, Kill, Lifecycle, Rules, Stage, Start, Stop
from asyncsgd.testing.engine_contract import Ledger


class RestartingUniform(Uniform):
    """Cancels a stale job of a worker while younger jobs of the same worker stay, which no recipe does."""

    @property
    def restart_after(self) -> int | None:
        return 2


METHODS: dict[str, Callable[[int], Method]] = {
    "async_sgd": lambda n: methods.async_sgd(0.01),
    "federated": lambda n: methods.federated_async_sgd(0.01, concurrency=3 * n),
    "fedavg": lambda n: methods.fedavg(0.01, clients=n, ask=3 * n),
    "ringmaster": lambda n: methods.ringmaster(0.01, limit=2, stops=True),
    "minibatch": lambda n: methods.minibatch_sgd(0.01),
    "dropping": lambda n: methods.delay_adaptive(0.01, rule="drop", threshold=2).using(dispatch=Uniform(3 * n)),
    "restarting": lambda n: methods.async_sgd(0.01).using(dispatch=RestartingUniform(3 * n)),
}


@dataclass(frozen=True)
class Entry:
    what: str
    time: float
    job: int = -1
    words: str = ""
    wanted: bool = False
    seconds: float | None = None


class Twin:
    """The state of one worker, computed each time from the log of its events."""

    def __init__(self, rules: Rules) -> None:
        self.rules = rules
        self.log: list[Entry] = []

    def add(self, what: str, time: float, **details: Any) -> None:
        self.log.append(Entry(what, time, **details))

    def since(self, *marks: str) -> list[Entry]:
        """What has happened after the last of these."""
        places = [place for place, entry in enumerate(self.log) if entry.what in marks]
        return self.log[places[-1] + 1 :] if places else self.log

    def last(self, *marks: str) -> float:
        return next((entry.time for entry in reversed(self.log) if entry.what in marks), 0.0)

    @property
    def stage(self) -> Stage:
        stages = {"started": Stage.LOADING, "ready": Stage.READY, "died": Stage.ABSENT}
        return next((stages[entry.what] for entry in reversed(self.log) if entry.what in stages), Stage.ABSENT)

    @property
    def retired(self) -> bool:
        return any(entry.what in ("retired", "given up") for entry in self.log)

    @property
    def deaths(self) -> int:
        return sum(entry.what == "died" for entry in self.since("answered"))

    @property
    def jobs(self) -> list[int]:
        """At its process, in order."""
        life = self.since("died")
        over = {entry.job for entry in life if entry.what == "answered"}
        return [entry.job for entry in life if entry.what == "sent" and entry.job not in over]

    @property
    def condemned(self) -> str:
        return next((entry.words for entry in self.since("died") if entry.what == "condemned"), "")

    @property
    def start_at(self) -> float:
        pause = 2.0 ** (self.deaths - 2) if self.rules.backoff and self.deaths > 1 else 0.0
        return self.last("died") + pause

    def due(self, number: int, now: float, allowed: float, wanted: set[int]) -> list[Action]:
        if self.retired or self.condemned:
            return []
        if self.stage is Stage.ABSENT:
            return [Start(number)] if now >= self.start_at else []
        if self.stage is Stage.LOADING:
            limit = self.rules.start_timeout
            why = f"was killed, because its start took more than {limit:g} s"
            return [Kill(number, why)] if now - self.last("started") > limit else []
        if self.jobs:
            if now - self.last("ready", "answered", "heard", "first in line") > allowed:
                return [Kill(number, f"was killed, because its job {self.jobs[0]} took more than {allowed:g} s")]
            return [] if self.jobs[0] in wanted else [Stop(number, self.jobs[0])]
        waits = any(entry.what == "asked" for entry in self.since("ready", "answered", "heard"))
        silent = now - self.last("ready", "answered", "heard") > self.rules.silence
        return [Ask(number)] if silent and not waits else []


class Process:
    """A worker's process that keeps state, as `asyncsgd.core.worker.WorkerState` does. Its state is a list of jobs.

    A job leaves its state for the verdict however it ended, so that a wrong verdict shows.
    """

    def __init__(self) -> None:
        self.state: list[int] = []
        self.pending: int | None = None

    def begin(self, used: bool) -> None:
        if used:
            assert self.pending is not None, "state: a verdict, but on no update of this process"
            self.state.append(self.pending)
        self.pending = None


class World:
    def __init__(self, kind: type[Lifecycle], rules: Rules, workers: int, method: str, seed: int) -> None:
        self.rules, self.workers = rules, range(workers)
        self.life = kind(workers, rules)
        x = np.zeros(2)
        self.ledger = Ledger(x)
        self.server = Server(x, METHODS[method](workers), seed)
        self.twins = [Twin(rules) for _ in self.workers]
        self.now = 0.0
        self.wanted: set[int] = set()  # jobs that were taken and are not over
        self.reasons: list[tuple[int, str]] = []  # of deaths that the server has not heard of
        self.ended = False
        self.processes = [Process() for _ in self.workers]
        self.applied: list[list[int]] = [[] for _ in self.workers]  # of each worker since it joined, in order
        self.unjudged: dict[int, int] = {}  # worker -> job whose update is in the list that the server reads next

    # ------------------------------------------------------------------------------------------ what may happen

    def in_stage(self, stage: Stage) -> list[int]:
        return [number for number in self.workers if self.twins[number].stage is stage]

    def computing(self) -> list[int]:
        return [number for number in self.in_stage(Stage.READY) if self.twins[number].jobs]

    def start(self, worker: int, *, instantly: bool) -> None:
        self.twins[worker].add("started", self.now)
        self.life.started(worker, self.now)
        if instantly:
            self.ready(worker)

    def ready(self, worker: int) -> None:
        self.twins[worker].add("ready", self.now)
        self.life.ready(worker, self.now)
        self.send(worker)

    def heard(self, worker: int) -> None:
        self.twins[worker].add("heard", self.now)
        self.life.heard(worker, self.now)

    def send(self, worker: int) -> None:
        twin = self.twins[worker]
        while (assign := self.life.peek(worker)) is not None:
            assert twin.stage is Stage.READY, "sending: a job is for a worker that is not ready"
            assert not twin.condemned, "sending: a job is for a worker that is being killed"
            assert len(twin.jobs) < self.rules.ahead, "sending: too many jobs at once"
            assert assign.job.worker == worker, "sending: the job of another worker"
            if not twin.jobs:
                twin.add("first in line", self.now)
            twin.add("sent", self.now, job=assign.job.id)
            used = self.life.sent(worker, ("place", assign.job.id), self.now)
            if self.rules.ahead == 1:
                assert worker not in self.unjudged, "sending: the verdict on the last update is not known"
                self.processes[worker].begin(used)
                assert self.processes[worker].state == self.applied[worker], "state: other jobs than those applied"

    def finish(self, worker: int, how: str, seconds: float) -> None:
        twin = self.twins[worker]
        job = twin.jobs[0]
        wanted = job in self.wanted
        self.wanted.discard(job)
        took = seconds if how == "done" else None
        self.processes[worker].pending = job
        if wanted and how == "done":
            self.unjudged[worker] = job
        twin.add("answered", self.now, job=job, wanted=wanted, seconds=took)
        kept, still = self.life.answered(worker, job, self.now, took)
        assert (kept, still) == (("place", job), wanted), "answer: whether the job is wanted"
        if wanted:
            reports: dict[str, Report] = {
                "done": Arrived(job, np.ones(2), worker, checked=True),
                "rejected": Rejected(job, worker, "nan"),
                "failed": Failed(job, worker, "Traceback"),
                "stopped": Lost(job),
            }
            self.life.report(reports[how])
        self.send(worker)

    def die(self, worker: int) -> None:
        twin = self.twins[worker]
        silent = twin.retired
        reason = twin.condemned or "was killed by SIGSEGV"
        self.forget(worker)
        self.processes[worker] = Process()
        self.unjudged.pop(worker, None)
        twin.add("died", self.now)
        given_up = not silent and twin.deaths >= self.rules.deaths_in_a_row
        if given_up:
            twin.add("given up", self.now)
        if given_up and (not self.rules.continue_without or all(other.retired for other in self.twins)):
            with pytest.raises(EngineError, match=rf"worker {worker}"):
                self.life.died(worker, "was killed by SIGSEGV", self.now)
            self.ended = True
            return
        at_once = self.life.died(worker, "was killed by SIGSEGV", self.now)
        assert at_once == (not twin.retired and twin.start_at == self.now), "death: whether to replace it at once"
        if not silent:
            self.reasons.append((worker, reason))

    def retire(self, worker: int) -> None:
        self.twins[worker].add("retired", self.now)
        self.forget(worker)
        self.life.dismiss(worker)
        self.ledger.retire(worker)
        if worker in self.server.workers:
            self.handle(Left(worker))

    def forget(self, worker: int) -> None:
        """The server waits for none of its jobs any more."""
        self.wanted -= {job for job in self.wanted if self.ledger.worker[job] == worker}

    # ------------------------------------------------------------------------------------------ lists and the clock

    def tick(self) -> list[Action]:
        used = [
            entry.seconds for twin in self.twins for entry in twin.log if entry.wanted and entry.seconds is not None
        ]
        allowed = self.rules.job_timeout or max(300.0, 20.0 * max(used, default=0.0))
        expected = [
            action
            for number, twin in enumerate(self.twins)
            for action in twin.due(number, self.now, allowed, self.wanted)
        ]
        actions = self.life.tick(self.now)
        assert actions == expected, f"clock: {actions} instead of {expected}"
        for action in actions:
            if isinstance(action, Ask):
                self.twins[action.worker].add("asked", self.now)
        return actions

    def kill(self, action: Kill) -> None:
        self.twins[action.worker].add("condemned", self.now, words=action.reason)
        self.life.condemn(action.worker, action.reason)

    def deliver(self, retire: int | None = None, *, first: bool = False) -> None:
        """The server reads the list, and the next one begins. A worker may be retired before the list or after it."""
        reports = self.life.take()
        self.ledger.reported(reports)
        if retire is not None and first:
            self.retire(retire)
        for report in reports:
            self.hand_over(report)
        if retire is not None and not first:
            self.retire(retire)
        assert set(self.server.workers) == self.life.present, "present: the server believes something else"
        in_flight = {job.id for job in self.server.in_flight}
        assert in_flight == self.wanted, "jobs: the server waits for others"
        self.unjudged.clear()
        self.life.begin()
        for worker in self.workers:
            self.send(worker)

    def hand_over(self, report: Report) -> None:
        match report:
            case Died(worker=worker, reason=reason):
                expected, why = self.reasons.pop(0)
                assert worker == expected, "death: of another worker"
                assert reason.startswith(why), "death: another reason"
            case Lost(job=job) | Rejected(job=job) | Failed(job=job):
                if self.server.outcome(job) is Outcome.IN_FLIGHT:
                    self.handle(Lost(job))
            case Left(worker=worker) if worker not in self.server.workers:
                pass
            case _:
                self.handle(report)

    def handle(self, event: Any) -> None:
        try:
            reply = self.server.handle(event)
        except EndedJob:  # a report before it in the list has cancelled the job
            return
        if isinstance(event, Left):
            self.applied[event.worker].clear()
        if isinstance(event, Arrived):
            self.judge(event, reply.ended[0].outcome is Outcome.APPLIED)
        for command in reply.commands:
            self.execute(command)

    def judge(self, report: Arrived, applied: bool) -> None:
        worker = self.ledger.worker[report.job]
        if applied:
            self.applied[worker].append(report.job)
        if self.unjudged.get(worker) == report.job:  # else its process has died since
            del self.unjudged[worker]
        self.life.judged(worker, report.job, applied)
        self.send(worker)

    def execute(self, command: Command) -> None:
        self.ledger.executed(command)
        job = command.job
        twin = self.twins[job.worker]
        if isinstance(command, Assign):
            if self.life.assign(command):
                self.wanted.add(job.id)
            self.send(job.worker)
        else:
            assert isinstance(command, Cancel)
            twin.add("cancelled", self.now, job=job.id)
            computing = job.id in self.wanted and job.id in twin.jobs
            self.wanted.discard(job.id)
            assert self.life.cancel(command) == (job.worker if computing else None), "cancel: who is to be stopped"

    # ------------------------------------------------------------------------------------------ what always holds

    def check(self) -> None:
        life = self.life
        for worker, twin in zip(life.workers, self.twins, strict=True):
            number = worker.number
            assert worker.stage is twin.stage, "stage"
            assert (number in life.retired) == twin.retired, "retired"
            if number in life.present:
                assert worker.stage is Stage.READY, "present: it is not ready"
            if worker.stage is Stage.READY and number not in life.retired and number not in life.late:
                assert number in life.present, "ready: neither present nor late"
            assert list(worker.sent) == twin.jobs, "jobs: others were sent"
            assert not twin.retired or not worker.waiting, "jobs: some wait for a retired worker"
            for assign in worker.waiting:
                assert assign.job.id in self.wanted, "jobs: one waits that is not wanted"
            if not twin.retired:
                assert worker.deaths == twin.deaths, "deaths: counted otherwise"
        for job in self.wanted:
            assert life.wants(job), "jobs: one was forgotten"
            worker = life.workers[self.ledger.worker[job]]
            queued = job in worker.sent or any(assign.job.id == job for assign in worker.waiting)
            assert queued, "jobs: one was forgotten"
