"""The time to a given accuracy, by the theorems, from a candidate's speed and delays.

Everything is in ratios, so that users need not know L or f*: with A = L r0 / ε and the noise σ²/ε, the step is a
multiple of 1/L and the bounds are computed for L = ε = 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cache

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.parts import Reason
from asyncsgd.core.validate import nonnegative, positive
from asyncsgd.planning.candidates import Candidate, SimulatedRun
from asyncsgd.theory import Bound, theorem1, theorem2, theorem3
from asyncsgd.theory.coverage import SECOND, THIRD, covering
from asyncsgd.trace import Delays

SEQUENTIAL = (1.0, 0.0)
"""τ_C and τ_max of SGD on one worker."""
COUNTED_FROM_1 = 1
"""Where constants are left out, delays count from 1, as in the paper's own proof: a batch of b then costs b gradients
exactly, and not √(b (b-1))."""
SMALLEST, LARGEST = 1e-9, 1e9
COUNTABLE = 1e15
"""The largest number of gradients, up to constants: with more, the guaranteed number would not fit into 64 bits."""


@dataclass(frozen=True)
class Target:
    """The accuracy to reach and the difficulty of the task, in relative units."""

    epsilon: float
    """The mean squared gradient norm to reach, in units of L r0 = L (f(x_0) - f*)."""
    noise: float
    """σ²/ε: the mean of this many gradients has noise of the size of the target."""
    heterogeneity: float | None = None
    """ζ²/ε if the data differ between workers, None if they do not."""

    def __post_init__(self) -> None:
        positive("epsilon", self.epsilon)
        nonnegative("noise", self.noise)
        if not SMALLEST <= self.epsilon <= 2:
            fix = f"pass a number from {SMALLEST:g} to 2; above that, every start is accurate enough"
            raise BadParameter("epsilon", self.epsilon, "is not an accuracy in units of L r0", fix)
        for name, value in (("noise", self.noise), ("heterogeneity", self.heterogeneity)):
            if value is not None:
                nonnegative(name, value)
                if value > LARGEST:
                    raise BadParameter(name, value, "is too large", f"pass at most {LARGEST:g} (in units of ε)")
        if self.gap * (self.noise + (self.heterogeneity or 0.0)) > COUNTABLE:
            problem = f"at noise = {self.noise:g} asks for more than {COUNTABLE:g} gradients"
            raise BadParameter("epsilon", self.epsilon, problem, "pass a larger one, or less noise")

    @property
    def heterogeneous(self) -> bool:
        """Whether the data differ between workers."""
        return self.heterogeneity is not None

    @property
    def gap(self) -> float:
        """A = L r0 / ε."""
        return 1 / self.epsilon


@dataclass(frozen=True)
class Accuracy:
    """What a theorem guarantees for a candidate."""

    theorem: str
    step: float
    """The largest step that the theorem allows, in units of 1/L."""
    gradients: float
    """Gradients to the target without the constants of the proofs, as the known limits are stated."""
    guaranteed: int
    """The same with every constant, at the best step: guaranteed, but far too pessimistic for most tasks."""


def accuracy(candidate: Candidate, simulated: SimulatedRun, target: Target) -> Accuracy | None:
    """Apply the theorem that covers the candidate; None if data differ and the candidate favours fast workers.

    Mini-batch SGD is asynchronous SGD with delays 0, ..., b-1 (Example 1 of the paper), so all methods
    are judged by theorems with the same constants where the data are alike.
    """
    if candidate.workers < candidate.total and target.heterogeneous:
        return None  # the model never sees the data of the other workers
    if isinstance(covering(candidate.build(), heterogeneous=target.heterogeneous), Reason):
        return None
    bound = _bound(candidate, simulated, target)
    reached, _ = bound.iterations(1.0)
    return Accuracy(bound.theorem, bound.max_step, gradients(candidate, simulated, target), reached)


def gradients(candidate: Candidate, simulated: SimulatedRun | None, target: Target) -> float:
    """Return the gradients to the target up to constants: A (1/η_max + B + √C) / share, in units of SGD on one worker.

    That is √(τ_C τ_max) A + V for Theorem 1, τ_C A + V for Theorem 2, with V = A σ²/ε: the forms in
    `asyncsgd.theory.limits`. Rounds need no simulated run.
    """
    bound = _bound(candidate, simulated, target, COUNTED_FROM_1)
    alone = _alone(bound.theorem)
    drift = math.sqrt(bound.square / alone.square) if bound.square else 0.0
    needed = alone.max_step / bound.max_step + bound.linear / alone.linear + drift
    return target.gap * needed / bound.share


def favours_fast(candidate: Candidate) -> bool:
    """Return whether fast workers weigh more in the model than slow ones by the candidate's rule."""
    return candidate.workers < candidate.total or bool(candidate.build().bias)


def _bound(candidate: Candidate, simulated: SimulatedRun | None, target: Target, more: int = 0) -> Bound:
    """Return the bound that covers the candidate, with ``more`` added to the longest delay."""
    if candidate.rounds:
        b, n = candidate.batch, candidate.total
        # Updates that a round discards never reach the model. All n workers together have no sampling error.
        spread = 0.0 if target.heterogeneity is None else target.heterogeneity * (n - b) / (n - 1)
        return _first((b, b - 1 + more), target.gap, target.noise + spread)
    assert simulated is not None
    delays = simulated.delays
    pair = (delays.concurrency, delays.maximum + more)
    covered = covering(candidate.build(), heterogeneous=False)
    assert not isinstance(covered, Reason)
    if covered.theorem == SECOND:
        return _second(delays, target.gap, target.noise)
    if covered.theorem == THIRD and target.heterogeneity is not None:  # else Theorem 1 has the same constants for all
        own = [delays.per_worker.get(worker, delays.average) for worker in range(candidate.workers)]
        return _third(pair, target.gap, target.noise, target.heterogeneity, own)
    return _first(pair, target.gap, target.noise)


@cache
def _alone(theorem: str) -> Bound:
    """Return the same theorem for SGD on one worker with L, r0, σ² and ζ² of 1, which gives its constants."""
    first, second = _first(SEQUENTIAL, 1.0, 1.0), _second(1, 1.0, 1.0)
    third = _third(SEQUENTIAL, 1.0, 1.0, 0.0, [0.0])
    third = replace(third, square=_third(SEQUENTIAL, 1.0, 1.0, 1.0, [0.0]).square)
    return {bound.theorem: bound for bound in (first, second, third)}[theorem]


def _first(delays: tuple[float, float], gap: float, noise: float) -> Bound:
    return theorem1(delays, smoothness=1.0, gap=gap, noise_variance=noise)


def _second(delays: Delays | int, gap: float, noise: float) -> Bound:
    return theorem2(delays, smoothness=1.0, gap=gap, noise_variance=noise)


def _third(delays: tuple[float, float], gap: float, noise: float, heterogeneity: float, own: list[float]) -> Bound:
    spread = [heterogeneity] * len(own)
    return theorem3(delays, smoothness=1.0, gap=gap, noise_variance=noise, heterogeneity=spread, worker_delays=own)
