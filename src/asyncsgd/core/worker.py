"""A worker's half of a method: compute a job, encode its update, and keep what lasts from job to job.

One rule holds for every engine, for simulations and for replays:

- The state starts afresh when a worker joins, also after a death or a resume.
- A job computes on a copy. The copy becomes the state only if the server *applied* the update. A job that was lost,
  rejected, cancelled or dropped changes nothing.
- So the verdict on a job must be known before the worker's next job begins, and a worker that keeps state holds one job
  at a time.

The state after a job is therefore a function of this worker's applied jobs since it joined, in their order. The trace
and the journal record both, so that a run can be replayed bit for bit.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any, Protocol, cast

import numpy as np

from asyncsgd.core.compression import Compression, Message
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.optimizers import State
from asyncsgd.core.validate import check_update
from asyncsgd.core.vectors import Vector, blocks
from asyncsgd.core.work import Encoded, Tools, Work, numbered


class Codec(Protocol):
    """A code for vectors: a `Compression`, or its compiled form."""

    def encode(self, vector: Vector) -> Message:
        """Return the message; a later call may overwrite it."""

    def decode(self, message: Message, out: Vector) -> None:
        """Write the numbers of a message to ``out``."""


class WorkerState:
    """What one worker keeps from job to job: the memory of its work, and what encoding left over.

    Call `compute`, then `encode` if the work encodes updates, then `settle` with the server's verdict.

    >>> from asyncsgd.core.compression import BFloat16
    >>> from asyncsgd.core.work import Gradient
    >>> state = WorkerState(Encoded(Gradient(), up=BFloat16()), np.zeros(2, np.float32))
    >>> for _ in range(2):
    ...     print(state.sent(np.array([1.0, 1.003], np.float32)))
    ...     state.settle(used=True)
    [1. 1.]
    [1.        1.0078125]
    """

    def __init__(
        self,
        work: Work,
        x: Vector,
        kernels: Kernels | None = None,
        codec: Callable[[Compression], Codec] | None = None,
    ) -> None:
        up, down = (work.up, work.down) if isinstance(work, Encoded) else (None, None)
        codec = codec or _plain
        self.work = work
        self._kernels = kernels or Kernels()
        self._memory = work.memory(x)
        self._next: State | None = None  # the memory after the last job, until the verdict on that job is known
        self._up = None if up is None else codec(up)
        self._down = None if down is None else codec(down)
        self._decay = 1.0 if up is None else up.decay
        self._point: Vector | None = None if down is None else np.empty_like(x)
        self._left: Vector | None = None if up is None else np.zeros_like(x)
        self._total: Vector | None = None if up is None else np.zeros_like(x)  # what the last message encodes
        self._message: Message | None = None  # the last one, until the verdict on its job is known

    @property
    def encodes(self) -> bool:
        """Whether updates are encoded."""
        return self._up is not None

    def settle(self, used: bool) -> None:
        """Record the verdict on the last job: whether the server applied its update. Without a job it has no effect."""
        if used and self._next is not None:
            self._memory = self._next
        if used and self._message is not None:
            assert self._up is not None
            assert self._total is not None
            assert self._left is not None
            self._up.decode(self._message, self._left)
            np.subtract(self._total, self._left, out=self._left)
        self._next, self._message = None, None

    def start(self, point: Vector | Message) -> Vector:
        """Return the point at which a job computes, given the server's point or the message that carries it.

        The next call may overwrite it.
        """
        if self._down is None or self._point is None:
            return cast(Vector, point)
        message = point if point.dtype == np.uint8 else self._down.encode(cast(Vector, point))
        self._down.decode(cast(Message, message), self._point)
        return self._point

    def compute(self, task: Any, x: Vector, worker: int, seed: int, steps: int | None, batch: int) -> Vector:
        """Return the update of one job at x, which `start` returned, before it is encoded."""
        self._next, self._message = None, None
        memory = deepcopy(self._memory) if self._memory else {}
        tools = Tools(memory, self._kernels)
        counts = (self.work.steps if steps is None else steps, batch)
        update = self.work.compute(numbered(task, batch), x, worker, seed, counts, tools)
        self._next = memory
        return update

    def encode(self, update: Vector) -> Message:
        """Return the message that carries an update, with what was left over from the updates before it.

        The message must stay as it is until `settle`, which computes from it what is left over.
        """
        assert self._up is not None
        assert self._total is not None
        assert self._left is not None
        for part in blocks(len(update)):
            _add(update[part], self._decay, self._left[part], self._total[part])
        self._message = self._up.encode(self._total)
        return self._message

    def decode(self, message: Message, out: Vector) -> None:
        """Write the update that a message carries to ``out``, as the server does."""
        assert self._up is not None
        self._up.decode(message, out)

    @property
    def left_over(self) -> Vector:
        """What encoding left over of the applied updates. A worker whose process ends with a job stores it."""
        assert self._left is not None
        return self._left

    def continue_from(self, left: Vector) -> None:
        """Continue from what an earlier process of this worker stored."""
        assert self._left is not None
        self._left[:] = left

    def sent(self, update: Vector) -> Vector:
        """Return an update as it reaches the server."""
        if self._up is None:
            return update
        out = np.empty_like(update)
        self._up.decode(self.encode(update), out)
        return out


def _add(update: Vector, decay: float, left: Vector, out: Vector) -> None:
    """Compute ``out = update + decay * left``. A sum that overflows becomes the largest number: infinity would stay."""
    try:
        with np.errstate(over="raise"):
            np.add(update, left if decay == 1.0 else np.multiply(left, decay, out=out), out=out)
    except FloatingPointError:
        most = np.finfo(out.dtype).max
        with np.errstate(over="ignore"):
            np.clip(update + decay * left, -most, most, out=out)


def _plain(code: Compression) -> Codec:
    return code


class Workers:
    """The states of all workers in one process, for simulations and replays."""

    def __init__(
        self, work: Work, x: Vector, kernels: Kernels | None = None, codec: Callable[[Compression], Codec] | None = None
    ) -> None:
        self._options = (work, x, kernels, codec)
        self._states: dict[int, WorkerState] = {}
        self._one = None if work.keeps else WorkerState(*self._options)  # workers that keep nothing are alike

    def of(self, worker: int) -> WorkerState:
        """Return the state of this worker."""
        if self._one is not None:
            return self._one
        state = self._states.get(worker)
        if state is None:
            state = self._states[worker] = WorkerState(*self._options)
        return state

    def compute(self, task: Any, point: Vector, worker: int, seed: int, steps: int | None, batch: int) -> Vector:
        """Return the update of a job as it reaches the server; raise if it is not finite. `settle` must follow."""
        state = self.of(worker)
        update = state.compute(task, state.start(point), worker, seed, steps, batch)
        check_update(update, point, worker, None)
        return state.sent(update)

    def settle(self, worker: int, used: bool) -> None:
        """Record whether the server applied the last update of this worker."""
        self.of(worker).settle(used)

    def forget(self, worker: int | None = None) -> None:
        """Let this worker, or all of them, start afresh."""
        if worker is None:
            self._states.clear()
        else:
            self._states.pop(worker, None)
