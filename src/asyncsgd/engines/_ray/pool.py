"""The server's side of the workers on a Ray cluster: actors, and calls of their methods.

`Lifecycle` decides when a worker is started, killed or given up. A worker is one actor at a time. Ray never restarts an
actor here: a new actor takes the worker's number, so that no state of a dead process survives. The server makes three
kinds of calls to an actor: first ``hello`` (its answer shows that Ray has found room, which may take any time), then
``load`` (the actor unpacks the task within ``start_timeout``), and after that ``compute`` for each job.

Only the polling thread touches actors and references. On the server's own machine a worker writes its update into
shared memory, only to the place that came with the call. A process that was killed may live on for a moment and still
write there, so its replacement has different places (`WorkerHandle.places`).

If a worker dies, Ray answers its open calls with an error; `_died` then drops all its calls before a replacement takes
the number. If the server dies, Ray ends the actors, and `orphan_cleanup` ends what Ray leaves behind.
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import ExitStack
from typing import Any, cast

import numpy as np

from asyncsgd.core.errors import BadParameter, EngineError, UsageError
from asyncsgd.core.events import Arrived, Assign, Command
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines._ray import Ray
from asyncsgd.engines._ray.call_queue import CallQueue
from asyncsgd.engines._ray.cluster import Cluster
from asyncsgd.engines._ray.handle import AHEAD, LOADING, Call, WorkerHandle, explain, missing
from asyncsgd.engines._ray.vector_store import VectorStore
from asyncsgd.engines._ray.worker import Loaded, Worker, WorkerConfig
from asyncsgd.engines.base import Note, Report, WorkerPool, example_counter, limited
from asyncsgd.engines.lifecycle import Ask, Kill, Lifecycle, Rules, Stage, Start
from asyncsgd.tasks.base import Task
from asyncsgd.tasks.check import why_not_sent

CHECK_INTERVAL = 0.25  # seconds
SILENCE = 2.0
"""Seconds after which the pool asks a worker without a job whether it is still alive."""


class RayPool(WorkerPool):
    """Actors that Ray places on nodes. A job is a call of an actor's method; Ray returns a reference to the answer."""

    def __init__(self, engine: Ray, task: Task, work: Work, x: Vector) -> None:
        self._engine = engine
        self._n, self.dtype = x.shape[0], x.dtype
        # A worker that keeps state needs the verdict on its last job before it begins the next one.
        self._keeps = work.keeps
        ahead = 1 if work.keeps else AHEAD
        self._handles = [WorkerHandle(number, group) for number, group in enumerate(engine.group)]
        rules = Rules(
            job_timeout=engine.job_timeout,
            start_timeout=engine.start_timeout,
            ahead=ahead,
            continue_without=True,
            backoff=True,  # after a second death the node may be dying, which Ray notices later
            silence=SILENCE,
            steps=work.steps,
        )
        self._life = Lifecycle(engine.workers, rules, time.monotonic())
        self._check_at = 0.0
        self._closed = False
        self._cluster: Cluster | None = None
        package = _pack(task, work)
        self._store = VectorStore(self._n, x.dtype, work)
        self._queue = CallQueue(self._store, self._life, getattr(work, "up", None), example_counter(task, work))
        self._threads = ExitStack()
        # The server applies updates with one thread, so that workers on this machine have the other processors.
        self._threads.enter_context(limited(1))
        try:
            self._cluster = Cluster(engine, vectors=((ahead + 2) * engine.workers + 2) * x.nbytes)
            ray = self._ray = self._cluster.ray
            self._queue.open(ray)
            self._store.open(ray, self._cluster.store)
            self._package = ray.put(package)
            self._actors = ray.remote(Worker)
            for handle in self._handles:
                self._start_worker(handle)
            _warm(x.dtype)  # while the workers start
            self._await()
        except BaseException:
            self.close()
            raise

    # ------------------------------------------------------------------------------------------ for the run

    def allocate(self, n: int) -> Vector:
        return self._store.allocate()

    def execute(self, command: Command) -> None:
        if isinstance(command, Assign):
            self._queue.assign(self._handles[command.job.worker], command)
        else:
            self._queue.cancel(command)

    def poll(self, timeout: float) -> list[Report]:
        self._life.begin()
        self._queue.make_room()
        deadline = time.monotonic() + timeout
        wait = 0.0  # first read what was answered while the server was busy
        while True:
            for call, answer in self._queue.answers(wait):
                self._take(call, answer)
            now = time.monotonic()
            if now >= self._check_at:
                self._check_times(now)
            if self._life.pending or now >= deadline:
                return self._life.take()
            wait = max(0.0, min(deadline, self._check_at) - now)

    def used(self, report: Arrived, applied: bool) -> None:
        if self._keeps:  # else the worker holds its next job already
            handle = self._handles[cast(int, report.worker)]
            self._life.judged(handle.number, report.job, applied)
            self._queue.send(handle)  # to its other place: the update stays valid until the next poll

    def retire(self, worker: int) -> None:
        self._life.dismiss(worker)
        self._life.died(worker, "", time.monotonic())  # no answer of it will be read
        self._kill(self._handles[worker])

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        with ExitStack() as parts:  # closes each part even if another one raises, in reverse order
            parts.enter_context(self._threads)
            if self._cluster is not None:
                parts.callback(self._cluster.close)
            parts.callback(self._store.close)
            parts.callback(self._queue.close)
            for handle in reversed(self._handles):
                parts.callback(self._kill, handle)
            self._package = None

    # ------------------------------------------------------------------------------------------ starting workers

    def _start_worker(self, handle: WorkerHandle) -> None:
        assert self._cluster is not None
        group = handle.group
        handle.actor = self._actors.options(
            num_cpus=group.num_cpus,
            num_gpus=group.num_gpus,
            resources=dict(group.resources) or None,
            max_restarts=0,  # a new actor replaces a dead one, so that no state of it survives
            max_task_retries=0,
            enable_task_events=False,
            runtime_env=self._cluster.environment,
        ).remote()
        handle.compute = handle.actor.compute
        self._life.started(handle.number, time.monotonic(), Stage.WAITING)  # this stage has no time limit
        self._queue.note(Call(handle, "hello"), handle.actor.hello.remote())

    def _load(self, handle: WorkerHandle) -> None:
        number, engine = handle.number, self._engine
        self._life.started(number, time.monotonic(), Stage.LOADING)
        for place in handle.places:  # make the file long enough before the worker maps these places
            self._store.updates[place]
        config = WorkerConfig(
            worker=number,
            n=self._n,
            dtype=self.dtype.name,
            threads=handle.group.threads_each,
            slowdown=engine.slowdown[number] if engine.slowdown else 1.0,
            min_seconds=engine.min_seconds[number] if engine.min_seconds else 0.0,
            device=handle.group.device,
            path=tuple(os.path.abspath(entry) for entry in sys.path),
            memory=self._store.memory if engine.shared_memory else None,
        )
        self._queue.note(Call(handle, "load"), handle.actor.load.remote(self._package, config))

    def _loaded(self, handle: WorkerHandle, loaded: Loaded) -> None:
        number, (error, no_device, shares) = handle.number, loaded
        if no_device:
            if not self._life.opened:
                problem = f"gave worker {number} on node {handle.node} a GPU that its task cannot use ({no_device})"
                fix = "install the GPU's driver and a PyTorch with CUDA on that node, or pass num_gpus=0"
                raise BadParameter("num_gpus", handle.group.num_gpus, problem, fix)
            self._died(handle, f"cannot use its GPU ({no_device})")
            return
        if error:
            if not self._life.opened:
                raise UsageError(
                    f"worker {number} {LOADING}:\n{error.strip()}\nInstall the modules of the task on every node, "
                    "or pass runtime_env={'working_dir': '.'}"
                )
            self._died(handle, f"{LOADING}:\n{error}")
            return
        handle.shares = shares
        self._life.report(Note("placed", {"worker": number, "node": handle.node, "shares_memory": shares}))
        self._life.ready(number, time.monotonic())

    def _await(self) -> None:
        """Wait until ``at_least`` workers are ready. They join in one report, so that equal runs begin equally."""
        life = self._life
        wanted = self._engine.at_least or len(self._handles)
        began = life.alone_since = time.monotonic()
        while len(life.late) < wanted:
            left = began + self._engine.start_timeout - time.monotonic()
            if left <= 0 or len(self._handles) - len(life.retired) < wanted:
                raise EngineError(self._missing(wanted, since=began))
            self._check_times(time.monotonic())
            for call, answer in self._queue.answers(min(left, CHECK_INTERVAL)):
                self._take(call, answer)
        life.open()  # the first poll reports that they joined, and everything that happened until now

    # ------------------------------------------------------------------------------------------ life and death

    def _take(self, call: Call, answer: Any) -> None:
        handle = call.handle
        if isinstance(answer, self._ray.exceptions.RayError):
            self._died(handle, explain(answer))
            return
        match call.method:
            case "hello":
                handle.node = answer
                self._load(handle)
            case "load":
                self._loaded(handle, answer)
            case "ping":
                self._life.heard(handle.number, time.monotonic())
            case "compute":
                report = self._queue.computed(call, *answer)
                if report is not None:
                    self._life.report(report)

    def _died(self, handle: WorkerHandle, reason: str) -> None:
        # First drop the dead actor's calls: their answers must not count for the actor that takes the number next.
        self._kill(handle)
        if self._life.died(handle.number, reason, time.monotonic()):
            self._start_worker(handle)

    def _kill(self, handle: WorkerHandle) -> None:
        """Drop the worker's calls, and let Ray kill its process."""
        actor = handle.actor
        self._queue.drop(handle)
        if actor is not None:
            self._ray.kill(actor)

    def _check_times(self, now: float) -> None:
        for action in self._life.tick(now):
            handle = self._handles[action.worker]
            match action:
                case Start():
                    self._start_worker(handle)
                case Ask():
                    self._queue.note(Call(handle, "ping"), handle.actor.ping.remote())
                case Kill(reason=reason) if not self._queue.has_answered(handle):
                    self._died(handle, reason)
                # `Stop` is ignored: an actor cannot be interrupted without losing the task that it has loaded.
        if now - self._life.alone_since > self._engine.start_timeout:
            raise EngineError(self._missing(1, since=self._life.alone_since))
        self._check_at = now + min(CHECK_INTERVAL, self._life.allowed / 4)

    def _missing(self, wanted: int, since: float) -> str:
        assert self._cluster is not None
        return missing(self._handles, self._life, wanted, time.monotonic() - since, self._cluster.describe())


def _pack(task: Task, work: Work) -> bytes:
    import cloudpickle

    try:
        package: bytes = cloudpickle.dumps((task, work))
    except Exception as error:
        raise UsageError(
            f"the task cannot be sent to other nodes ({why_not_sent(task, error)}); keep open files, "
            "locks and connections out of it, or open them when first used"
        ) from error
    return package


def _warm(dtype: Any) -> None:
    """Load the compiled update for read-only vectors, which Ray returns."""
    from asyncsgd.compiled.vectors import subtract_scaled

    x = np.zeros(1, dtype)
    x.flags.writeable = False
    subtract_scaled(x, 0.0, x, np.zeros(1, dtype))
