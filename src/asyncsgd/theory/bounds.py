"""The five bounds of Koloskova, Stich and Jaggi (2022) with explicit constants.

Each is A / (η N(T)) + B η + C η² on the (weighted) mean of E‖∇f(x_t)‖², for every step η up to a largest one. Each
docstring names the differences to the paper's text; the derivations are the paper's, with mistakes corrected. All
assume L-smooth f_i and noise of variance at most σ²; delays come from a run (a trace, or its ``delays``) or as given
numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.schedules import Schedule
from asyncsgd.core.validate import count, nonnegative, positive
from asyncsgd.theory.inputs import (
    Given,
    concurrency_and_maximum,
    concurrency_of,
    constants,
    measured,
    numbers,
    root,
    squares,
)
from asyncsgd.trace import Delays, Trace

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Bound:
    """A / (η · share · (T + extra)) + B η + C η² for η <= max_step, T counting gradients in whole batches.

    >>> bound = theorem1((8, 70), smoothness=2.0, gap=1.0, noise_variance=0.1)
    >>> step = bound.best_step(1000)
    >>> bound.at(1000, step) < bound.at(1000, step / 10)
    True

    See docs/theory.md for every bound.
    """

    theorem: str
    start: float
    """A: the term that grows with r0 = f(x_0) - f*."""
    linear: float
    """B: the term of the noise, and of heterogeneity if workers are sampled."""
    square: float
    """C: the term of the delays."""
    max_step: float
    share: float = 1.0
    extra: float = 1.0
    batch: int = 1
    """The number of gradients that move the model together."""
    condition: str = ""
    """Why ``max_step`` is smaller than the theorem's own, if the steps of a run require that."""

    def at(self, iterations: int, stepsize: float) -> float:
        """Return the bound after this many iterations with this step; raise if the step is too large for the theorem.

        The bound is infinite before the first batch is complete. A schedule is refused: Theorems 1 and 3 need a
        constant step, and Theorem 2 takes a schedule as ``weights`` of its largest step.
        """
        count("iterations", iterations)
        if isinstance(stepsize, Schedule):
            second = self.theorem == "Theorem 2"
            problem = "is not one number" if second else f"changes the step, and {self.theorem} needs a constant step"
            fix = "pass the largest step, with weights = trace.step / its maximum"
            raise BadParameter("stepsize", stepsize, problem, fix if second else f"use theorem2: {fix}")
        positive("stepsize", stepsize)
        if stepsize > self.max_step * (1 + 1e-12):
            why = f" ({self.condition})" if self.condition else ""
            fix = f"pass at most {self.max_step:.4g}"
            raise BadParameter("stepsize", stepsize, f"is too large for {self.theorem}{why}", fix)
        return self._pull(iterations) / stepsize + self.linear * stepsize + self.square * stepsize**2

    def _pull(self, iterations: int) -> float:
        weight = self.share * (iterations // self.batch * self.batch + self.extra)
        return self.start / weight if weight else math.inf

    def best_step(self, iterations: int) -> float:
        """Return the step with the smallest bound after this many iterations."""
        count("iterations", iterations)
        pull = self._pull(iterations)
        low, high = 0.0, self.max_step
        if self.linear + 2 * self.square * high <= pull / high**2:
            return high
        for _ in range(200):  # the slope -pull/η² + B + 2Cη grows with η: halve the interval
            middle = (low + high) / 2
            if self.linear + 2 * self.square * middle <= pull / middle**2:
                low = middle
            else:
                high = middle
        return low

    def iterations(self, epsilon: float) -> tuple[int, float]:
        """Return (iterations, step): the fewest iterations with a bound of at most ε, at their best step."""
        positive("epsilon", epsilon)
        reached = 1
        while self.at(reached, self.best_step(reached)) > epsilon:
            reached *= 2
            if reached > 1 << 62:
                raise BadParameter("epsilon", epsilon, "is out of reach", "pass a larger one")
        low = reached // 2
        while reached - low > 1:
            middle = (low + reached) // 2
            if self.at(middle, self.best_step(middle)) <= epsilon:
                reached = middle
            else:
                low = middle
        return reached, self.best_step(reached)


def theorem1(delays: Given, *, smoothness: float, gap: float, noise_variance: float) -> Bound:
    """Constant steps, homogeneous data: 2r0/(η(T+1)) + 4Lησ² for η <= 1/(2L max(1, √(τ_C τ_max))).

    The step must be the same in every iteration; for a schedule use `theorem2`.

    Args:
        delays: A trace, ``trace.delays``, or (τ_C, τ_max).
        smoothness: L, the Lipschitz constant of the gradient.
        gap: r0 = f(x_0) - f*, how far the first loss lies above the lowest one.
        noise_variance: σ², the variance of a stochastic gradient.

    >>> bound = theorem1((8, 70), smoothness=2.0, gap=1.0, noise_variance=0.0)
    >>> bound.best_step(1000) == bound.max_step
    True

    See docs/theory.md for all bounds, and for how delays are counted.
    """
    concurrency, longest = concurrency_and_maximum(delays)
    constants(smoothness, gap, noise_variance)
    return Bound(
        "Theorem 1",
        start=2 * gap,
        linear=4 * smoothness * noise_variance,
        square=0.0,
        max_step=1 / (2 * smoothness * root(concurrency, longest)),
    )


def theorem1_bounded(
    concurrency: Given | float, *, smoothness: float, gap: float, noise_variance: float, gradient_bound: float
) -> Bound:
    """Constant steps and ‖∇f‖ <= G: 4r0/(ηW_T) + 4Lησ² + 2L²τ_C²η²G² for η <= 1/(2Lτ_C).

    The weight of x_t is the number of jobs assigned at it; W_T = T + τ_C with a constant concurrency, which is assumed.
    The step must be the same in every iteration.

    Args:
        concurrency: τ_C, or a run, or (τ_C, τ_max).
        smoothness: L, the Lipschitz constant of the gradient.
        gap: r0 = f(x_0) - f*, how far the first loss lies above the lowest one.
        noise_variance: σ², the variance of a stochastic gradient.
        gradient_bound: G, the largest norm of a gradient.

    >>> bound = theorem1_bounded(8, smoothness=2.0, gap=1.0, noise_variance=0.5, gradient_bound=3.0)
    >>> bound.max_step, round(bound.at(1000, 0.01), 4)
    (0.03125, 0.8976)

    See docs/theory.md.
    """
    jobs = concurrency_of(concurrency)
    constants(smoothness, gap, noise_variance)
    nonnegative("gradient_bound", gradient_bound)
    return Bound(
        "Theorem 1 with bounded gradients",
        start=4 * gap,
        linear=4 * smoothness * noise_variance,
        square=2 * (smoothness * jobs * gradient_bound) ** 2,
        max_step=1 / (2 * smoothness * jobs),
        extra=jobs,
    )


def theorem2(
    concurrency: Given | float,
    *,
    smoothness: float,
    gap: float,
    noise_variance: float,
    weights: Sequence[float] | Floats | None = None,
    delays: Sequence[float] | NDArray[Any] | None = None,
) -> Bound:
    """Delay-adaptive steps η_t = η w_t: (2r0 + 4Lσ²Ση_t²)/Ση_t for η_t <= 1/(4L max(τ_C, τ_t)).

    The statement's η <= 1/(4L) is not enough: its lemma needs 1/(4Lτ_C). For weights up to τ_C/τ_t that is the whole
    condition. Larger ones, such as those of a threshold above τ_C, lower ``max_step`` to 1/(4L max w_t τ_t), and
    ``condition`` names the update that requires it.

    The steps may follow any schedule: pass ``weights=trace.step / trace.step.max()``, and take the largest step as η.

    Args:
        concurrency: τ_C, or a run, or (τ_C, τ_max).
        smoothness: L, the Lipschitz constant of the gradient.
        gap: r0 = f(x_0) - f*, how far the first loss lies above the lowest one.
        noise_variance: σ², the variance of a stochastic gradient.
        weights: The w_t of a run, ``trace.step / η``. By default those of the rule min(1, τ_C/τ_t) at the delays of the
            run; without a run, its worst case, Σ w_t >= (3/4 + 1/(4τ_C)) T.
        delays: The τ_t that belong to the weights; those of the trace, if one is given.

    >>> theorem2(8, smoothness=2.0, gap=1.0, noise_variance=0.0).share
    0.78125
    >>> theorem2(8, smoothness=2.0, gap=1.0, noise_variance=0.0, weights=[1, 1], delays=[0, 16]).condition
    'the update of iteration 1 has weight 1 at a delay of 16, above τ_C/τ = 0.5'

    See docs/theory.md for all bounds, and for how delays are counted.
    """
    jobs = concurrency_of(concurrency)
    constants(smoothness, gap, noise_variance)
    if delays is None and isinstance(concurrency, Trace):
        delays = concurrency.delay
    elif delays is None and weights is None and isinstance(concurrency, Delays):
        delays = concurrency.values
    tau = None if delays is None else _delays(delays)
    if weights is None and tau is not None and tau.size:
        weights = jobs / np.maximum(tau, jobs)
    share, noisy, reach, condition = 0.75 + 0.25 / max(jobs, 1.0), 1.0, jobs, ""
    if weights is not None:
        w = numbers("weights", weights)
        if w.ndim != 1 or w.size == 0 or not (np.isfinite(w).all() and (w >= 0).all() and (w <= 1).all() and w.any()):
            fix = "pass a list of numbers in [0, 1], not all 0"
            raise BadParameter("weights", weights, "are not weights of steps", fix)
        share, noisy = float(w.mean()), float((w * w).sum() / w.sum())
        reach, condition = _reach(w, tau, jobs)
    return Bound(
        "Theorem 2",
        start=2 * gap,
        linear=4 * smoothness * noise_variance * noisy,
        square=0.0,
        max_step=1 / (4 * smoothness * reach),
        share=share,
        extra=0.0,
        condition=condition,
    )


def _delays(given: Sequence[float] | NDArray[Any]) -> Floats:
    tau = numbers("delays", given)
    fix = "pass a list of delays, one for each weight: numbers that are finite and not negative"
    if tau.ndim != 1:
        raise BadParameter("delays", given, "is not a list of numbers", fix)
    good = np.isfinite(tau) & (tau >= 0)
    if not good.all():
        first = int(np.argmin(good))
        raise BadParameter(f"delays[{first}]", float(tau[first]), "is not a delay", fix)
    return tau


def _reach(weights: Floats, tau: Floats | None, jobs: float) -> tuple[float, str]:
    """Return (max(τ_C, max_t w_t τ_t), the update that makes it larger than τ_C as text)."""
    if tau is None:
        fix = "pass the trace of the run, or delays=[...], one for each weight"
        raise BadParameter("weights", f"{weights.size} of them", "cannot be checked without the delays", fix)
    if tau.shape != weights.shape:
        problem = f"do not fit {tau.size} delays"
        raise BadParameter("weights", f"{weights.size} of them", problem, "pass one weight for each arrival")
    late = int(np.argmax(weights * tau))
    reach = float(weights[late] * tau[late])
    if reach <= jobs * (1 + 1e-9):  # the rule itself meets it with equality, up to rounding
        return jobs, ""
    at, limit = f"weight {weights[late]:.3g} at a delay of {tau[late]:g}", jobs / tau[late]
    return reach, f"the update of iteration {late} has {at}, above τ_C/τ = {limit:.3g}"


def theorem3(
    delays: Given,
    *,
    smoothness: float,
    gap: float,
    noise_variance: float,
    heterogeneity: float | Sequence[float] | Floats,
    worker_delays: Sequence[float] | Floats | None = None,
) -> Bound:
    """Algorithm 2: 8r0/(η(T+1)) + 6Lησ² + 8Lηζ² + 8L²η²τ_C (1/n)Σζ_i²(τ^i_avg+1).

    For η <= 1/(4L max(1, √(τ_C τ_max))), the same in every iteration. Assumes that τ^i_avg does not depend on how often
    worker i was drawn.

    Args:
        delays: A trace, ``trace.delays``, or (τ_C, τ_max).
        smoothness: L, the Lipschitz constant of the gradient.
        gap: r0 = f(x_0) - f*, how far the first loss lies above the lowest one.
        noise_variance: σ², the variance of a stochastic gradient.
        heterogeneity: ζ_i², one per worker, or one for all.
        worker_delays: The τ^i_avg, one per worker; those of the run, if one is given.

    >>> known = {"smoothness": 2.0, "gap": 1.0, "noise_variance": 0.5, "heterogeneity": [0.1, 0.3]}
    >>> bound = theorem3((2, 8), worker_delays=[1.0, 3.0], **known)
    >>> bound.max_step, round(bound.at(1000, 0.01), 4)
    (0.03125, 0.8957)

    See docs/theory.md.
    """
    concurrency, longest = concurrency_and_maximum(delays)
    constants(smoothness, gap, noise_variance)
    zeta = squares(heterogeneity)
    if worker_delays is None:
        found = measured(delays)
        if found is None:
            raise BadParameter("worker_delays", None, "are missing", "pass τ^i_avg per worker, or a trace")
        workers = max(len(zeta), 1 + max(found.per_worker, default=0))
        worker_delays = [found.per_worker.get(worker, 0.0) for worker in range(workers)]
    mean_delay = numbers("worker_delays", worker_delays)
    if not (np.isfinite(mean_delay).all() and (mean_delay >= 0).all()):
        raise BadParameter("worker_delays", worker_delays, "holds something that is not a delay", "pass numbers >= 0")
    if zeta.size == 1 and mean_delay.ndim == 1:
        zeta = np.full(mean_delay.shape, zeta[0])
    if zeta.shape != mean_delay.shape or zeta.ndim != 1 or zeta.size == 0:
        fix = "give one ζ_i² and one mean delay per worker"
        raise BadParameter("heterogeneity", f"{zeta.size} values", f"do not fit {mean_delay.size} delays", fix)
    return Bound(
        "Theorem 3",
        start=8 * gap,
        linear=6 * smoothness * noise_variance + 8 * smoothness * float(zeta.mean()),
        square=8 * smoothness**2 * concurrency * float((zeta * (mean_delay + 1)).mean()),
        max_step=1 / (4 * smoothness * root(concurrency, longest)),
    )


def theorem3_bounded(
    concurrency: Given | float,
    *,
    smoothness: float,
    gap: float,
    noise_variance: float,
    heterogeneity: float | Sequence[float] | Floats,
    gradient_bound: float,
) -> Bound:
    """Algorithm 2 with ‖∇f_i‖ <= G: 4r0/(η(T+1)) + 3Lησ² + 4Lηζ² + 2L²η²τ_C²G² for η <= 1/(4Lτ_C).

    The step must be the same in every iteration.

    Args:
        concurrency: τ_C, or a run, or (τ_C, τ_max).
        smoothness: L, the Lipschitz constant of the gradient.
        gap: r0 = f(x_0) - f*, how far the first loss lies above the lowest one.
        noise_variance: σ², the variance of a stochastic gradient.
        heterogeneity: ζ_i², one per worker, or one for all.
        gradient_bound: G, the largest norm of a worker's gradient.

    >>> known = {"smoothness": 2.0, "gap": 1.0, "noise_variance": 0.5}
    >>> bound = theorem3_bounded(4, heterogeneity=[0.1, 0.3], gradient_bound=3.0, **known)
    >>> bound.max_step, round(bound.at(1000, 0.01), 4)
    (0.03125, 0.5608)

    See docs/theory.md.
    """
    jobs = concurrency_of(concurrency)
    constants(smoothness, gap, noise_variance)
    nonnegative("gradient_bound", gradient_bound)
    zeta = float(squares(heterogeneity).mean())
    return Bound(
        "Theorem 3 with bounded gradients",
        start=4 * gap,
        linear=3 * smoothness * noise_variance + 4 * smoothness * zeta,
        square=2 * (smoothness * jobs * gradient_bound) ** 2,
        max_step=1 / (4 * smoothness * jobs),
    )
