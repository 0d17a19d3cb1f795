"""Optimizers for few, large and late updates: Delayed Nesterov, momentum look-ahead, and Muon."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrival
from asyncsgd.core.kernels import AdamNumbers, Kernels
from asyncsgd.core.layout import Layout, check_patterns, matches
from asyncsgd.core.optimizers import Optimizer, State
from asyncsgd.core.validate import count, fraction, is_number
from asyncsgd.core.vectors import Vector, blocks


@dataclass(frozen=True)
class DelayedNesterov(Optimizer):
    """Every arrival moves the model by its N-th part; the momentum is refreshed and applied every N-th one.

    With N = ``every``, c = ``activation`` and B the sum of the directions since the last refresh, the k-th move is::

        B ← B + d
        x ← x - η (c β m + d/N)                                            if N does not divide k
        m ← β m + B/N,   x ← x - η ((1 - cN + c) β m + d/N),   B ← 0       if N divides k

    So N moves apply β m once in all. With N = 1 it is Nesterov's momentum; N updates that start from the same model end
    where one round of DiLoCo ends, for c = 0. (Liu et al. 2024, "Asynchronous local-SGD training for language
    modeling".)
    """

    beta: float = 0.9
    every: int | None = None
    activation: float = 0.0
    local: ClassVar[bool] = False

    def __post_init__(self) -> None:
        fraction("beta", self.beta)
        if self.every is not None:
            count("every", self.every)
        most = 1.0 if self.every is None else 1 / self.every
        if not is_number(self.activation) or not 0 <= self.activation <= most:
            shown = "1/every" if self.every is None else f"1/{self.every}"
            fix = f"pass 0 <= activation <= {shown}"
            raise BadParameter("activation", self.activation, f"must lie in [0, {shown}]", fix)

    def bind(self, workers: int) -> Optimizer:
        return self if self.every is not None else replace(self, every=workers)

    def init(self, x: Vector) -> State:
        if self.every is None:
            fix = "give the server method.bind(workers, iterations)"
            raise BadParameter("every", None, "needs the number of workers", fix)
        return {"m": np.zeros_like(x), "total": np.zeros_like(x), "count": 0}

    def vectors(self) -> int:
        return 2

    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        n, beta, step = int(self.every or 1), float(self.beta), float(step)
        m, total = state["m"], state["total"]
        refresh = (state["count"] + 1) % n == 0
        share = self.activation
        if refresh:
            share = 1.0 if n == 1 else 1 - self.activation * n + self.activation
        for part in blocks(len(x)):
            total[part] += d[part]
            if refresh:
                m[part] *= beta
                m[part] += total[part] / n
                total[part] = 0
            move = d[part] / n
            if share:
                move = share * beta * m[part] + move
            np.subtract(x[part], step * move, out=out[part])
        state["count"] += 1


@dataclass(frozen=True)
class LookAhead(Optimizer):
    """m ← γ m + (1-γ) d, x ← x - η (d + γ m): momentum that is damped, because late updates hold part of it already.

    With ``ahead`` workers start from x - η γ m, where the model will be soon, instead of x. (Ajanthan et al. 2025,
    "Momentum look-ahead for asynchronous distributed low-communication training".)
    """

    gamma: float = 0.9
    ahead: bool = False
    local: ClassVar[bool] = False

    def __post_init__(self) -> None:
        fraction("gamma", self.gamma)

    def init(self, x: Vector) -> State:
        return {"m": np.zeros_like(x), **({"model": x.copy()} if self.ahead else {})}

    def output(self, state: State, x: Vector) -> Vector:
        return state["model"] if self.ahead else x

    def step(self, state: State, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        gamma, step = float(self.gamma), float(step)
        m, model = state["m"], state.get("model")
        for part in blocks(len(x)):
            m[part] *= gamma
            m[part] += (1 - gamma) * d[part]
            if model is None:
                np.subtract(x[part], step * (d[part] + gamma * m[part]), out=out[part])
            else:
                model[part] -= step * (d[part] + gamma * m[part])
                np.subtract(model[part], step * (gamma * m[part]), out=out[part])


@dataclass(frozen=True)
class Muon(Optimizer):
    """Momentum whose direction is made orthogonal, matrix by matrix; AdamW for all other parameters.

    For a matrix W of a rows and b columns: M ← β M + G, O = NewtonSchulz(G + β M) ≈ U Vᵀ of its singular value
    decomposition, W ← W - η · 0.2 √max(a, b) · O. The factor gives a step the size of one of AdamW, so that one step
    size serves both. Parameters that are not matrices, and those whose name matches a pattern of ``others``, take a
    step of AdamW with β1 = 0.9 and β2 = 0.999. (Jordan et al. 2024; the factor is of Liu et al. 2025, "Muon is scalable
    for LLM training".)
    """

    beta: float = 0.95
    others: tuple[str, ...] = ("embed", "head")
    matrices: tuple[tuple[int, int, int], ...] | None = None
    """(offset, rows, columns) of the matrices, once `bind_layout` has found them."""

    def __post_init__(self) -> None:
        fraction("beta", self.beta)
        object.__setattr__(self, "others", check_patterns("others", self.others))

    def bind_layout(self, layout: Layout | None) -> Optimizer:
        if layout is None:
            if self.matrices is not None:
                return self
            fix = "use a task with layout(), such as asgd.tasks.torch(...), or another optimizer"
            raise BadParameter("muon", self.beta, "needs matrices, and the parameters of this task have no shapes", fix)
        found = [
            (offset, *shape)
            for name, offset, shape in sorted(layout, key=lambda entry: entry[1])
            if len(shape) == 2 and min(shape) and not any(matches(pattern, name) for pattern in self.others)
        ]
        if not found:
            fix = "use asgd.optimizers.adamw(), or pass other patterns in others"
            raise BadParameter("muon", self.beta, "finds no matrix among the parameters", fix)
        return replace(self, matrices=tuple(found))

    def init(self, x: Vector) -> State:
        if self.matrices is None:
            fix = "give the server method.bind_layout(layout)"
            raise BadParameter("muon", self.beta, "needs the layout of the model", fix)
        return {"m": np.zeros_like(x), "v": np.zeros_like(x), "count": 0}

    def vectors(self) -> int:
        return 2

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
        m, v, kernels, step = state["m"], state["v"], kernels or Kernels(), float(step)
        numbers = AdamNumbers(0.9, 0.999, 1e-8, 1 - 0.9 ** state["count"], 1 - 0.999 ** state["count"], step, 1.0)
        done = 0
        for offset, rows, columns in (*(self.matrices or ()), (len(x), 0, 0)):
            if done < offset:
                rest = slice(done, offset)
                kernels.adamw(x[rest], d[rest], (m[rest], v[rest], None), numbers, (), out[rest])
            done = offset + rows * columns
            if rows:
                part = slice(offset, done)
                m[part] *= self.beta
                m[part] += d[part]
                direction = orthogonal((d[part] + self.beta * m[part]).reshape(rows, columns))
                scale = step * 0.2 * math.sqrt(max(rows, columns))
                np.subtract(x[part], scale * direction.reshape(-1), out=out[part])


def orthogonal(matrix: Vector) -> Vector:
    """Return nearly U Vᵀ of the matrix's singular value decomposition, by five steps of a Newton-Schulz iteration.

    Singular values above about a hundredth of the matrix's norm end between 0.6 and 1.3.

    >>> np.round(np.linalg.svd(orthogonal(np.array([[3.0, 1.0], [0.0, 0.5]])))[1], 1)
    array([0.9, 0.7])
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if tall else matrix
    found = found / (float(np.linalg.norm(found)) + 1e-7)
    for _ in range(5):
        square = found @ found.T
        found = a * found + (b * square + c * (square @ square)) @ found
    return found.T if tall else found
