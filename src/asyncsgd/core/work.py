"""What a job computes: one gradient, or several local steps. This code runs in the worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from asyncsgd.core.compression import Compression
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.kernels import Kernels, with_kernels
from asyncsgd.core.layout import Layout
from asyncsgd.core.optimizers import SGD, Optimizer, State
from asyncsgd.core.random import derive
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.transforms import clip_to
from asyncsgd.core.validate import check_update, count, nonnegative, positive
from asyncsgd.core.vectors import Vector

GradientOf = Callable[[Vector, int, int], Vector]
"""The task's gradient as a function of (x, worker, seed)."""
STATES = ("fresh", "kept")
SPEED = "speed"
FEW_STEPS = 20
"""Adam that starts afresh in every job should take at least this many steps."""


class Work(ABC):
    """What a job computes. A work is a frozen value; what a worker keeps from job to job is a dict, its *memory*."""

    steps: int
    """The number of mini-batches of a job, unless the job itself has fewer."""
    per_worker: tuple[int, ...] | str | None = None
    """The steps of each worker's jobs, or "speed"; None: all workers take `steps`."""

    @property
    def keeps(self) -> bool:
        """Whether a worker keeps a memory from job to job. It then holds one job at a time."""
        return False

    def bind(self, workers: int, iterations: int | None, counted: str, batches: int | None = None) -> Work:
        """Return the work with every open option filled in from the run; see `asyncsgd.Method.bind`."""
        return self

    def bind_layout(self, layout: Layout | None) -> Work:
        """Return the work for a model with this layout."""
        return self

    def memory(self, x: Vector) -> State:
        """Return the memory of a worker that has just joined; ``x`` shows the length and the dtype of the model."""
        return {}

    def seed_of(self, seed: int, step: int) -> int:
        """Return the seed of one mini-batch of a job."""
        return seed

    def encoded(self, up: Compression | None, down: Compression | None) -> Work:
        """Return this work with its starting point and its update encoded on their way."""
        return self if up is None and down is None else Encoded(self, up, down)

    @abstractmethod
    def compute(
        self, gradient: GradientOf, x: Vector, worker: int, seed: int, counts: tuple[int, int], tools: Tools
    ) -> Vector:
        """Return the update of one job.

        Args:
            gradient: The task's gradient.
            x: The point that the job was assigned.
            worker: The worker of the job.
            seed: The seed of the job.
            counts: The number of mini-batches of the job, and the number of those handed out before it.
            tools: The worker's memory, which may be changed in place, and its passes over vectors.
        """


@dataclass(slots=True)
class Tools:
    """What the worker brings to a job: its memory, which is the job's own copy, and passes over vectors."""

    memory: State
    kernels: Kernels


@dataclass(frozen=True)
class Gradient(Work):
    """One stochastic gradient at the assigned point."""

    steps = 1

    def compute(
        self, gradient: GradientOf, x: Vector, worker: int, seed: int, counts: tuple[int, int], tools: Tools
    ) -> Vector:
        return gradient(x, worker, seed)


@dataclass(frozen=True)
class LocalSteps(Work):
    """Q local steps from the assigned point; the update is how far they moved.

    With SGD: ``y_0 = x``, ``y_{q+1} = y_q - stepsize * (g(y_q) + proximal * (y_q - x))``; any other optimizer takes the
    place of that step. With ``clip`` every g is clipped to that norm first. With ``scaled`` the update is
    ``(x - y_Q) / stepsize``, which has the scale of a sum of Q gradients; otherwise the plain difference ``x - y_Q``,
    the scale of a model. Step q of a job draws from a seed of its own, and a schedule is asked for its value at
    ``batch + q``, where ``batch`` is the number of mini-batches handed out before the job.

    ``state="fresh"`` starts the optimizer afresh in every job, ``"kept"`` continues where the worker's last applied job
    ended; see docs/decisions/0029-worker-state.md.
    """

    steps: int
    stepsize: float | Schedule
    scaled: bool = False
    proximal: float = 0.0
    optimizer: Optimizer = field(default_factory=SGD)
    state: str = "fresh"
    clip: float | None = None
    per_worker: tuple[int, ...] | str | None = None

    def __post_init__(self) -> None:
        count("steps", self.steps)
        if not isinstance(self.stepsize, Schedule):
            positive("stepsize", self.stepsize)
        nonnegative("proximal", self.proximal)
        if self.clip is not None:
            positive("clip", self.clip)
        if self.state not in STATES:
            raise BadParameter("state", self.state, "is not known", 'pass "fresh" or "kept"')
        if not isinstance(self.optimizer, Optimizer):
            raise BadParameter("optimizer", self.optimizer, "is not an optimizer", "pass asgd.optimizers.adamw()")
        if not self.optimizer.local:
            kind = type(self.optimizer).__name__
            raise BadParameter("optimizer", kind, "needs the arrivals at the server", "use it as the server's")
        if self.scaled and (self.optimizer != SGD() or isinstance(self.stepsize, Schedule)):
            fix = "leave scaled out, or use SGD with a constant stepsize"
            raise BadParameter("scaled", True, "divides by the one step size of plain SGD", fix)
        object.__setattr__(self, "per_worker", _each(self.per_worker))

    @property
    def keeps(self) -> bool:
        return self.state == "kept" and self.optimizer.vectors() > 0

    def bind(self, workers: int, iterations: int | None, counted: str, batches: int | None = None) -> Work:
        if isinstance(self.per_worker, tuple) and len(self.per_worker) != workers:
            fix = f"pass one number for each of the {workers} workers"
            raise BadParameter("per_worker", self.per_worker, f"has {len(self.per_worker)} numbers", fix)
        if not isinstance(self.stepsize, Schedule):
            return self
        most = self.steps if not isinstance(self.per_worker, tuple) else max((self.steps, *self.per_worker))
        total = batches if batches is not None or iterations is None else iterations * most
        if total is not None and counted == "worker":
            total = -(-total // workers)
        # With steps per worker, a number of updates does not tell how many mini-batches they use.
        known = batches is not None or self.per_worker is None
        bound = self.stepsize.bind(total if known else None)
        if total is not None:
            bound.check(total)
        return replace(self, stepsize=bound)

    def bind_layout(self, layout: Layout | None) -> Work:
        bound = self.optimizer.bind_layout(layout)
        return self if bound is self.optimizer else replace(self, optimizer=bound)

    def memory(self, x: Vector) -> State:
        return self.optimizer.init(x) if self.keeps else {}

    def seed_of(self, seed: int, step: int) -> int:
        return derive(seed, step)

    def size(self, batch: int) -> float:
        """Return the step size of one mini-batch."""
        return self.stepsize.value(batch) if isinstance(self.stepsize, Schedule) else self.stepsize

    def compute(
        self, gradient: GradientOf, x: Vector, worker: int, seed: int, counts: tuple[int, int], tools: Tools
    ) -> Vector:
        steps, batch = counts
        state = tools.memory if self.keeps else self.optimizer.init(x)
        step = with_kernels(self.optimizer.step, tools.kernels)
        y = x.copy()
        for q in range(steps):
            g = gradient(y, worker, derive(seed, q))
            check_update(g, x, worker, None)
            if self.clip is not None:
                g = clip_to(self.clip, g, tools.kernels)
            if self.proximal:
                g = g + self.proximal * (y - x)
            step(state, y, g, self.size(batch + q), y, None)
        return (x - y) / self.size(batch) if self.scaled else x - y


@dataclass(frozen=True)
class Encoded(Work):
    """Another work, whose starting point and update are encoded on their way; see `asyncsgd.core.compression`."""

    inner: Work
    up: Compression | None = None
    down: Compression | None = None

    @property
    def steps(self) -> int:  # type: ignore[override]
        return self.inner.steps

    @property
    def per_worker(self) -> tuple[int, ...] | str | None:  # type: ignore[override]
        return self.inner.per_worker

    @property
    def keeps(self) -> bool:
        return self.up is not None or self.inner.keeps

    def memory(self, x: Vector) -> State:
        return self.inner.memory(x)

    def seed_of(self, seed: int, step: int) -> int:
        return self.inner.seed_of(seed, step)

    def compute(
        self, gradient: GradientOf, x: Vector, worker: int, seed: int, counts: tuple[int, int], tools: Tools
    ) -> Vector:
        return self.inner.compute(gradient, x, worker, seed, counts, tools)


def _each(given: Any) -> tuple[int, ...] | str | None:
    """Return the steps of each worker as a tuple, "speed" or None, or raise."""
    if given is None or (isinstance(given, str) and given == SPEED):
        return given
    if isinstance(given, str) or not isinstance(given, Sequence | np.ndarray):
        raise BadParameter("per_worker", given, "is not known", 'pass "speed", or one number of steps per worker')
    for steps in given:
        count("per_worker", steps)
    return tuple(int(steps) for steps in given)


def numbered(task: Any, batch: int) -> GradientOf:
    """Return ``task.update`` as a function of (x, worker, seed), for the work of one job.

    A task that declares ``uses_batch = True`` also gets the number of the mini-batch: ``batch`` at the first call,
    one more at each later one, so that each local step has rows of its own.
    """
    if not getattr(task, "uses_batch", False):
        update: GradientOf = task.update
        return update
    calls = 0

    def next_update(x: Vector, worker: int, seed: int) -> Vector:
        nonlocal calls
        calls += 1
        found: Vector = task.update(x, worker, seed, batch + calls - 1)
        return found

    return next_update


def compute_job(work: Work, task: Any, x: Vector, worker: int, seed: int, steps: int | None, batch: int) -> Vector:
    """Return the update of one job of a worker that keeps nothing from job to job.

    Engines of asyncsgd, simulations and replays use `asyncsgd.core.worker.WorkerState`, which also keeps a memory.

    Args:
        work: The work of the method.
        task: The task.
        x: The point that the job was assigned.
        worker: The worker of the job.
        seed: The seed of the job.
        steps: The number of mini-batches of the job, by default the work's.
        batch: The number of the first of them.

    >>> from asyncsgd.tasks import quadratic
    >>> task = quadratic(workers=2, dim=2, noise=0.0)
    >>> update = compute_job(Gradient(), task, task.initial(), worker=0, seed=7, steps=None, batch=0)
    >>> bool((update == task.update(task.initial(), 0, 7)).all())
    True

    docs/howto/engine.md shows an engine that calls it.
    """
    tools = Tools(work.memory(x), Kernels())
    return work.compute(numbered(task, batch), x, worker, seed, (work.steps if steps is None else steps, batch), tools)
