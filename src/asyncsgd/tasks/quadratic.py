"""Quadratics, for which everything the theory speaks of is known exactly."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import count, nonnegative, positive
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Vector
from asyncsgd.core.random import derive

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Quadratic:
    """f_i(x) = ½ Σ_j λ_j x_j² - b_i·x, gradients with additive Gaussian noise of total variance σ².

    Written in the eigenbasis of its Hessian, which loses nothing: SGD and every method here that treats the
    coordinates alike commute with rotations.
    """

    eigenvalues: Floats
    offsets: Floats
    """b_i, one row per worker."""
    noise: float
    """σ."""

    @property
    def smoothness(self) -> float:
        """L, the largest eigenvalue."""
        return float(self.eigenvalues[-1])

    @property
    def noise_variance(self) -> float:
        """σ²."""
        return self.noise**2

    @property
    def heterogeneity(self) -> Floats:
        """ζ_i² = ‖b_i - mean b‖², exact and the same at every x."""
        centred = self.offsets - self.offsets.mean(axis=0)
        squares: Floats = (centred * centred).sum(axis=1)
        return squares

    @property
    def heterogeneous(self) -> bool:
        """Whether the workers' functions differ."""
        return bool((self.offsets != self.offsets[0]).any())

    @property
    def optimum(self) -> Floats:
        """x*."""
        best: Floats = self.offsets.mean(axis=0) / self.eigenvalues
        return best

    @property
    def minimum(self) -> float:
        """f*."""
        return self._loss(self.optimum)

    def initial(self) -> Vector:
        """The origin."""
        return np.zeros(self.eigenvalues.shape[0])

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """∇f_i(x) plus noise drawn from ``seed``."""
        gradient: Vector = self.eigenvalues * x - self.offsets[worker]
        if self.noise:
            random = np.random.Generator(np.random.Philox(key=seed))
            gradient += self.noise / np.sqrt(x.shape[0]) * random.standard_normal(x.shape[0])
        return gradient

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Loss above its minimum, norm of ∇f, distance from x*."""
        gradient = self.eigenvalues * x - self.offsets.mean(axis=0)
        return {
            "loss": self._loss(x) - self.minimum,
            "gradient_norm": float(np.linalg.norm(gradient)),
            "distance": float(np.linalg.norm(x - self.optimum)),
        }

    def _loss(self, x: Vector) -> float:
        return float(0.5 * (self.eigenvalues * x * x).sum() - self.offsets.mean(axis=0) @ x)


def quadratic(
    dim: int = 10,
    eigenvalues: tuple[float, float] = (1.0, 2.0),
    workers: int = 1,
    noise: float = 0.0,
    heterogeneity: float = 0.0,
    seed: int = 0,
) -> Quadratic:
    """A quadratic with eigenvalues equally spaced in a range, b ~ N(0, 1), σ = noise and mean ζ_i² = heterogeneity².

    >>> task = quadratic(dim=3, eigenvalues=(1, 4), workers=2, heterogeneity=0.5)
    >>> task.smoothness, round(float(task.heterogeneity.mean()), 12)
    (4.0, 0.25)
    """
    count("dim", dim)
    count("workers", workers)
    nonnegative("noise", noise)
    nonnegative("heterogeneity", heterogeneity)
    for value in eigenvalues:
        positive("eigenvalues", value)
    if heterogeneity and workers == 1:
        raise BadParameter("heterogeneity", heterogeneity, "needs several workers", "pass workers >= 2")
    random = np.random.Generator(np.random.Philox(key=derive(seed)))
    centre = random.standard_normal(dim)
    shifts = random.standard_normal((workers, dim))
    shifts -= shifts.mean(axis=0)
    size = np.sqrt((shifts * shifts).sum() / workers)
    shifts *= heterogeneity / size if size and heterogeneity else 0.0
    return Quadratic(np.linspace(min(eigenvalues), max(eigenvalues), dim), centre + shifts, float(noise))
