"""Deliberate faults: a task whose chosen jobs kill or hang their worker, raise, or return invalid updates."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import numpy as np

from asyncsgd.core.random import derive, mix, output
from asyncsgd.core.server import JOB
from asyncsgd.core.vectors import Vector


class Fault(Enum):
    """What goes wrong in a job."""

    KILL = "kill"
    """SIGKILL to the worker's own process."""
    RAISE = "raise"
    """An exception in the user's code."""
    EXIT = "exit"
    """``SystemExit``, which ``except Exception`` lets through."""
    HANG = "hang"
    """The job never ends."""
    WAIT = "wait"
    """The job waits at a gate that the test opens: see `Gate`."""
    NAN = "nan"
    INFINITE = "infinite"
    SHORT = "short"
    """The update is one number too short."""
    DTYPE = "dtype"
    """float64 instead of float32, or the other way round."""
    NOTHING = "nothing"
    """``None`` instead of a vector."""


Plan: TypeAlias = Callable[[int, int], Fault | None]
"""A function (worker, seed of the job) -> fault or None. It must be picklable."""


def job_seed(seed: int, job: int, step: int | None = None) -> int:
    """Return the seed of a job, or of one of its local steps, in a run with this seed. A task recognises it by that."""
    found = output(derive(seed, JOB), job)
    return found if step is None else derive(found, step)


@dataclass(frozen=True)
class AtJobs:
    """Faults in the jobs with these numbers, in a run with this seed. A job that is assigned again has a new number.

    ``step`` is the local step at which the fault happens, for a method with local steps; None: a job is one gradient.

    >>> AtJobs({3: Fault.KILL})(0, job_seed(0, 3))
    <Fault.KILL: 'kill'>
    """

    faults: Mapping[int, Fault]
    seed: int = 0
    step: int | None = None

    @cached_property
    def _by_seed(self) -> dict[int, Fault]:
        return {job_seed(self.seed, job, self.step): fault for job, fault in self.faults.items()}

    def __call__(self, worker: int, seed: int) -> Fault | None:
        return self._by_seed.get(seed)


@dataclass(frozen=True)
class AtRandom:
    """Faults with these probabilities, drawn from the seed of each job, so that equal runs have equal faults.

    >>> plan = AtRandom({Fault.KILL: 0.1, Fault.NAN: 0.2})
    >>> faults = [plan(0, job_seed(0, job)) for job in range(1000)]
    >>> faults.count(Fault.KILL), faults.count(Fault.NAN), faults.count(None)
    (103, 187, 710)
    """

    chances: Mapping[Fault, float]

    def __call__(self, worker: int, seed: int) -> Fault | None:
        drawn = mix(seed ^ 0xFA17) * 2.0**-64
        for fault, chance in self.chances.items():
            if drawn < chance:
                return fault
            drawn -= chance
        return None


@dataclass(frozen=True)
class FaultyTask:
    """A task with deliberate faults, to test an engine or a method.

    Faults happen only while the task is `armed`, and never in the process that made the task: evaluating and replaying
    the run there gives the numbers of the task itself.

    Args:
        task: The task to compute in jobs without a fault.
        plan: Which jobs have which fault: `AtJobs`, `AtRandom` or your own function of (worker, seed).
        folder: A directory that the workers can access. A file in it says whether the task is armed.
        home: Process id in which no fault happens. None: faults happen everywhere, for an engine that computes in this
            process.

    >>> import asyncsgd as asgd, tempfile
    >>> task = FaultyTask(asgd.tasks.quadratic(workers=2), AtJobs({5: Fault.KILL}), tempfile.mkdtemp())
    >>> with task.armed():
    ...     engine = asgd.engines.processes(2)
    ...     run = asgd.train(task, asgd.minibatch_sgd(0.1), engine=engine, iterations=20, progress=False)
    >>> run.faults.deaths, asgd.Outcome(run.trace.jobs.outcome[5]).name
    (1, 'LOST')
    """

    task: Any
    plan: Plan
    folder: str | Path
    home: int | None = field(default_factory=os.getpid)

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the task: ``workers``, ``heterogeneous``, ``smoothness``, ..."""
        if name.startswith("_") or name == "task":  # while it is being unpickled, ``task`` does not exist yet
            raise AttributeError(name)
        return getattr(self.task, name)

    @contextmanager
    def armed(self) -> Iterator[None]:
        """Let faults happen within the block."""
        self._flag.touch()
        try:
            yield
        finally:
            self._flag.unlink()

    @property
    def _flag(self) -> Path:
        return Path(self.folder) / "armed"

    @property
    def processes(self) -> set[int]:
        """The processes that have begun a job while armed."""
        return {int(mark.name.rpartition("-")[2]) for mark in Path(self.folder).glob("process-*")}

    def initial(self) -> Vector:
        """Return the task's initial model."""
        x: Vector = self.task.initial()
        return x

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return the task's metrics."""
        values: dict[str, Any] = self.task.evaluate(x)
        return values

    def update(self, x: Vector, worker: int, seed: int, *batch: int) -> Vector:
        """Return the task's update, unless the job has a fault. A task with ``uses_batch`` also gets the batch."""
        fault = self._suffer(worker, seed)
        g: Vector = self.task.update(x, worker, seed, *batch)
        return g if fault is None else _spoiled(g, fault)

    @property
    def update_into(self) -> Callable[..., None]:
        """The task's ``update_into`` with faults, if the task has one."""
        inner = self.task.update_into

        def update_into(x: Vector, worker: int, seed: int, out: Vector, *batch: int) -> None:
            fault = self._suffer(worker, seed)
            inner(x, worker, seed, out, *batch)
            if fault is not None:
                out[:] = _spoiled(out, fault)

        return update_into

    def _suffer(self, worker: int, seed: int) -> Fault | None:
        """Carry out a fault of the process. Return a fault of the update for the caller to carry out."""
        if os.getpid() == self.home or not self._flag.exists():
            return None
        (Path(self.folder) / f"process-{worker}-{os.getpid()}").touch()
        match fault := self.plan(worker, seed):
            case Fault.KILL:
                os.kill(os.getpid(), signal.SIGKILL)
            case Fault.HANG:
                _hang()
            case Fault.WAIT:
                _gate(self.folder, seed).read_bytes()  # returns once the test has opened and closed the pipe
                return None
            case Fault.RAISE:
                raise RuntimeError(f"worker {worker} fails on purpose")
            case Fault.EXIT:
                raise SystemExit(f"worker {worker} exits on purpose")
        return fault


def _hang() -> NoReturn:
    while True:
        threading.Event().wait()


def _spoiled(g: Vector, fault: Fault) -> Any:
    match fault:
        case Fault.NAN | Fault.INFINITE:
            g = g.copy()
            g[-1] = np.nan if fault is Fault.NAN else -np.inf
            return g
        case Fault.SHORT:
            return g[:-1].copy()
        case Fault.DTYPE:
            return g.astype(np.float32 if g.dtype == np.float64 else np.float64)
    return None


# ---------------------------------------------------------------------------------------------- gates


def _gate(folder: str | Path, seed: int) -> Path:
    return Path(folder) / f"gate-{seed}"


class Gate:
    """A named pipe where a job with `Fault.WAIT` waits. A test sees when the job has begun, and decides when it ends.

    Make the gate before the job is assigned.
    """

    def __init__(self, folder: str | Path, seed: int) -> None:
        self._path = _gate(folder, seed)
        os.mkfifo(self._path)
        self._descriptor = -1

    def has_begun(self) -> bool:
        """Return whether a worker waits at the gate."""
        if self._descriptor < 0:
            try:
                self._descriptor = os.open(self._path, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:  # ENXIO: no process has opened the pipe to read
                return False
        return True

    def open(self) -> None:
        """Let the job continue."""
        if self.has_begun():
            os.close(self._descriptor)
            self._descriptor = -1
