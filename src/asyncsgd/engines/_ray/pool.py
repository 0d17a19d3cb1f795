"""The live workers of a Ray cluster, seen from the server: actors and calls of their methods.

`Lifecycle` decides what becomes of a worker. A worker is one actor at a time. Ray never restarts an actor here: another
one takes its number, so that nothing of a dead process lives on. An actor passes through three kinds of calls, each
made when the one before is answered: ``hello`` (Ray has found room for it, which may take any time), ``load`` (it
unpacks the task, within ``start_timeout``), then ``compute`` for each job.

Only the polling thread touches actors and references. On the server's own machine a worker writes its update into
shared memory, and into no other place than the one that came with the call. A process that was killed may live on for
a moment, and write there: hence its replacement has other places (`WorkerHandle.places`).
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from typing import Any

import numpy as np

from asyncsgd.core.errors import EngineError, UsageError
from asyncsgd.core.events import Assign, Command
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines._ray.call_queue import Desk
from asyncsgd.engines._ray.cluster import Cluster
from asyncsgd.engines._ray.engine import Ray
from asyncsgd.engines._ray.handle import AHEAD, LOADING, Call, WorkerHandle, explain, missing
from asyncsgd.engines._ray.vector_store import Post
from asyncsgd.engines._ray.worker import Terms, Worker
from asyncsgd.engines.base import Note, Report, WorkerPool, limited
from asyncsgd.engines.lifecycle import Ask, Kill, Lifecycle, Rules, Stage, Start
from asyncsgd.tasks.base import Task

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
        rules = Rules(
            job_timeout=engine.job_timeout,
            start_timeout=engine.start_timeout,
            ahead=ahead,
            continue_without=True,
            backoff=True,  # after a second death its node may be dying, and Ray does not know yet
            silence=SILENCE,
        )
        self._life = Lifecycle(engine.workers, rules, time.monotonic())
        self._check_at = 0.0
        self._closed = False
        self._cluster: Cluster | None = None
        package = _pack(task, work)
        self._post = Post(self._n, x.dtype, halved=engine.transport is not None)
        self._desk = Desk(self._post, self._life, engine.transport)
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
        if isinstance(command, Assign):
            self._desk.assign(self._members[command.job.worker], command)
        else:
            self._desk.cancel(command)

    def poll(self, timeout: float) -> list[Report]:
        self._life.begin()
        self._desk.make_room()
        deadline = time.monotonic() + timeout
        wait = 0.0  # first of all, what has been answered while the server was busy
        while True:
            for call, answer in self._desk.answers(wait):
                self._take(call, answer)
            now = time.monotonic()
            if now >= self._check_at:
                self._check_times(now)
            if self._life.pending or now >= deadline:
                return self._life.take()
            wait = max(0.0, min(deadline, self._check_at) - now)

    def retire(self, worker: int) -> None:
        self._life.dismiss(worker)
        self._life.died(worker, "", time.monotonic())  # nothing of it is read any more
        self._dismiss(self._members[worker])

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
        self._life.started(member.number, time.monotonic(), Stage.WAITING)  # for as long as it takes
        self._desk.note(Call(member, "hello"), member.actor.hello.remote())

    def _load(self, member: WorkerHandle) -> None:
        number, engine = member.number, self._engine
        self._life.started(number, time.monotonic(), Stage.LOADING)
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

    def _loaded(self, member: WorkerHandle, error: str, shares: bool) -> None:
        number = member.number
        if error:
            if not self._life.opened:
                raise UsageError(
                    f"worker {number} {LOADING}:\n{error.strip()}\nInstall the modules of the task on every node, "
                    "or pass runtime_env={'working_dir': '.'}"
                )
            self._died(member, f"{LOADING}:\n{error}")
            return
        member.shares = shares
        self._life.report(Note("placed", {"worker": number, "node": member.node, "shares_memory": shares}))
        self._life.ready(number, time.monotonic())

    def _await(self) -> None:
        """Begin with every worker there, in order, so that equal runs begin equally; or with ``at_least`` of them."""
        life = self._life
        wanted = self._engine.at_least or len(self._members)
        began = life.alone_since = time.monotonic()
        while len(life.late) < wanted:
            left = began + self._engine.start_timeout - time.monotonic()
            if left <= 0 or len(self._members) - len(life.retired) < wanted:
                raise EngineError(self._missing(wanted, since=began))
            self._check_times(time.monotonic())
            for call, answer in self._desk.answers(min(left, LOOK_AROUND)):
                self._take(call, answer)
        life.open()  # the first poll reports that they joined, and what has happened until now

    # ------------------------------------------------------------------------------------------ life and death

    def _take(self, call: Call, answer: Any) -> None:
        member = call.member
        if isinstance(answer, self._ray.exceptions.RayError):
            self._died(member, explain(answer))
            return
        match call.method:
            case "hello":
                member.node = answer
                self._load(member)
            case "load":
                error, shares = answer
                self._loaded(member, error, shares)
            case "ping":
                self._life.heard(member.number, time.monotonic())
            case "compute":
                report = self._desk.computed(call, *answer)
                if report is not None:
                    self._life.report(report)

    def _died(self, member: WorkerHandle, reason: str) -> None:
        # Before another actor takes its number: the calls of this one are not to be answered in its name.
        self._dismiss(member)
        if self._life.died(member.number, reason, time.monotonic()):
            self._hire(member)

    def _dismiss(self, member: WorkerHandle) -> None:
        """Its process ends, whatever it does."""
        actor = member.actor
        self._desk.drop(member)
        if actor is not None:
            self._ray.kill(actor)

    def _check_times(self, now: float) -> None:
        for action in self._life.tick(now):
            member = self._members[action.worker]
            match action:
                case Start():
                    self._hire(member)
                case Ask():
                    self._desk.note(Call(member, "ping"), member.actor.ping.remote())
                case Kill(reason=reason) if not self._desk.has_answered(member):
                    self._died(member, reason)
                # A cancelled job runs on: an actor cannot be interrupted without losing what it has loaded.
        if now - self._life.alone_since > self._engine.start_timeout:
            raise EngineError(self._missing(1, since=self._life.alone_since))
        self._check_at = now + min(LOOK_AROUND, self._life.allowed / 4)

    def _missing(self, wanted: int, since: float) -> str:
        assert self._cluster is not None
        return missing(self._members, self._life, wanted, time.monotonic() - since, self._cluster.describe())


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
