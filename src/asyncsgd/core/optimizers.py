"""How a direction moves the flat model: plain SGD, momentum, Adam, and the optimizers of two papers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrival
from asyncsgd.core.validate import fraction, positive
from asyncsgd.core.vectors import Vector, subtract_scaled

State = dict[str, Any]


@dataclass(frozen=True)
class Optimizer(ABC):
    """Base of the optimizers. An optimizer is a frozen value; its state is a dict of arrays and numbers."""

    def init(self, x: Vector) -> State:
        """Return the optimizer's state at the start of a run."""
        return {}

    @abstractmethod
    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        """Write the moved model into ``out``, which may be x itself.

        ``d`` is one update or a mean of several, and ``step`` is the step of the whole move;
        `asyncsgd.core.aggregation` describes what each rule passes. An optimizer must not write to ``d``.
        """


@dataclass(frozen=True)
class SGD(Optimizer):
    """x ← x - η d, one pass over x."""

    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        subtract_scaled(x, step, d, out)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """m ← β m + d; x ← x - η m, or with ``nesterov`` x ← x - η (d + β m)."""

    beta: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        fraction("beta", self.beta)

    def init(self, x: Vector) -> State:
        return {"m": np.zeros_like(x)}

    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        m = state["m"]
        m *= self.beta
        m += d
        subtract_scaled(x, step, d + self.beta * m if self.nesterov else m, out)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam (Kingma and Ba 2015) with bias correction; with ``amsgrad`` the largest v so far is used."""

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    amsgrad: bool = False

    def __post_init__(self) -> None:
        fraction("beta1", self.beta1)
        fraction("beta2", self.beta2)
        positive("epsilon", self.epsilon)

    def init(self, x: Vector) -> State:
        largest = {"largest": np.zeros_like(x)} if self.amsgrad else {}
        return {"m": np.zeros_like(x), "v": np.zeros_like(x), "count": 0, **largest}

    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        m, v = state["m"], state["v"]
        state["count"] += 1
        m *= self.beta1
        m += (1 - self.beta1) * d
        v *= self.beta2
        v += (1 - self.beta2) * d * d
        if self.amsgrad:
            v = np.maximum(state["largest"], v, out=state["largest"])
        mean = m / (1 - self.beta1 ** state["count"])
        spread = np.sqrt(v / (1 - self.beta2 ** state["count"])) + self.epsilon
        subtract_scaled(x, step, mean / spread, out)


@dataclass(frozen=True)
class AdaDelayCoordinates(Optimizer):
    """x_j ← x_j - η d_j / (L + c_j √(t + τ)), t counted from 1 (Sra et al. 2016).

    c_j = √(mean over i ≤ t of i/(i+τ_i) d_j²), where d is the gradient that arrived at i.
    """

    smoothness: float = 1.0

    def __post_init__(self) -> None:
        positive("smoothness", self.smoothness)

    def init(self, x: Vector) -> State:
        return {"total": np.zeros_like(x)}

    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        t, tau, total = arrival.iteration + 1, arrival.delay, state["total"]
        total += (t / (t + tau)) * d * d
        scale = self.smoothness + np.sqrt(total / t) * math.sqrt(t + tau)
        subtract_scaled(x, step, d / scale, out)


@dataclass(frozen=True)
class DelayedAverage(Optimizer):
    """Workers compute at the weighted running average of w: w ← w - η α_s d, x ← average (Aviv et al. 2021).

    α_t = 1 ("uniform") or t + 1 ("linear"); s is the iteration the gradient was computed at. For convex tasks.
    """

    weights: Literal["linear", "uniform"] = "uniform"

    def __post_init__(self) -> None:
        if self.weights not in ("linear", "uniform"):
            raise BadParameter("weights", self.weights, "is not a weighting", 'pass "linear" or "uniform"')

    def alpha(self, t: int) -> float:
        """α_t."""
        return float(t + 1) if self.weights == "linear" else 1.0

    def init(self, x: Vector) -> State:
        return {"w": x.copy(), "total": self.alpha(0)}

    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        w, t = state["w"], arrival.iteration
        subtract_scaled(w, step * self.alpha(t - arrival.delay), d, w)
        alpha = self.alpha(t + 1)
        state["total"] += alpha
        subtract_scaled(x, -(alpha / state["total"]), w - x, out)
