"""Tasks that go wrong by themselves, in a module that workers can import."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.core.compression import BFloat16, Message
from asyncsgd.core.random import derive, output
from asyncsgd.core.server import JOB
from asyncsgd.core.vectors import Vector
from asyncsgd.testing.bench import Bowl

BOWL = Bowl()
"""A task that can be named: run.tasks:BOWL."""


class Failing(Bowl):
    """Raises in every job from this one on."""

    def __init__(self, after: int) -> None:
        super().__init__()
        seeds = derive(0, JOB)
        self.good = {output(seeds, job) for job in range(min(after, 100_000))}
        self.all = after > 100_000

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        if seed > 1000 and not self.all and seed not in self.good:
            raise RuntimeError(f"the data have ended at {seed}")
        return super().update(x, worker, seed)


class Rubbish(Bowl):
    """One worker, or all, send NaN."""

    def __init__(self, worker: int | None) -> None:
        super().__init__()
        self.worker = worker

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        if self.worker in (None, worker):
            return np.full_like(x, np.nan)
        return super().update(x, worker, seed)


class Exploding(Bowl):
    """The loss is infinite below a value."""

    def __init__(self, at: float) -> None:
        super().__init__()
        self.at = at

    def evaluate(self, x: Vector) -> dict[str, Any]:
        loss = super().evaluate(x)["loss"]
        return {"loss": loss if loss > self.at else np.inf}


class Fickle(Bowl):
    """Cannot be evaluated a second time."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self.left = at

    def evaluate(self, x: Vector) -> dict[str, Any]:
        self.left -= 1
        return {"loss": 1 / self.left}


class FarOff(Bowl):
    """Far from 0 the model is finite, but neither its gradient nor its loss is."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        return super().update(x, worker, seed) if abs(x[0]) < 1e3 else np.full_like(x, np.nan)

    def evaluate(self, x: Vector) -> dict[str, Any]:
        return super().evaluate(x) if abs(x[0]) < 1e3 else {"loss": np.nan}


class Wordy(Bowl):
    """Raises at one place, each time with other words on several lines."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        if seed % 3 == 0:
            raise RuntimeError(f"row {seed}\nhas {seed + 1} values\nbut should have {seed + 2}")
        return super().update(x, worker, seed)


@dataclass(frozen=True)
class RudeCode(BFloat16):
    """A code that raises while a file exists, in whatever process it runs."""

    flag: str = ""

    def encode(self, vector: Vector) -> Message:
        if Path(self.flag).exists():
            raise OSError("in the code")
        return super().encode(vector)
