"""How the step size changes along a run: η_t = peak · share(t), with t the iteration, which counts arrivals.

A schedule stands wherever a method takes a number as its step size. It is a frozen dataclass derived from `Schedule`
that defines ``share``. `asyncsgd.schedules` has the public constructors.

Shares are computed with +, -, *, / and √ alone, which round alike on every machine, and alike for one number and for an
array. So a replay elsewhere and the compiled simulator get the bits of the server.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import KW_ONLY, MISSING, dataclass, fields, replace
from typing import Any, ClassVar, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, is_number, plain, positive

Floats: TypeAlias = NDArray[np.float64]
CHUNK = 1 << 16
"""The number of iterations that are checked at once, so that a long run needs no long table."""


@dataclass(frozen=True, repr=False)
class Schedule(ABC):
    """Base of the schedules: a ``peak``, and the share of it that each iteration gets.

    The share must depend on the iteration alone. Then a sweep can exchange the peak, and a run can be resumed and
    replayed.

    See docs/howto/schedules.md for a schedule of your own.
    """

    peak: float
    name: ClassVar[str] = "schedule"
    """The function of `asyncsgd.schedules` that makes it."""
    varies: ClassVar[bool] = True

    def __post_init__(self) -> None:
        positive("peak", self.peak)
        plain(self)

    @abstractmethod
    def share(self, iteration: int) -> float:
        """Return the share of the peak at this iteration: a finite number, 0 or above."""

    def shares(self, start: int, stop: int) -> Floats:
        """Return the shares of the iterations from ``start`` to ``stop - 1``, with the bits of `share`."""
        return np.fromiter((float(self.share(t)) for t in range(start, stop)), np.float64, stop - start)

    @property
    def changes(self) -> bool:
        """Whether the step size is not the same in all iterations."""
        return self.varies

    def largest(self, iterations: int) -> float:
        """Return the largest share in the first ``iterations`` iterations."""
        return float(self.shares(0, max(iterations, 1)).max())

    def value(self, iteration: int) -> float:
        """Return the step size at this iteration."""
        return self.peak * float(self.share(iteration))

    def bind(self, iterations: int | None) -> Schedule:
        """Return the schedule for a run of this length; most schedules do not depend on it."""
        return self

    def with_peak(self, peak: float) -> Schedule:
        """Return the same schedule with another peak."""
        return replace(self, peak=peak)

    def check(self, iterations: int) -> None:
        """Raise `BadParameter` unless every step size of a run is a finite number that is not negative."""
        fix = f"let it give finite numbers >= 0 in all iterations from 0 to {iterations - 1}"
        moves = False
        for start in range(0, iterations, CHUNK):
            try:
                values = self.peak * self.shares(start, min(start + CHUNK, iterations))
            except BadParameter:
                raise
            except Exception as error:  # a user's function may raise anything
                problem = f"raised {type(error).__name__} ({error}) at iteration {start} or later"
                raise BadParameter("stepsize", self, problem, fix) from error
            bad = np.flatnonzero(~(np.isfinite(values) & (values >= 0)))
            if bad.size:
                problem = f"is {values[bad[0]]:.6g} at iteration {start + int(bad[0])}"
                raise BadParameter("stepsize", self, problem, fix)
            moves = moves or bool(values.any())
        if not moves:
            raise BadParameter("stepsize", self, f"is 0 in all {iterations} iterations", "let some steps be above 0")

    @property
    def shape(self) -> str:
        """The name and the options without the peak: ``cosine(warmup=200)``."""
        options = ", ".join(self._options())
        return f"{self.name}({options})" if options else self.name

    def _options(self) -> list[str]:
        """Return the options that are not at their default, spelled as in a call."""
        named = [(part, getattr(self, part.name)) for part in fields(self) if part.name != "peak"]
        return [f"{part.name}={value!r}" for part, value in named if part.default is MISSING or value != part.default]

    def __repr__(self) -> str:
        return f"{self.name}({', '.join([repr(self.peak), *self._options()])})"


def peak_of(stepsize: float | Schedule) -> float:
    """Return the number that a sweep exchanges: the step size itself, or the peak of a schedule."""
    return stepsize.peak if isinstance(stepsize, Schedule) else float(stepsize)


@dataclass(frozen=True, repr=False)
class _Warmed(Schedule):
    """A schedule whose share grows linearly to 1 in the first ``warmup`` iterations: (t + 1) / warmup."""

    _: KW_ONLY
    warmup: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        whole("warmup", self.warmup)

    def share(self, iteration: int) -> float:
        if iteration < self.warmup:
            return (iteration + 1) / self.warmup
        return self._after(iteration)

    def shares(self, start: int, stop: int) -> Floats:
        found = np.empty(stop - start)
        early = min(max(self.warmup - start, 0), stop - start)
        found[:early] = np.arange(start + 1, start + early + 1, dtype=np.float64) / max(self.warmup, 1)
        if early < stop - start:
            found[early:] = self._all_after(np.arange(start + early, stop, dtype=np.float64))
        return found

    def largest(self, iterations: int) -> float:
        return 1.0

    def _after(self, t: int) -> float:
        """Return the share after the warm-up."""
        return 1.0

    def _all_after(self, t: Floats) -> Floats:
        """The same for many iterations at once."""
        return np.ones(len(t))


@dataclass(frozen=True, repr=False)
class ConstantSchedule(_Warmed):
    """The peak in every iteration after the warm-up."""

    name: ClassVar[str] = "constant"

    @property
    def changes(self) -> bool:
        return self.warmup > 1


@dataclass(frozen=True, repr=False)
class _Ending(_Warmed):
    """A schedule that falls to the share ``final`` until iteration ``total``, and stays there."""

    _: KW_ONLY
    total: int | None = None
    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.final) or not 0 <= self.final <= 1:
            fix = "pass 0 <= final <= 1: it is a share of the peak"
            raise BadParameter("final", self.final, "must lie in [0, 1]", fix)
        if self.total is not None:
            count("total", self.total)
            if self._least >= self.total:
                fix = f"pass total > {self._least}"
                raise BadParameter("total", self.total, "leaves too few iterations after the warm-up", fix)

    @property
    def _least(self) -> int:
        """The total must be larger than this."""
        return self.warmup

    def bind(self, iterations: int | None) -> Schedule:
        if self.total is not None:
            return self
        if iterations is None:
            raise BadParameter(
                "total", None, "is open, and so is the length of the run", f"pass {self.name}(total=...)"
            )
        if self._least >= iterations:
            problem = f"is too long for a run of {iterations} iterations"
            raise BadParameter("warmup", self.warmup, problem, "pass a shorter one, or more iterations, or total=...")
        return replace(self, total=int(iterations))

    @property
    def _end(self) -> int:
        if self.total is None:
            fix = "pass total=..., or give the server method.bind(workers, iterations)"
            raise BadParameter("total", None, f"of {self!r} is not fixed", fix)
        return self.total

    def _begin(self) -> int:
        """Return the iteration at which the share begins to fall."""
        return self.warmup

    def _after(self, t: int) -> float:
        begin, end = self._begin(), self._end
        if t >= end:
            return float(self.final)
        return 1.0 if t <= begin else self._fall((t - begin) / (end - begin))

    def _all_after(self, t: Floats) -> Floats:
        begin, end = self._begin(), self._end
        inside = np.clip((t - begin) / (end - begin), 0.0, 1.0)
        return np.where(t >= end, float(self.final), np.where(t <= begin, 1.0, self._all_fall(inside)))

    def _fall(self, passed: float) -> float:
        """Return the share after this part of the decay, between 0 and 1."""
        return 1.0 - (1.0 - self.final) * passed

    def _all_fall(self, passed: Floats) -> Floats:
        """The same for many parts at once."""
        return 1.0 - (1.0 - self.final) * passed


@dataclass(frozen=True, repr=False)
class LinearSchedule(_Ending):
    """From the peak to ``final`` times the peak in a straight line."""

    name: ClassVar[str] = "linear"


@dataclass(frozen=True, repr=False)
class CosineSchedule(_Ending):
    """From the peak to ``final`` times the peak along half a cosine: final + (1 - final) (1 + cos πp) / 2."""

    name: ClassVar[str] = "cosine"

    def _fall(self, passed: float) -> float:
        rest = 1.0 - self.final
        if passed <= 0.5:
            return 1.0 - rest * _sine_squared(passed)
        return self.final + rest * _sine_squared(1.0 - passed)

    def _all_fall(self, passed: Floats) -> Floats:
        part = (1.0 - self.final) * _sine_squared(np.minimum(passed, 1.0 - passed))
        return np.asarray(np.where(passed <= 0.5, 1.0 - part, self.final + part))


Number = TypeVar("Number", float, Floats)
SINE = tuple((-1.0) ** k / math.factorial(2 * k + 1) for k in range(8))
"""The Taylor coefficients of the sine: exact to the last digits up to π/4."""


def _sine_squared(part: Number) -> Number:
    """Return sin²(π/2 · part) for parts of at most a half, numbers or arrays, with the same bits for both."""
    x: Any = part * (math.pi / 2)
    z, total = x * x, SINE[-1]
    for coefficient in SINE[-2::-1]:
        total = total * z + coefficient
    squared: Number = (x * total) * (x * total)
    return squared


@dataclass(frozen=True, repr=False)
class InverseSqrtSchedule(_Warmed):
    """After the warm-up the share is √(warmup / (t + 1)) (Vaswani et al. 2017)."""

    name: ClassVar[str] = "inverse_sqrt"

    def __post_init__(self) -> None:
        super().__post_init__()
        count("warmup", self.warmup)

    def _after(self, t: int) -> float:
        return math.sqrt(self.warmup / (t + 1))

    def _all_after(self, t: Floats) -> Floats:
        found: Floats = np.sqrt(self.warmup / (t + 1))
        return found


@dataclass(frozen=True, repr=False)
class WarmupStableDecaySchedule(_Ending):
    """The peak until the last ``decay`` iterations of the total, which fall to ``final`` in a straight line."""

    _: KW_ONLY
    decay: int
    name: ClassVar[str] = "warmup_stable_decay"

    def __post_init__(self) -> None:
        count("decay", self.decay)
        super().__post_init__()

    @property
    def _least(self) -> int:
        return self.warmup + self.decay - 1

    def _begin(self) -> int:
        return self._end - self.decay


@dataclass(frozen=True, repr=False)
class CustomSchedule(Schedule):
    """The peak times a function of the iteration. The function must always give the same number for an iteration."""

    function: Callable[[int], float]
    name: ClassVar[str] = "custom"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.function):
            fix = "pass a function of the iteration, such as lambda t: 1 / (1 + t)"
            raise BadParameter("function", self.function, f"is a {type(self.function).__name__}", fix)

    def share(self, iteration: int) -> float:
        return self.function(iteration)

    def _options(self) -> list[str]:
        return [getattr(self.function, "__name__", type(self.function).__name__)]

    def __repr__(self) -> str:
        return f"custom({self._options()[0]}, peak={self.peak!r})"


def whole(name: str, value: Any) -> None:
    """Raise unless ``value`` is an integer, 0 or above."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise BadParameter(name, value, "must be an integer of at least 0", f"pass {name} >= 0")
