"""How the server changes an update before it uses it: clipping, delay compensation, interpolation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.events import Arrival
from asyncsgd.core.validate import fraction, nonnegative, positive
from asyncsgd.core.vectors import Vector
from asyncsgd.core.vectors import norm as norm_of

State = dict[str, Any]


@dataclass(frozen=True)
class Transform(ABC):
    """Base of the transforms. A transform is a frozen value; its state is a dict of arrays and numbers."""

    def init(self, x: Vector) -> State:
        """Return the transform's state at the start of a run."""
        return {}

    @abstractmethod
    def apply(self, state: State, g: Vector, arrival: Arrival) -> Vector:
        """Return the changed update. A transform must not write to ``g``."""


@dataclass(frozen=True)
class Clip(Transform):
    """g · min(1, G / ‖g‖): no update is longer than ``norm`` = G."""

    norm: float

    def __post_init__(self) -> None:
        positive("norm", self.norm)

    def apply(self, state: State, g: Vector, arrival: Arrival) -> Vector:
        length = norm_of(g)
        return g if length <= self.norm else g * (self.norm / length)


@dataclass(frozen=True)
class Compensate(Transform):
    """g + λ g⊙g⊙(x_t - x_{t-τ}): a first-order guess of the gradient at x_t (DC-ASGD; Zheng et al. 2017).

    Constant λ, or with ``adaptive`` λ = λ0 / √(mean square + 1e-7), the running mean square of g coordinate by
    coordinate with the given decay.
    """

    strength: float = 0.04
    adaptive: bool = False
    decay: float = 0.95

    def __post_init__(self) -> None:
        nonnegative("strength", self.strength)
        fraction("decay", self.decay)

    def init(self, x: Vector) -> State:
        return {"mean_square": np.zeros_like(x)} if self.adaptive else {}

    def apply(self, state: State, g: Vector, arrival: Arrival) -> Vector:
        strength: float | Vector = self.strength
        if self.adaptive:
            mean_square = state["mean_square"]
            mean_square *= self.decay
            mean_square += (1 - self.decay) * g * g
            strength = self.strength / np.sqrt(mean_square + 1e-7)
        return g + strength * g * g * (arrival.x - arrival.point)


@dataclass(frozen=True)
class Interpolate(Transform):
    """g + (x_t - x_{t-τ}), so that a step α moves to (1 - α) x_t + α x_worker (FedAsync; Xie et al. 2019).

    The update is the plain difference x_{t-τ} - x_worker of local steps.
    """

    def apply(self, state: State, g: Vector, arrival: Arrival) -> Vector:
        return g + (arrival.x - arrival.point)
