"""How the server changes an update before it uses it: clipping, delay compensation, interpolation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.events import Arrival
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.validate import fraction, nonnegative, positive
from asyncsgd.core.vectors import Vector, blocks

State = dict[str, Any]


@dataclass(frozen=True)
class Transform(ABC):
    """Base of the transforms. A transform is a frozen value; its state is a dict of arrays and numbers."""

    def init(self, x: Vector) -> State:
        """Return the transform's state at the start of a run."""
        return {}

    @abstractmethod
    def apply(self, state: State, g: Vector, arrival: Arrival) -> Vector:
        """Return the changed update. A transform must not write to ``g``.

        If ``apply`` has a further argument ``kernels``, the server passes its `asyncsgd.core.kernels.Kernels`. The
        result may be ``kernels.scratch(g)``, which may be ``g`` itself if an earlier transform returned it.
        """


@dataclass(frozen=True)
class Clip(Transform):
    """g · min(1, G / ‖g‖): no update is longer than ``norm`` = G."""

    norm: float

    def __post_init__(self) -> None:
        positive("norm", self.norm)

    def apply(self, state: State, g: Vector, arrival: Arrival, kernels: Kernels | None = None) -> Vector:
        return clip_to(self.norm, g, kernels or Kernels())


def clip_to(norm: float, g: Vector, kernels: Kernels) -> Vector:
    """Return g, or ``kernels.scratch(g)`` with g scaled down to this norm if g is longer."""
    length = kernels.norm(g)
    if length <= norm:
        return g
    clipped = kernels.scratch(g)
    kernels.scale(g, norm / length, clipped)
    return clipped


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

    def apply(self, state: State, g: Vector, arrival: Arrival, kernels: Kernels | None = None) -> Vector:
        changed = (kernels or Kernels()).scratch(g)
        strength: float | Vector = self.strength
        for part in blocks(len(g)):
            some = g[part]
            if self.adaptive:
                mean_square = state["mean_square"][part]
                mean_square *= self.decay
                mean_square += (1 - self.decay) * some * some
                strength = self.strength / np.sqrt(mean_square + 1e-7)
            changed[part] = some + strength * some * some * (arrival.x[part] - arrival.point[part])
        return changed


@dataclass(frozen=True)
class Interpolate(Transform):
    """g + (x_t - x_{t-τ}), so that a step α moves to (1 - α) x_t + α x_worker (FedAsync; Xie et al. 2019).

    The update is the plain difference x_{t-τ} - x_worker of local steps.
    """

    def apply(self, state: State, g: Vector, arrival: Arrival, kernels: Kernels | None = None) -> Vector:
        changed = (kernels or Kernels()).scratch(g)
        for part in blocks(len(g)):
            np.add(g[part], arrival.x[part] - arrival.point[part], out=changed[part])
        return changed
