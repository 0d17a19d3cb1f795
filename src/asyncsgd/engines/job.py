"""One job in a worker, the same for every engine: compute the update, check it, and report how the job ended."""

from __future__ import annotations

import time
import traceback
from contextlib import ExitStack
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike

from asyncsgd.core.errors import BadUpdate, Stopped
from asyncsgd.core.validate import check_update
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Encoded, Gradient, LocalSteps, Work
from asyncsgd.core.worker import WorkerState
from asyncsgd.engines.base import limited


class Kind(IntEnum):
    """What a worker reports: it is ready, or how a job ended."""

    READY = 0
    DONE = 1
    REJECTED = 2
    FAILED = 3
    STOPPED = 4


class Answer(NamedTuple):
    """How a job ended."""

    kind: Kind
    value: Any
    """What `JobRunner.deliver` returned, or the error text of a job that was rejected or failed."""
    seconds: float
    """Duration of the job, including any artificial delay."""


@dataclass(frozen=True)
class JobRules:
    """How a worker computes: its threads and its artificial delays."""

    threads: int | None = None
    slowdown: float = 1.0
    """The factor by which a job takes longer."""
    min_seconds: float = 0.0
    """The least seconds of a mini-batch: a job of several takes at least as many times that."""


def compiled_parts(work: Work) -> tuple[Any, ...]:
    """Return the compiled passes and codes for a `WorkerState`; none for a plain gradient, which uses neither."""
    if isinstance(work, Gradient):
        return ()
    from asyncsgd.compiled.compression import fast
    from asyncsgd.compiled.kernels import CompiledKernels

    return CompiledKernels(1), fast


def load_compiled(work: Work, dtype: DTypeLike) -> None:
    """Load the compiled code of a work, before the first job and if possible before workers are forked.

    Loading takes half a second, and compiling at the first use on a machine some seconds. A first job that includes it
    may exceed its time limit, in every replacement again.
    """
    if isinstance(work, Gradient):
        return
    from asyncsgd.compiled.compression import fast
    from asyncsgd.compiled.kernels import ready
    from asyncsgd.methods import async_sgd

    inner, codes = (work.inner, (work.up, work.down)) if isinstance(work, Encoded) else (work, ())
    if isinstance(inner, LocalSteps):
        method = async_sgd(1.0).using(optimizer=inner.optimizer)
        ready(method if inner.clip is None else method.clipped(inner.clip), dtype, threads=1)
    for code in codes:
        if code is not None and (codec := fast(code)) is not code:  # a code of the user's own is not compiled
            vector = np.ones(1, dtype)
            codec.decode(codec.encode(vector), vector)


class JobRunner:
    """Computes the jobs of one worker, one at a time. It is made in the worker's own process and lives as long.

    An engine overrides `compute` to be able to stop a job, and `deliver` to send the update in its own way.

    >>> from asyncsgd.tasks import quadratic
    >>> runner = JobRunner(quadratic(dim=2, workers=1), Gradient(), worker=0, rules=JobRules())
    >>> out = np.empty(2)
    >>> runner(np.ones(2), seed=1, out=out).kind
    <Kind.DONE: 1>

    A task that declares ``uses_batch = True`` also gets the number of the job's mini-batch.
    """

    def __init__(self, task: Any, work: Work, worker: int, rules: JobRules) -> None:
        self._task, self._work, self._worker, self._rules = task, work, worker, rules
        self._state: WorkerState | None = None
        # Only a plain gradient can be written in place: other work computes several of them for one update.
        self._into = getattr(task, "update_into", None) if isinstance(work, Gradient) else None
        self._uses_batch = bool(getattr(task, "uses_batch", False))
        self._limits = ExitStack()
        self._limits.enter_context(limited(rules.threads))

    def settle(self, used: bool) -> None:
        """Take note of the server's verdict on the job before, which comes with the next job.

        Call this between two jobs, where no signal stops anything: a verdict is taken as a whole.
        """
        if self._state is not None:
            self._state.settle(used)

    def state(self, like: Vector) -> WorkerState:
        """Return what this worker keeps from job to job; ``like`` shows the length and the dtype of the model.

        Call this once before the first job, so that making it is not a part of a job, which can be stopped.
        """
        if self._state is None:
            self._state = WorkerState(self._work, like, *compiled_parts(self._work))
        return self._state

    def __call__(self, point: Vector, seed: int, out: Vector, steps: int | None = None, batch: int = 0) -> Answer:
        """Compute one job at ``point``. Every exception of the user's code becomes an `Answer`.

        Args:
            point: The model, which the user's code cannot write to.
            seed: The seed of the job.
            out: Memory for the update, of the model's length and dtype.
            steps: The number of mini-batches of the job, ``job.steps``; by default that of the method's work.
            batch: The number of the first of them, ``job.batch``.
        """
        started = time.perf_counter()
        value: Any = None
        try:
            value = self.compute(point, seed, out, steps, batch)
            kind = Kind.DONE
        except Stopped:  # raised because the server cancelled the job, or by the user's code itself
            kind = Kind.STOPPED
        except BadUpdate as error:
            kind, value = Kind.REJECTED, str(error)
        except BaseException:  # also SystemExit: the user's code must not end the worker
            kind, value = Kind.FAILED, traceback.format_exc()
        return Answer(kind, value, time.perf_counter() - started)

    def compute(self, point: Vector, seed: int, out: Vector, steps: int | None, batch: int) -> Any:
        """Compute, check and deliver the update, then wait for the artificial delay of this worker.

        A job that fails does not wait.
        """
        started = time.perf_counter()
        point.flags.writeable = False
        if self._into is not None:
            self._into(point, self._worker, seed, out, *((batch,) if self._uses_batch else ()))
            update = out
        else:
            state = self.state(out)
            update = state.compute(self._task, state.start(point), self._worker, seed, steps, batch)
        check_update(update, out, self._worker, None)
        value = self.deliver(update, out)
        spent = time.perf_counter() - started
        batches = self._work.steps if steps is None else steps
        wait = max(self._rules.slowdown * spent, self._rules.min_seconds * batches) - spent
        if wait > 0:
            time.sleep(wait)
        return value

    def deliver(self, update: Vector, out: Vector) -> Any:
        """Put the checked update where the server reads it. The returned value is sent with the answer."""
        if self._state is not None and self._state.encodes:
            self._state.decode(self._state.encode(update), out)
        elif update is not out:
            np.copyto(out, update)
