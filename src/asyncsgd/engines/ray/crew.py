"""The live workers of a Ray cluster, seen from the server: who is there, who is ready, who died and is replaced."""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from asyncsgd.core.errors import EngineError, UsageError
from asyncsgd.core.events import Assign, Command, Joined, Left, Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Died, Note, Report, WorkerPool
from asyncsgd.engines.ray.actor import Terms, Worker
from asyncsgd.engines.ray.cluster import Cluster
from asyncsgd.engines.ray.desk import Desk
from asyncsgd.engines.ray.engine import Ray
from asyncsgd.engines.ray.member import AHEAD, Call, Stage, WorkerHandle
from asyncsgd.engines.ray.post import Post
from asyncsgd.engines.ray.words import LOADING, explain, missing
from asyncsgd.engines.threads import limited
from asyncsgd.tasks.base import Task

LEAST_TIMEOUT, LONGER = 300.0, 20.0
DEATHS_IN_A_ROW = 5
LOOK_AROUND = 0.25  # seconds
SILENCE = 2.0
"""Seconds after which a worker without a job is asked whether it is still there."""


class RayPool(WorkerPool):
    """Actors that Ray places. Calls of their methods are jobs; what is waited for are the references to the answers."""

    def __init__(self, engine: Ray, task: Task, work: Work, x: Vector) -> None:
        self._engine = engine
        self._n, self.dtype = x.shape[0], x.dtype
        ahead = AHEAD if engine.transport is None else 1
        self._members = [WorkerHandle(number, group, ahead) for number, group in enumerate(engine.group)]
        self._late: list[WorkerHandle] = []  # ready again, but left in the batch before: they join with the next
        self._early: list[Report] = []  # of the time before the first poll
        self._check_at = 0.0
        self._alone_since = 0.0
        self._closed = False
        self._cluster: Cluster | None = None
        package = _pack(task, work)
        self._post = Post(self._n, x.dtype, halved=engine.transport is not None)
        self._desk = Desk(self._post, engine.transport)
        self._threads = ExitStack()
        # The server applies updates with one thread, so that workers on this machine have the other processors.
        self._threads.enter_context(limited(1))
        try:
            self._cluster = Cluster(engine, vectors=(2 * ahead * engine.workers + 2) * x.nbytes)
            ray = self._ray = self._cluster.ray
            self._desk.open(ray)
            self._post.open(ray, self._cluster.store)
            self._package = ray.put(package)
            self._actors = ray.remote(Worker)
            for member in self._members:
                self._hire(member)
            _warm(x.dtype)  # while they start
            self._await()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------------------ for the run

    def allocate(self, n: int) -> Vector:
        return self._post.allocate()

    def execute(self, command: Command) -> None:
        member = self._members[command.job.worker]
        if not isinstance(command, Assign):
            self._desk.cancel(member, command.job.id)
        elif member.present:  # else the server is about to hear that it left, and the job goes with it
            self._desk.assign(member, command)

    def poll(self, timeout: float) -> list[Report]:
        events, self._early = self._early, []
        if self._late:
            self._join(self._late, events)
            self._late = []
        self._desk.make_room()
        deadline = time.monotonic() + timeout
        wait = 0.0  # first of all, what has been said while nobody listened
        while True:
            for call, answer in self._desk.answers(wait):
                self._take(call, answer, events)
            now = time.monotonic()
            if now >= self._check_at:
                self._check_times(now, events)
            if events or now >= deadline:
                return events
            wait = max(0.0, min(deadline, self._check_at) - now)

    def retire(self, worker: int) -> None:
        member = self._members[worker]
        member.retired = True
        self._late = [other for other in self._late if other is not member]
        self._dismiss(member)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with ExitStack() as parts:  # each of them, whatever becomes of the others; the last one first
            parts.enter_context(self._threads)
            if self._cluster is not None:
                parts.callback(self._cluster.close)
            parts.callback(self._post.close)
            parts.callback(self._desk.close)
            for member in reversed(self._members):
                parts.callback(self._dismiss, member)
            self._package = None

    # ------------------------------------------------------------------------------------------ beginnings

    def _hire(self, member: WorkerHandle) -> None:
        assert self._cluster is not None
        group = member.group
        member.actor = self._actors.options(
            num_cpus=group.num_cpus,
            num_gpus=group.num_gpus,
            resources=dict(group.resources) or None,
            max_restarts=0,  # another actor takes the place of a dead one, so that nothing of it lives on
            max_task_retries=0,
            enable_task_events=False,
            runtime_env=self._cluster.environment,
        ).remote()
        member.compute = member.actor.compute
        self._desk.note(Call(member, "hello"), member.actor.hello.remote())

    def _load(self, member: WorkerHandle) -> None:
        number, engine = member.number, self._engine
        member.stage = Stage.LOADING
        for place in member.places:  # the memory must be long enough before the worker maps its places in it
            self._post.updates[place]
        terms = Terms(
            worker=number,
            n=self._n,
            dtype=self.dtype.name,
            threads=member.group.threads_each,
            transport=engine.transport,
            slowdown=engine.slowdown[number] if engine.slowdown else 1.0,
            seconds=engine.seconds[number] if engine.seconds else 0.0,
            path=tuple(os.path.abspath(entry) for entry in sys.path),
            memory=self._post.memory if engine.shared_memory else None,
        )
        self._desk.note(Call(member, "load"), member.actor.load.remote(self._package, terms))

    def _loaded(self, member: WorkerHandle, error: str, shares: bool, events: list[Report]) -> None:
        if error:
            self._died(member, f"{LOADING}:\n{error}", events)
            return
        member.stage, member.shares = Stage.READY, shares
        events.append(Note("placed", {"worker": member.number, "node": member.node, "shares_memory": shares}))
        if Left(member.number) in events:  # a job for the one that left must not be taken for one of this one
            self._late.append(member)
        else:
            self._join([member], events)

    def _join(self, members: list[WorkerHandle], events: list[Report]) -> None:
        for member in members:
            member.present = True
        events.append(Joined(member.number for member in members))

    def _await(self) -> None:
        """Begin with everybody there, in order, so that equal runs begin equally; or with as many as were asked for."""
        wanted = self._engine.at_least or len(self._members)
        began = self._alone_since = time.monotonic()
        while sum(member.present for member in self._members) < wanted:
            left = began + self._engine.start_timeout - time.monotonic()
            if left <= 0 or sum(not member.retired for member in self._members) < wanted:
                raise EngineError(self._missing(wanted, since=began))
            events: list[Report] = []
            self._check_times(time.monotonic(), events)
            for call, answer in self._desk.answers(min(left, LOOK_AROUND)):
                self._take(call, answer, events)
            self._early += [event for event in events if not isinstance(event, Joined)]
            for event in events:
                if isinstance(event, Died) and event.reason.startswith(LOADING):
                    raise UsageError(
                        f"worker {event.worker} {event.reason.strip()}\nInstall the modules of the task on every node, "
                        "or pass runtime_env={'working_dir': '.'}"
                    )
        self._late = [member for member in self._members if member.present]
        for member in self._members:
            member.present = False  # until the first poll says so

    # ------------------------------------------------------------------------------------------ life and death

    def _take(self, call: Call, answer: Any, events: list[Report]) -> None:
        member = call.member
        if isinstance(answer, self._ray.exceptions.RayError):
            self._died(member, explain(answer), events)
            return
        member.heard = member.since = time.monotonic()
        match call.method:
            case "hello":
                member.node = answer
                self._load(member)
            case "load":
                error, shares = answer
                self._loaded(member, error, shares, events)
            case "compute":
                member.deaths = 0
                report = self._desk.computed(call, *answer)
                if report is not None:
                    events.append(report)

    def _died(self, member: WorkerHandle, reason: str, events: list[Report]) -> None:
        was_present = member.present
        if member.stage is not Stage.WAITING:  # it was there until now, however long nobody has looked
            self._alone_since = time.monotonic()
        self._dismiss(member)
        if member in self._late:
            self._late.remove(member)
        member.deaths += 1
        member.reason = reason
        if member.deaths >= DEATHS_IN_A_ROW:
            reason += (
                f"; it has died {member.deaths} times in a row without finishing a job: the run goes on without it"
            )
            member.retired = True
        events.append(Died(member.number, reason))
        if was_present:
            events.append(Left(member.number))
        if all(other.retired for other in self._members):
            raise EngineError(f"no worker is left; the last one, worker {member.number}, {member.reason}")
        if member.deaths == 1:
            self._hire(member)
        else:  # perhaps its node is dying, and Ray does not know yet
            member.hire_at = time.monotonic() + 2.0 ** (member.deaths - 2)

    def _dismiss(self, member: WorkerHandle) -> None:
        """Its process ends, whatever it does."""
        actor = member.actor
        self._desk.drop(member)
        if actor is not None:
            self._ray.kill(actor)

    def _check_times(self, now: float, events: list[Report]) -> None:
        allowed = self._engine.job_timeout or max(LEAST_TIMEOUT, LONGER * self._desk.longest)
        for member in self._members:
            if member.retired or member.stage is Stage.WAITING:
                if member.actor is None and not member.retired and now >= member.hire_at:
                    self._hire(member)
                continue
            ready = member.stage is Stage.READY
            if ready and member.first < 0:
                if not member.calls and now - member.heard > SILENCE:
                    self._desk.note(Call(member, "ping"), member.actor.ping.remote())
                continue
            limit = allowed if ready else self._engine.start_timeout
            if now - member.since > limit and not self._desk.has_answered(member):
                what = f"its job {member.first}" if ready else "loading the task"
                self._died(member, f"was killed, because {what} took more than {limit:g} s", events)
        if self._late or any(member.stage is not Stage.WAITING for member in self._members):
            self._alone_since = now
        elif now - self._alone_since > self._engine.start_timeout:
            raise EngineError(self._missing(1, since=self._alone_since))
        self._check_at = now + min(LOOK_AROUND, allowed / 4)

    def _missing(self, wanted: int, since: float) -> str:
        assert self._cluster is not None
        return missing(self._members, wanted, time.monotonic() - since, self._cluster.describe())


def _pack(task: Task, work: Work) -> bytes:
    import cloudpickle

    try:
        package: bytes = cloudpickle.dumps((task, work))
    except Exception as error:
        raise UsageError(
            f"the task cannot be sent to other nodes ({type(error).__name__}: {error}); keep open files, locks and "
            "connections out of it, or open them when first used"
        ) from error
    return package


def _warm(dtype: Any) -> None:
    """Load the compiled update for vectors that cannot be written to, as Ray hands them out."""
    from asyncsgd.compiled.vectors import ready

    x = np.zeros(1, dtype)
    x.flags.writeable = False
    ready(dtype)(x, 0.0, x, np.zeros(1, dtype))
