"""How large the step for an arrival is: η_t = size(t) · weight(arrival).

The user tunes ``stepsize``, a number or a schedule; the rule computes ``weight``, usually from the delay. Weight 0
drops the arrival. A rule is a frozen dataclass derived from `Step` that defines ``weight``. It sees delay, staleness,
worker, concurrency and iteration (`Arrival`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, Self, TypeAlias

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrival
from asyncsgd.core.schedules import Floats, Schedule, peak_of
from asyncsgd.core.validate import count, nonnegative, positive

Sees: TypeAlias = Literal["nothing", "delay", "staleness", "everything"]


@dataclass(frozen=True)
class Step(ABC):
    """Base of the step rules.

    See docs/howto/method.md for a rule of your own.
    """

    stepsize: float | Schedule
    favours_fast: ClassVar[str | None] = None
    """The reason why fast workers weigh more under this rule, or None."""
    bounded: ClassVar[bool] = True
    """Whether every weight is at most 1, as the accounting of differential privacy needs."""
    sees: ClassVar[Sees] = "everything"
    """What the weight depends on: the delay (with τ_C and n), the staleness alone, or anything. It decides whether the
    rule can be compiled."""

    def __post_init__(self) -> None:
        if isinstance(self.stepsize, Schedule):
            return
        if callable(self.stepsize):
            fix = "pass a number, or a schedule: asgd.schedules.custom(function)"
            raise BadParameter("stepsize", self.stepsize, "is a function", fix)
        positive("stepsize", self.stepsize)

    def size(self, iteration: int) -> float:
        """Return the step size at this iteration. No other code asks a schedule for its value during a run."""
        stepsize = self.stepsize
        return stepsize.value(iteration) if isinstance(stepsize, Schedule) else float(stepsize)

    def shares(self, iterations: int) -> Floats:
        """Return the shares of the peak of all iterations: ``peak * shares[t]`` has the bits of ``size(t)``."""
        return self.stepsize.shares(0, iterations) if isinstance(self.stepsize, Schedule) else np.ones(iterations)

    @property
    def peak(self) -> float:
        """The number that a sweep exchanges: the step size, or the peak of its schedule."""
        return peak_of(self.stepsize)

    @property
    def schedule(self) -> Schedule | None:
        """The schedule, if the step size changes along a run."""
        return self.stepsize if isinstance(self.stepsize, Schedule) and self.stepsize.changes else None

    def with_peak(self, peak: float) -> Self:
        """Return the same rule with another step size, or with another peak of its schedule."""
        return replace(self, stepsize=self.stepsize.with_peak(peak) if isinstance(self.stepsize, Schedule) else peak)

    def bind(self, iterations: int | None) -> Self:
        """Return the rule for a run of this length; raise if a step size of the run is not a finite number >= 0."""
        if not isinstance(self.stepsize, Schedule):
            return self
        bound = self.stepsize.bind(iterations)
        if iterations is not None:
            bound.check(iterations)
        return replace(self, stepsize=bound)

    @abstractmethod
    def weight(self, arrival: Arrival) -> float:
        """Return the share of the stepsize that this arrival gets."""


@dataclass(frozen=True)
class Constant(Step):
    """η_t = η (Theorems 1 and 3)."""

    sees: ClassVar[Sees] = "nothing"

    def weight(self, arrival: Arrival) -> float:
        return 1.0


@dataclass(frozen=True)
class DelayAdaptive(Step):
    """η_t = η · min(1, τ_C / τ_t): our form of Theorem 2, safe for η <= 1/(4Lτ_C).

    Every run keeps at least 3/4 + 1/(4τ_C) of the total step, even if workers join and leave and jobs are lost,
    rejected or cancelled. τ_C is the largest concurrency so far. It never falls, which the proof needs. If the server
    assigns jobs early, before it applies the arrival, the share is at least 3/4.
    """

    favours_fast: ClassVar[str | None] = "updates with a long delay get a smaller step"
    sees: ClassVar[Sees] = "delay"

    def weight(self, arrival: Arrival) -> float:
        if arrival.delay <= arrival.max_concurrency:
            return 1.0
        return arrival.max_concurrency / arrival.delay


@dataclass(frozen=True)
class DropAbove(Step):
    """η_t = η where τ_t <= threshold, else 0: the literal rule of Theorem 2's proof.

    Without a threshold it is 2 τ_C, which drops less than half. With threshold τ_C the rule can drop nearly everything:
    with one worker five times faster among 100, it drops 95 %. Above τ_C the safe step is smaller, η <=
    1/(4L·threshold), because late updates get the full step. For 2 τ_C that is half the safe step of `DelayAdaptive`.
    """

    threshold: float | None = None
    favours_fast: ClassVar[str | None] = "updates with a long delay are dropped"
    sees: ClassVar[Sees] = "delay"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold is not None:
            nonnegative("threshold", self.threshold)

    def weight(self, arrival: Arrival) -> float:
        threshold = 2 * arrival.max_concurrency if self.threshold is None else self.threshold
        return 1.0 if arrival.delay <= threshold else 0.0


@dataclass(frozen=True)
class DivideAbove(Step):
    """η_t = η where τ_t <= τ_C, else η / τ_t: the paper's "tuning the stepsize" paragraph, word for word."""

    favours_fast: ClassVar[str | None] = "updates with a long delay get a much smaller step"
    sees: ClassVar[Sees] = "delay"

    def weight(self, arrival: Arrival) -> float:
        return 1.0 if arrival.delay <= arrival.max_concurrency else 1.0 / arrival.delay


@dataclass(frozen=True)
class WorkersOverDelay(Step):
    """η_t = η · n / max(n, τ_t) (Mishchenko et al. 2022)."""

    favours_fast: ClassVar[str | None] = "updates with a long delay get a smaller step"
    sees: ClassVar[Sees] = "delay"

    def weight(self, arrival: Arrival) -> float:
        return arrival.workers / max(arrival.workers, arrival.delay)


@dataclass(frozen=True)
class DivideByStaleness(Step):
    """η_t = η / max(1, s) (staleness-aware; Zhang et al. 2016)."""

    favours_fast: ClassVar[str | None] = "stale updates get a smaller step"
    sees: ClassVar[Sees] = "staleness"

    def weight(self, arrival: Arrival) -> float:
        return 1.0 / max(1, arrival.staleness)


@dataclass(frozen=True)
class Polynomial(Step):
    """η_t = η · (1 + s)^-power: 1/√(1+s) by default, the weight of FedBuff and FedAsync."""

    power: float = 0.5
    favours_fast: ClassVar[str | None] = "stale updates get a smaller step"
    sees: ClassVar[Sees] = "staleness"

    def __post_init__(self) -> None:
        super().__post_init__()
        nonnegative("power", self.power)

    def weight(self, arrival: Arrival) -> float:
        if self.power == 0.5:
            return 1.0 / math.sqrt(1 + arrival.staleness)
        return float((1 + arrival.staleness) ** -self.power)


@dataclass(frozen=True)
class Hinge(Step):
    """η_t = η where s <= b, else η / (a (s - b) + 1) (FedAsync; Xie et al. 2019)."""

    a: float = 10.0
    b: float = 6.0
    favours_fast: ClassVar[str | None] = "stale updates get a smaller step"
    sees: ClassVar[Sees] = "staleness"

    def __post_init__(self) -> None:
        super().__post_init__()
        nonnegative("a", self.a)
        nonnegative("b", self.b)

    def weight(self, arrival: Arrival) -> float:
        late = arrival.staleness - self.b
        return 1.0 if late <= 0 else 1.0 / (self.a * late + 1)


@dataclass(frozen=True)
class DropStale(Step):
    """η_t = η where s < limit, else 0 (Ringmaster; with limit 1, Rennala)."""

    limit: int = 1
    favours_fast: ClassVar[str | None] = "stale updates are dropped"
    sees: ClassVar[Sees] = "staleness"

    def __post_init__(self) -> None:
        super().__post_init__()
        count("limit", self.limit)

    def weight(self, arrival: Arrival) -> float:
        return 1.0 if arrival.staleness < self.limit else 0.0


@dataclass(frozen=True)
class DropDrifted(Step):
    """η_t = η where ‖x_t - x_{t-τ}‖ <= threshold, else 0 (PickySGD; Cohen et al. 2021)."""

    threshold: float = 1.0
    favours_fast: ClassVar[str | None] = "updates computed far from the present model are dropped"

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("threshold", self.threshold)

    def weight(self, arrival: Arrival) -> float:
        return 1.0 if arrival.drift <= self.threshold else 0.0


@dataclass(frozen=True)
class AdaDelay(Step):
    """η_t = stepsize / (L + c √(t + τ_t)) with L = ``smoothness``, and t counted from 1 (Sra et al. 2016)."""

    smoothness: float = 1.0
    c: float = 1.0
    favours_fast: ClassVar[str | None] = "updates with a long delay get a smaller step"
    bounded: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        positive("smoothness", self.smoothness)
        nonnegative("c", self.c)

    def weight(self, arrival: Arrival) -> float:
        return 1.0 / (self.smoothness + self.c * math.sqrt(arrival.iteration + 1 + arrival.delay))


@dataclass(frozen=True)
class Custom(Step):
    """η_t = η · rule(arrival), with a function of your own. For a function of the iteration, use a schedule.

    >>> rule = Custom(0.1, lambda arrival: 0.9**arrival.delay)
    """

    rule: Callable[[Arrival], float] = lambda arrival: 1.0
    bounded: ClassVar[bool] = False

    def weight(self, arrival: Arrival) -> float:
        return self.rule(arrival)
