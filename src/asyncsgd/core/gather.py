"""From arrivals to moves of the model: each on its own, K at a time, or through a memory of every worker."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from asyncsgd.core.arrival import Arrival
from asyncsgd.core.check import count, nonnegative
from asyncsgd.core.events import Vector
from asyncsgd.core.random import derive
from asyncsgd.core.vectors import subtract_scaled

State = dict[str, Any]
NOISE = 0x4015E  # keeps the draws of noise apart from those of jobs and dispatch


@dataclass(frozen=True)
class Gather(ABC):
    """Base of the gathering rules: a frozen value; what it remembers is a dict of arrays and numbers."""

    balances: ClassVar[bool] = False
    """Whether every worker counts the same however often it answers."""

    def init(self, x: Vector, seed: int) -> State:
        """What it remembers at the start."""
        return {}

    @abstractmethod
    def add(
        self, state: State, g: Vector, stepsize: float, weight: float, arrival: Arrival
    ) -> tuple[Vector, float] | None:
        """(direction, step) if the model moves now, else None."""

    def reseed(self, state: State, seed: int) -> None:
        """Draw from this seed from now on; most rules draw nothing."""
        return

    @abstractmethod
    def share(self, state: State, stepsize: float, weight: float) -> float:
        """The step that this arrival gets in the end, for the record; asked after `add`."""


@dataclass(frozen=True)
class Each(Gather):
    """Every arrival moves the model: direction g, step η·w."""

    def add(
        self, state: State, g: Vector, stepsize: float, weight: float, arrival: Arrival
    ) -> tuple[Vector, float] | None:
        return g, stepsize * weight

    def share(self, state: State, stepsize: float, weight: float) -> float:
        return stepsize * weight


@dataclass(frozen=True)
class Buffer(Gather):
    """After ``size`` arrivals the model moves by η/K · (Σ w_i g_i + noise), and the buffer is empty again.

    ``noise`` is the standard deviation per coordinate of Gaussian noise on the *sum*: with updates clipped to
    norm G and weights at most 1, noise = z·G is the Gaussian mechanism with multiplier z. It is drawn from the seed
    and the version: a server that goes back to an older state must be given another seed (`reseed`), or two sums
    would have the same noise.
    """

    size: int
    noise: float = 0.0

    def __post_init__(self) -> None:
        count("buffer", self.size)
        nonnegative("noise", self.noise)

    def init(self, x: Vector, seed: int) -> State:
        return {"total": np.zeros_like(x), "held": 0, "seed": seed}

    def add(
        self, state: State, g: Vector, stepsize: float, weight: float, arrival: Arrival
    ) -> tuple[Vector, float] | None:
        total = state["total"]
        if state["held"] == 0:
            np.multiply(g, weight, out=total)  # starts afresh: what the last flush left is overwritten
        else:
            subtract_scaled(total, -weight, g, total)
        state["held"] += 1
        if state["held"] < self.size:
            return None
        state["held"] = 0
        if self.noise:
            random = np.random.Generator(np.random.Philox(key=derive(state["seed"], NOISE, arrival.version)))
            total += (self.noise * random.standard_normal(total.shape[0])).astype(total.dtype)
        return total, stepsize / self.size

    def reseed(self, state: State, seed: int) -> None:
        state["seed"] = seed

    def share(self, state: State, stepsize: float, weight: float) -> float:
        return stepsize * weight / self.size


@dataclass(frozen=True)
class Memory(Gather):
    """The last update G_i of every worker is kept; each arrival moves the model by η · mean_i G_i (MIFA).

    Nothing moves until everybody who is present was heard once. The memory of a worker that left stays, as it
    stands for data that are out of reach for a while. The sum is kept up to date by the difference, so an
    arrival costs O(d) and not O(n d).
    """

    balances: ClassVar[bool] = True

    def init(self, x: Vector, seed: int) -> State:
        return {"last": {}, "total": np.zeros_like(x), "started": False}

    def add(
        self, state: State, g: Vector, stepsize: float, weight: float, arrival: Arrival
    ) -> tuple[Vector, float] | None:
        last, total = state["last"], state["total"]
        known = last.get(arrival.worker)
        if known is None:
            last[arrival.worker] = g.copy()
            total += g
        else:
            total += g - known
            known[:] = g
        if not state["started"] and len(last) >= arrival.workers:
            state["started"] = arrival.present is None or all(worker in last for worker in arrival.present)
        return (total, stepsize * weight / len(last)) if state["started"] else None

    def share(self, state: State, stepsize: float, weight: float) -> float:
        return stepsize * weight / len(state["last"]) if state["started"] else 0.0
