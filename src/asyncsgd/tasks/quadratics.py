"""Quadratics, for which all constants of the theory are known exactly."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive
from asyncsgd.core.validate import count, nonnegative, positive
from asyncsgd.tasks.base import ALL, NO_INTEGERS, QUADRATIC, BuiltIn, Floats, scratch_rows


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Quadratic(BuiltIn):
    """f_i(x) = ½xᵀHx - b_i·x, gradients with additive noise of total variance σ², or multiplicative noise.

    All constants are exact, and the same at every x, but one: multiplicative noise g·(1 + m·z) has the variance
    m²‖g‖², which no number bounds. ``noise_variance`` is then that at x_0, the largest over workers, and not `exact`.

    See docs/users/federated.md for `with_examples`, which weighs the workers.
    """

    hessian: Floats
    offsets: Floats
    """b_i, one row per worker."""
    noise: float
    """σ of the additive noise."""
    multiplicative: float
    """Standard deviation of the factor on the whole gradient."""
    counts: tuple[int, ...] | None = None
    """Examples of every worker, by which f weighs the f_i; None: f is their plain mean."""

    def examples(self, worker: int, seed: int, batch: int | None = None) -> int | None:
        """Return the examples that a job of this worker reports, None if the task has none."""
        return None if self.counts is None else self.counts[worker]

    def with_examples(self, examples: Sequence[int]) -> Quadratic:
        """Return the same f_i with f = Σ n_i f_i / Σ n_i. The jobs of worker i report n_i examples.

        `asyncsgd.Method.weighted` uses these reports. The optimum, the minimum and the ζ_i are those of the new f.

        Args:
            examples: The number n_i of every worker, 1 or more.

        >>> task = quadratic(dim=2, workers=2, heterogeneity=1.0).with_examples([900, 100])
        >>> bool(np.allclose(task.hessian @ task.optimum, 0.9 * task.offsets[0] + 0.1 * task.offsets[1]))
        True
        """
        counts = tuple(examples)
        for value in counts:
            count("examples", value)
        if len(counts) != self.workers:
            fix = "give one number per worker"
            raise BadParameter("examples", list(counts), f"has {len(counts)} numbers for {self.workers} workers", fix)
        minimum = None if self.heterogeneous else self.minimum
        numbers = self.smoothness, self.noise, self.multiplicative
        return _build(self.hessian, self.offsets, *numbers, minimum=minimum, counts=tuple(map(int, counts)))


def quadratic(
    dim: int = 10,
    eigenvalues: tuple[float, float] = (1.0, 2.0),
    workers: int = 1,
    noise: float = 0.0,
    heterogeneity: float | Sequence[float] = 0.0,
    multiplicative: float = 0.0,
    seed: int = 0,
    rotate: bool = True,
) -> Quadratic:
    """Make a quadratic task with eigenvalues equally spaced in a range and b ~ N(0, 1).

    Args:
        dim: Number of coordinates.
        eigenvalues: Smallest and largest eigenvalue of the Hessian.
        workers: The number of workers.
        noise: σ of the additive Gaussian noise: variance σ² in all, σ²/dim per coordinate.
        heterogeneity: A number ζ: the workers' b_i are scattered so that the mean of ζ_i² is ζ². Or one ζ_i per
            worker, which then hold exactly; none may exceed the sum of the others, as Σ(b_i - b) = 0.
        multiplicative: Standard deviation m of a factor 1 + m·z, z ~ N(0, 1), on the whole gradient.
        seed: Seed for the rotation and the b_i.
        rotate: Whether the eigenvectors are random (a dense Hessian) or the axes.

    >>> task = quadratic(dim=3, eigenvalues=(1, 4), workers=2, heterogeneity=0.5)
    >>> task.smoothness, round(float(task.heterogeneity.mean()), 12)
    (4.0, 0.25)

    See docs/users/researcher.md for simulations, sweeps and comparisons on such a task.
    """
    count("dim", dim)
    count("workers", workers)
    nonnegative("noise", noise)
    nonnegative("multiplicative", multiplicative)
    try:
        low, high = eigenvalues
    except (TypeError, ValueError):
        raise BadParameter("eigenvalues", eigenvalues, "is not a range", "pass (smallest, largest)") from None
    positive("eigenvalues", low)
    positive("eigenvalues", high)
    spectrum = np.linspace(min(low, high), max(low, high), dim)
    random = np.random.Generator(np.random.Philox(key=derive(seed)))
    hessian = _hessian(spectrum, random if rotate else None)
    offsets = random.standard_normal(dim) + _shifts(heterogeneity, workers, dim, random)
    return _build(hessian, offsets, float(spectrum[-1]), noise, multiplicative)


def paper_quadratic(seed: int = 0, dim: int = 10, workers: int = 2) -> Quadratic:
    """Make ½‖Ax - b‖², A symmetric with eigenvalues equally spaced in [1, 2], b ~ N(0, 1): the paper's function (i).

    That is ½xᵀHx - c·x + ½‖b‖² with H = A², c = Ab; f* = 0.

    Args:
        seed: Seed for A and b.
        dim: The number of parameters.
        workers: The number of workers; all have the same function.

    >>> paper_quadratic().smoothness
    4.0

    See docs/users/researcher.md for simulations, sweeps and comparisons on such a task.
    """
    count("dim", dim)
    count("workers", workers)
    random = np.random.Generator(np.random.Philox(key=derive(seed)))
    spectrum = np.linspace(1.0, 2.0, dim)
    vectors = _rotation(dim, random)
    target = random.standard_normal(dim)
    centre = (vectors * spectrum) @ (vectors.T @ target)
    hessian = _symmetric((vectors * spectrum**2) @ vectors.T)
    return _build(hessian, np.tile(centre, (workers, 1)), float(spectrum[-1] ** 2), 0.0, 0.0, minimum=0.0)


def _build(
    hessian: Floats,
    offsets: Floats,
    smoothness: float,
    noise: float,
    multiplicative: float,
    minimum: float | None = None,
    counts: tuple[int, ...] | None = None,
) -> Quadratic:
    workers, dim = offsets.shape
    same = bool((offsets == offsets[0]).all())
    centre = offsets[0] if same else np.average(offsets, axis=0, weights=counts)
    best = np.linalg.solve(hessian, centre)
    centred = offsets - centre
    # At x_0 = 0 the gradient of worker i is -b_i.
    variance = float(noise) ** 2 + float(multiplicative) ** 2 * float((offsets**2).sum(axis=1).max())
    params = np.array([float(noise) / np.sqrt(dim), float(multiplicative)])
    return Quadratic(
        workers=workers,
        dimension=dim,
        smoothness=smoothness,
        noise_variance=variance,
        heterogeneity=(centred * centred).sum(axis=1),
        optimum=best,
        minimum=float(-0.5 * centre @ best) if minimum is None else minimum,
        exact=ALL - {"noise_variance"} if multiplicative else ALL,
        heterogeneous=not same,
        deterministic=same and not noise and not multiplicative,
        lowered=(QUADRATIC, params, hessian, np.vstack([-offsets, -centre, best]), NO_INTEGERS, NO_INTEGERS),
        scratch_rows=scratch_rows(QUADRATIC, dim),
        hessian=hessian,
        offsets=offsets,
        noise=float(noise),
        multiplicative=float(multiplicative),
        counts=counts,
    )


def _rotation(dim: int, random: np.random.Generator) -> Floats:
    vectors, triangle = np.linalg.qr(random.standard_normal((dim, dim)))
    return np.asarray(vectors * np.sign(np.diag(triangle)))


def _symmetric(matrix: Floats) -> Floats:
    """Return the matrix made symmetric to the last bit, which the kernel relies on."""
    return np.ascontiguousarray((matrix + matrix.T) / 2)


def _hessian(spectrum: Floats, random: np.random.Generator | None) -> Floats:
    if random is None:
        return np.diag(spectrum)
    vectors = _rotation(len(spectrum), random)
    return _symmetric((vectors * spectrum) @ vectors.T)


def _shifts(heterogeneity: float | Sequence[float], workers: int, dim: int, random: np.random.Generator) -> Floats:
    """Return b_i - mean b, one row per worker."""
    if np.ndim(heterogeneity):
        return _closed(np.asarray(heterogeneity, float), workers, dim, random)
    nonnegative("heterogeneity", heterogeneity)
    shifts = random.standard_normal((workers, dim))
    if not heterogeneity:
        return np.zeros((workers, dim))
    if workers == 1:
        raise BadParameter("heterogeneity", heterogeneity, "needs several workers", "pass workers >= 2")
    shifts -= shifts.mean(axis=0)
    scale: float = heterogeneity / np.sqrt((shifts * shifts).sum() / workers)
    return shifts * scale


def _closed(lengths: Floats, workers: int, dim: int, random: np.random.Generator) -> Floats:
    """Return random vectors of given lengths whose sum is zero: a closed polygon."""
    if lengths.shape != (workers,):
        raise BadParameter(
            "heterogeneity", lengths.tolist(), f"has not one entry per worker ({workers})", "give one ζ_i each"
        )
    for value in lengths.tolist():
        nonnegative("heterogeneity", value)
    if 2 * lengths.max() > lengths.sum() * (1 + 1e-12):
        raise BadParameter(
            "heterogeneity",
            lengths.tolist(),
            "is impossible: the deviations from the mean add up to zero, so no ζ_i exceeds the sum of the others",
            "lower the largest",
        )
    longest = float(lengths.max())
    if not longest:
        return np.zeros((workers, dim))
    lengths = lengths / longest
    # The longest first, each to the shortest of three sides: they always form a triangle.
    sides, member = np.zeros(3), np.zeros(workers, int)
    for i in np.argsort(-lengths, kind="stable"):
        member[i] = int(np.argmin(sides))
        sides[member[i]] += lengths[i]
    a, b, c = sides
    cosine = np.clip((c * c - a * a - b * b) / (2 * a * b), -1.0, 1.0)
    if dim == 1 and abs(cosine) < 1 - 1e-12:
        given = (longest * lengths).tolist()
        raise BadParameter("heterogeneity", given, "is impossible in one dimension", "pass dim >= 2")
    u = np.zeros((3, max(dim, 2)))
    u[0, 0], u[1, 0], u[1, 1] = 1.0, cosine, np.sqrt(1 - cosine * cosine)
    u[2] = -(a * u[0] + b * u[1]) / c if c > 1e-12 else 0.0
    shifts = lengths[:, None] * u[member, :dim]
    # Turn pairs about their sum, which keeps it and both lengths.
    for _ in range(4 * workers if dim > 1 and workers > 1 else 0):
        i, j = random.choice(workers, 2, replace=False)
        middle, half = (shifts[i] + shifts[j]) / 2, (shifts[i] - shifts[j]) / 2
        size = float(middle @ middle)
        along = (half @ middle) / size * middle if size > 1e-20 else np.zeros(dim)
        across, turned = half - along, random.standard_normal(dim)
        turned -= (turned @ middle) / size * middle if size > 1e-20 else 0.0
        turned *= np.linalg.norm(across) / np.linalg.norm(turned)
        shifts[i], shifts[j] = middle + along + turned, middle - along - turned
    shifts -= shifts.mean(axis=0)
    return np.asarray(longest * shifts)
