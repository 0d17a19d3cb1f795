"""What the built-in tasks share: constants, and compiled kernels behind the three methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Vector
from asyncsgd.tasks.base import check_job

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Lowered = tuple[int, Floats, Floats, Floats, Integers, Integers]

NO_INTEGERS = np.empty(0, np.int64)
NO_FLOATS = np.empty((0, 0))
ALL = frozenset({"smoothness", "noise_variance", "heterogeneity", "optimum", "minimum"})


@dataclass(frozen=True, eq=False, kw_only=True)
class BuiltIn:
    """A task with constants and compiled kernels. ``update`` runs the kernel of `simulate` with one lane."""

    workers: int
    dimension: int
    smoothness: float
    """L: every f_i has gradients that are L-Lipschitz."""
    noise_variance: float
    """σ²: E‖g_i(x) - ∇f_i(x)‖², the largest over workers."""
    heterogeneity: Floats
    """ζ_i² = ‖∇f_i(x) - ∇f(x)‖², one per worker."""
    optimum: Floats | None
    """x*, None if there is none or it is unknown."""
    minimum: float | None
    """f*, None if it is unknown."""
    exact: frozenset[str]
    """Which of the five constants are exact; the docstring of each task says what the others are."""
    heterogeneous: bool
    """Whether the workers' functions differ."""
    deterministic: bool
    """Whether every ``update`` is ∇f(x) itself, bit for bit."""
    lowered: Lowered
    """The task as plain arrays: see `asyncsgd.tasks.layout`."""
    scratch_rows: int
    """Rows of lanes that the kernels need to work in."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dimension={self.dimension}, workers={self.workers})"

    def initial(self) -> Vector:
        """The origin."""
        return np.zeros(self.dimension)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """The stochastic gradient of f_worker at x; noise and mini-batch are drawn from ``seed``."""
        from asyncsgd.tasks import kernels  # loads numba

        check_job(worker, seed, self.workers)
        out = np.empty((self.dimension, 1))
        seeds = np.array([int(seed) & 0xFFFFFFFFFFFFFFFF], np.uint64)
        kernels.gradient(self.lowered, self._lane(x), int(worker), seeds, out, self._scratch(), (0,))
        return out[:, 0]

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """The "loss" f(x) - f* (f(x) if f* is unknown), the "gradient_norm" ‖∇f(x)‖, the "distance" ‖x - x*‖."""
        from asyncsgd.tasks import kernels  # loads numba

        point, result, scratch, full = self._lane(x), np.empty(1), self._scratch(), np.empty((self.dimension, 1))
        kernels.loss(self.lowered, point, result, scratch, (0,))
        values = {"loss": float(result[0])}
        kernels.full_gradient(self.lowered, point, full, scratch, (0,))
        kernels.norm(full, self.dimension, result, (0,))
        values["gradient_norm"] = float(result[0])
        if self.optimum is not None:
            kernels.distance(point, self.optimum, self.dimension, result, (0,))
            values["distance"] = float(result[0])
        return values

    def _lane(self, x: Vector) -> Floats:
        """A copy of x as one lane: a copy, since x may be a read-only view, which numba takes for another type."""
        lane = np.array(x, np.float64)
        if lane.shape != (self.dimension,):
            raise BadParameter("x", f"shape {lane.shape}", "does not fit the task", f"pass {self.dimension} numbers")
        return lane.reshape(self.dimension, 1)

    def _scratch(self) -> Floats:
        return np.zeros((self.scratch_rows, 1))
