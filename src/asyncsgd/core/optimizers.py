"""How a direction moves the flat model: plain SGD, momentum, AdamW, and the optimizers of two papers."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrival
from asyncsgd.core.kernels import AdamNumbers, Kernels
from asyncsgd.core.layout import Layout, Ranges, check_patterns, excluded
from asyncsgd.core.validate import fraction, nonnegative, positive
from asyncsgd.core.vectors import Vector, blocks, subtract_scaled

State = dict[str, Any]


@dataclass(frozen=True)
class Optimizer(ABC):
    """Base of the optimizers. An optimizer is a frozen value; its state is a dict of arrays and numbers.

    See docs/howto/method.md for an optimizer of your own.
    """

    local: ClassVar[bool] = True
    """Whether it can take local steps in a worker, where there are no arrivals."""

    @property
    def adaptive(self) -> bool:
        """Whether its first steps are as long as the step size, whatever the gradient, as those of Adam are."""
        return False

    def bind(self, workers: int) -> Optimizer:
        """Return the optimizer for a run that starts with this many workers; most do not depend on it."""
        return self

    def bind_layout(self, layout: Layout | None) -> Optimizer:
        """Return the optimizer for a model with this layout; most optimizers treat all parameters alike.

        Args:
            layout: The name, offset and shape of every parameter, or None if the task's parameters have no names.
        """
        return self

    def init(self, x: Vector) -> State:
        """Return the optimizer's state at the start of a run."""
        return {}

    def vectors(self) -> int:
        """Return the number of vectors of the model's length that the state holds."""
        return sum(isinstance(value, np.ndarray) for value in self.init(np.zeros(1)).values())

    def output(self, state: State, x: Vector) -> Vector:
        """Return the model that the state stands for; most optimizers hand it out, so it is x itself."""
        return x

    @abstractmethod
    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        """Write the moved model into ``out``, which may be x itself.

        ``d`` is one update or a mean of several, and ``step`` is the step of the whole move;
        `asyncsgd.core.aggregation` describes what each rule passes. An optimizer must not write to ``d``. If ``step``
        has a further argument ``kernels``, the server passes its `asyncsgd.core.kernels.Kernels`.
        """


@dataclass(frozen=True)
class SGD(Optimizer):
    """x ← x - η d, one pass over x."""

    def step(
        self,
        state: State,
        x: Vector,
        d: Vector,
        step: float,
        out: Vector,
        arrival: Arrival,
        kernels: Kernels | None = None,
    ) -> None:
        (kernels or Kernels()).subtract(x, step, d, out)


@dataclass(frozen=True)
class Momentum(Optimizer):
    """m ← β m + d; x ← x - η m, or with ``nesterov`` x ← x - η (d + β m)."""

    beta: float = 0.9
    nesterov: bool = False

    def __post_init__(self) -> None:
        fraction("beta", self.beta)

    def init(self, x: Vector) -> State:
        return {"m": np.zeros_like(x)}

    def step(
        self,
        state: State,
        x: Vector,
        d: Vector,
        step: float,
        out: Vector,
        arrival: Arrival,
        kernels: Kernels | None = None,
    ) -> None:
        (kernels or Kernels()).momentum(x, d, state["m"], step, self.beta, self.nesterov, out)


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with bias correction (Kingma and Ba 2015) and decoupled weight decay λ (Loshchilov and Hutter 2019).

    m ← β1 m + (1-β1) d, v ← β2 v + (1-β2) d², x ← (1 - η λ) x - η m̂ / (√v̂ + ε), where m̂ = m/(1-β1^t) and
    v̂ = v/(1-β2^t) at the t-th move. With ``amsgrad`` the largest v so far takes the place of v. Parameters whose name
    matches a pattern of ``exclude`` do not decay: `bind_layout` turns the names into ``ranges`` of the flat model.
    """

    beta1: float = 0.9
    beta2: float = 0.999
    epsilon: float = 1e-8
    amsgrad: bool = False
    weight_decay: float = 0.0
    exclude: tuple[str, ...] = ()
    ranges: Ranges | None = None

    @property
    def adaptive(self) -> bool:
        return True

    def __post_init__(self) -> None:
        fraction("beta1", self.beta1)
        fraction("beta2", self.beta2)
        positive("epsilon", self.epsilon)
        nonnegative("weight_decay", self.weight_decay)
        object.__setattr__(self, "exclude", check_patterns("exclude", self.exclude))

    def bind_layout(self, layout: Layout | None) -> Optimizer:
        ranges = excluded(self.exclude, self.ranges, layout)
        return self if ranges == self.ranges else replace(self, ranges=ranges)

    def init(self, x: Vector) -> State:
        check_bound(self.exclude, self.ranges, len(x))
        largest = {"largest": np.zeros_like(x)} if self.amsgrad else {}
        return {"m": np.zeros_like(x), "v": np.zeros_like(x), "count": 0, **largest}

    def vectors(self) -> int:
        return 3 if self.amsgrad else 2

    def step(
        self,
        state: State,
        x: Vector,
        d: Vector,
        step: float,
        out: Vector,
        arrival: Arrival,
        kernels: Kernels | None = None,
    ) -> None:
        state["count"] += 1
        numbers = AdamNumbers(
            self.beta1,
            self.beta2,
            self.epsilon,
            1 - self.beta1 ** state["count"],
            1 - self.beta2 ** state["count"],
            float(step),
            1 - float(step) * self.weight_decay,
        )
        memory = (state["m"], state["v"], state.get("largest"))
        (kernels or Kernels()).adamw(x, d, memory, numbers, self.ranges or (), out)


def check_bound(exclude: tuple[str, ...], ranges: Ranges | None, n: int) -> None:
    """Raise if an optimizer with excluded parameters does not know where in a model of length n they are."""
    if exclude and ranges is None:
        fix = "give the server method.bind_layout(layout)"
        raise BadParameter("exclude", exclude, "needs the layout of the model", fix)
    if ranges and ranges[-1][1] > n:
        fix = "bind the layout of this model: method.bind_layout(layout)"
        raise BadParameter("ranges", ranges[-1], f"lies beyond a model of length {n}", fix)


@dataclass(frozen=True)
class AdaDelayCoordinates(Optimizer):
    """x_j ← x_j - η d_j / (L + c_j √(t + τ)), t counted from 1 (Sra et al. 2016).

    c_j = √(mean over i ≤ t of i/(i+τ_i) d_j²), where d is the gradient that arrived at i.
    """

    smoothness: float = 1.0
    local: ClassVar[bool] = False

    def __post_init__(self) -> None:
        positive("smoothness", self.smoothness)

    def init(self, x: Vector) -> State:
        return {"total": np.zeros_like(x)}

    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        t, tau, total = arrival.iteration + 1, arrival.delay, state["total"]
        for part in blocks(len(x)):
            total[part] += (t / (t + tau)) * d[part] * d[part]
            scale = self.smoothness + np.sqrt(total[part] / t) * math.sqrt(t + tau)
            subtract_scaled(x[part], step, d[part] / scale, out[part])


@dataclass(frozen=True)
class DelayedAverage(Optimizer):
    """Workers compute at the weighted running average of w: w ← w - η α_s d, x ← average (Aviv et al. 2021).

    α_t = 1 ("uniform") or t + 1 ("linear"); s is the iteration the gradient was computed at. For convex tasks.
    """

    weights: Literal["linear", "uniform"] = "uniform"
    local: ClassVar[bool] = False

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
        for part in blocks(len(x)):
            subtract_scaled(x[part], -(alpha / state["total"]), w[part] - x[part], out[part])
