"""A task looked at from outside: draws of its gradients, its loss, and a short way down."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.check import count
from asyncsgd.core.errors import BadParameter, BadTask
from asyncsgd.core.events import Vector
from asyncsgd.core.random import derive
from asyncsgd.tasks.base import Task, is_heterogeneous
from asyncsgd.theory.curvature import Draw

MANY = 64
"""So many workers are looked at if nobody says which."""
BATCH = 8
"""Gradients of one step of the descent."""
MOMENTUM = 0.9


@dataclass(frozen=True)
class Probe:
    """Some workers of a task, and seeds to draw their gradients with: one stream of seeds per purpose."""

    task: Task
    workers: tuple[int, ...]
    seed: int

    @classmethod
    def of(cls, task: Task, workers: int | Sequence[int] | None, seed: int) -> Probe:
        """Check the task and choose the workers."""
        for name in ("initial", "update", "evaluate"):
            if not callable(getattr(task, name, None)):
                raise BadTask(f"the task has no method {name}(); add it, see asyncsgd.tasks.Task")
        total = int(getattr(task, "workers", None) or 1)
        if workers is None or isinstance(workers, int | np.integer):
            wanted = min(total, MANY) if workers is None else workers
            count("workers", wanted)
            if wanted > total:
                raise BadParameter("workers", wanted, f"is more than the task has ({total})", f"pass at most {total}")
            random = np.random.Generator(np.random.Philox(key=derive(seed, 0)))
            return cls(task, tuple(sorted(random.choice(total, int(wanted), replace=False).tolist())), seed)
        chosen = tuple(workers)
        if not chosen or len(set(chosen)) < len(chosen) or not all(w in range(total) for w in chosen):
            fix = f"name each at most once, from 0 to {total - 1}"
            raise BadParameter("workers", chosen, f"are not workers of a task with {total}", fix)
        return cls(task, tuple(int(w) for w in chosen), seed)

    @property
    def families(self) -> tuple[tuple[int, ...], ...]:
        """Workers with the same function: all of them, or each alone where data differ."""
        return tuple((w,) for w in self.workers) if is_heterogeneous(self.task) else (self.workers,)

    def draws(self, stream: int, among: Sequence[int], many: int, skip: int = 0) -> list[Draw]:
        """So many (worker, seed) in turn; the same for the same stream."""
        return [(among[k % len(among)], derive(self.seed, stream, k)) for k in range(skip, skip + many)]

    def gradient(self, x: Vector, worker: int, seed: int) -> Vector:
        """``task.update``, if it is a finite vector like x."""
        found: Any = self.task.update(x, worker, seed)
        if not isinstance(found, np.ndarray) or found.shape != x.shape:
            raise BadTask(f"update(x, {worker}, {seed}) is no vector like x; return a NumPy array of shape {x.shape}")
        if not np.isfinite(found).all():
            raise BadTask(
                f"update(x, {worker}, {seed}) holds NaN or infinity at a point with |x| <= {np.abs(x).max():.3g}"
            )
        return found

    def loss(self, x: Vector) -> float | None:
        """``task.evaluate(x)["loss"]``, None if it reports none."""
        values = self.task.evaluate(x)
        return float(values["loss"]) if "loss" in values else None

    def descend(self, x: Vector, step: float, steps: int) -> tuple[list[Vector], float | None]:
        """(some points of a descent from x, the lowest loss on it).

        Nesterov's momentum on gradients of a few workers; back to the best point with half the step where it climbs.
        """
        best, lowest = x, self.loss(x)
        here, velocity, points = x.astype(np.float64), np.zeros(len(x)), []
        for k in range(steps):
            ahead: Vector = (here + MOMENTUM * velocity).astype(x.dtype)
            batch = self.draws(5, self.workers, BATCH, skip=BATCH * k)
            slope = np.mean([np.asarray(self.gradient(ahead, *draw), np.float64) for draw in batch], axis=0)
            velocity = MOMENTUM * velocity - step * slope
            here = here + velocity
            if k % 5 == 4 or k == steps - 1:
                point: Vector = here.astype(x.dtype)
                now = self.loss(point) if np.isfinite(point).all() else np.inf
                if now is not None and lowest is not None:
                    if not now <= lowest:
                        step, velocity, here = step / 2, np.zeros(len(x)), best.astype(np.float64)
                    else:
                        best, lowest = point, now
            if k in (steps // 4, steps // 2, steps - 1):
                points.append(here.astype(x.dtype))
        return points, lowest
