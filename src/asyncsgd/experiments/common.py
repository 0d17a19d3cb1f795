"""What the experiments share: the form of a claim, fits with intervals, replays for many step sizes, and tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import TargetNotReached
from asyncsgd.core.method import Method
from asyncsgd.simulation import simulate, sweep
from asyncsgd.simulation._sweep import Sweep
from asyncsgd.simulation.compiled_replay import Measure, replay_lanes
from asyncsgd.simulation.durations import Durations
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace

# The form that every experiment fills in: the paper's claim, the measurement and the verdict.


class Verdict(StrEnum):
    """Whether a claim holds as the paper writes it."""

    HOLDS = "holds"
    CORRECTED = "holds with a correction"
    FAILS = "does not hold as written"
    UNJUDGED = "could not be judged"
    """The experiment raised an error."""


@dataclass(frozen=True)
class Figure:
    """A figure to draw: ``draw(fig, axes)`` fills a matplotlib figure of ``columns`` × ``rows`` panels."""

    name: str
    """File name without ending, for instance ``claim03-pile-up``."""
    caption: str
    draw: Callable[[Any, Any], None]
    columns: int = 1
    rows: int = 1
    width: float = 7.2
    height: float = 3.4


@dataclass(frozen=True)
class Drawing:
    """A figure that has been drawn, as SVG text: unlike a `Figure`, it can be sent to another process."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Table:
    """A table with a caption."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Claim:
    """One claim, judged. The verdict is computed from the numbers that this run measured."""

    number: int
    title: str
    verdict: Verdict
    paper: str = ""
    """What the paper says, in one or two sentences."""
    measured: str = ""
    """What we measured, with the numbers of this run."""
    summary: str = ""
    """What we measured and what it means, in one line of the documentation's table."""
    refuted_by: str = ""
    """Which result of this experiment would make the verdict "does not hold as written"."""
    why: str = ""
    """If the claim does not hold as written: why, and what asyncsgd does instead."""
    values: dict[str, Any] = field(default_factory=dict)
    """Numbers for claims.json: plain ints, floats, strings, lists and dicts."""
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
    """What to draw; the runner replaces it by ``drawings``."""
    drawings: tuple[Drawing, ...] = ()
    error: str = ""
    """The traceback of an experiment that raised an error."""
    seconds: float = 0.0
    """How long the experiment took."""


# Fits of straight lines through measured points, with intervals.


Numbers = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True)
class Line:
    """The line y = intercept + slope · x, fitted by least squares."""

    slope: float
    intercept: float
    r2: float
    """The share of the variance of y that the line explains."""


@dataclass(frozen=True)
class Interval:
    """A mean and its 95 % confidence interval."""

    mean: float
    low: float
    high: float

    def within(self, low: float, high: float) -> bool:
        """Return whether the whole interval lies between these numbers; an interval with NaN does not."""
        return low <= self.low and self.high <= high

    def __str__(self) -> str:
        return f"{self.mean:.2f} ({self.low:.2f} to {self.high:.2f})"


def interval(values: Numbers) -> Interval:
    """Return Student's interval for the mean of independent values; a single value counts as exact.

    >>> print(interval([0.4, 0.5, 0.6]))
    0.50 (0.25 to 0.75)
    """
    from scipy.special import stdtrit  # scipy takes a while to load

    sample = np.asarray(values, float)
    mean, many = float(sample.mean()), len(sample)
    reach = float(stdtrit(many - 1, 0.975) * sample.std(ddof=1) / np.sqrt(many)) if many > 1 else 0.0
    return Interval(mean, mean - reach, mean + reach)


def ratio(above: Numbers, below: Numbers) -> Interval:
    """Return the interval of a ratio of two means of paired values; its ends come from the spread of a - ratio · b.

    >>> print(ratio([2.0, 4.1, 5.9], [1.0, 2.0, 3.0]))
    2.00 (1.88 to 2.12)
    """
    a, b = np.asarray(above, float), np.asarray(below, float)
    mean = float(a.mean() / b.mean())
    rest = interval(a - mean * b)
    return Interval(mean, mean + rest.low / float(b.mean()), mean + rest.high / float(b.mean()))


def line(x: Numbers, y: Numbers) -> Line:
    """Fit a line; all NaN if some y is not finite.

    >>> line([0, 1, 2], [1, 3, 5])
    Line(slope=2.0, intercept=1.0, r2=1.0)
    """
    a, b = np.asarray(x, float), np.asarray(y, float)
    if not np.all(np.isfinite(b)):
        return Line(np.nan, np.nan, np.nan)
    centred = a - a.mean()
    slope = float(centred @ (b - b.mean()) / (centred @ centred))
    intercept = float(b.mean() - slope * a.mean())
    rest, spread = b - intercept - slope * a, b - b.mean()
    return Line(slope, intercept, 1.0 - float(rest @ rest) / float(spread @ spread) if spread.any() else 1.0)


def exponent(x: Numbers, y: Numbers) -> float:
    """Return p of y = c·x^p, the slope on logarithmic axes.

    >>> round(exponent([1, 2, 4], [3, 12, 48]), 12)
    2.0
    """
    return line(np.log(x), np.log(y)).slope


Floats = NDArray[np.float64]

STILL = 1e-9
"""A step at which nothing moves: the arrivals do not depend on it."""


def record(
    task: Task, recipe: Callable[[float], Method], speeds: Durations, iterations: int, seed: int = 0
) -> tuple[Trace, Floats]:
    """Return the trace of a method, and the weight η_t/η that its step rule gives every arrival."""
    trace = simulate(task, recipe(STILL), speeds, iterations=iterations, every=iterations, seed=seed).trace
    return trace, trace.step / STILL


def squares(
    trace: Trace, task: Task, method: Method, stepsizes: Sequence[float], seeds: Sequence[int] = (0,)
) -> Floats:
    """‖∇f(x_t)‖² along the arrivals of a trace: axes t = 0..T, step sizes, seeds. NaN from divergence on."""
    lanes = [(step, seed) for step in stepsizes for seed in seeds]
    result = replay_lanes(trace.arrivals(), task, method, lanes, Measure(every=1, wanted=("gradient_norm",)))
    norms = result.metrics["gradient_norm"].reshape(-1, len(stepsizes), len(seeds))
    square: Floats = norms**2
    return square


def tune(*what: Any, **how: Any) -> Sweep:
    """Call `sweep`, and return its result also if no step size reaches the target: it then takes inf iterations."""
    try:
        return sweep(*what, **how)
    except TargetNotReached as error:
        found: Sweep = error.sweep
        return found
