"""How many iterations a method needs as delays grow, read three ways.

1. The theorem's own: the (weighted) mean of ‖∇f(x_t)‖² falls to ε, with the largest step that the theorem allows.
2. The same with the best step of a grid: what is needed, rather than what can be promised.
3. As in the paper's figures: the last gradient norm stays below a tiny target, with the best step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd import methods
from asyncsgd.core.method import Method
from asyncsgd.experiments.fits import exponent
from asyncsgd.experiments.paths import Floats, record, squares, tune
from asyncsgd.simulation import durations, grid
from asyncsgd.simulation.durations import Durations
from asyncsgd.tasks import quadratic
from asyncsgd.theory import theorem1, theorem2

EPSILON = 0.005
"""Of ‖∇f(x_0)‖², for the first two readings."""
TINY = 1e-12
"""For the third."""
RULES: dict[str, Callable[[float], Method]] = {
    "constant": methods.async_sgd,
    "delay-adaptive": methods.delay_adaptive,
    "drop": lambda stepsize: methods.delay_adaptive(stepsize, rule="drop"),
}


@dataclass(frozen=True)
class Need:
    """Iterations that one rule needs under one pattern of delays."""

    rule: str
    varied: float
    """The τ_max or the τ_C that is being varied."""
    promised: float
    """By the first reading."""
    tuned: float
    """By the second."""
    tiny: float
    """By the third."""


def need(rule: str, speeds: Durations, varied: str, iterations: int, tiny_iterations: int, points: int = 41) -> Need:
    """Run one rule, noise-free, under these durations; ``varied`` names the delay that it is to be plotted against."""
    task = quadratic(dim=10, workers=speeds.workers)
    recipe = RULES[rule]
    trace, weights = record(task, recipe, speeds, iterations)
    delays = trace.delays
    known: dict[str, Any] = {"smoothness": task.smoothness, "gap": 1.0, "noise_variance": 0.0}
    constant = rule == "constant"
    allowed = (theorem1(delays, **known) if constant else theorem2(trace, **known, weights=weights)).max_step
    tried = grid(0.02 / delays.concurrency / task.smoothness, 4.0 / task.smoothness, points)
    path = squares(trace, task, recipe(1.0), [allowed, *tried])[:-1, :, 0]
    means = np.cumsum(weights[:, None] * path, axis=0) / np.maximum(np.cumsum(weights), 1e-300)[:, None]
    reached = _stays_below(means, EPSILON * path[0, 0])
    slowest = int(delays.maximum)
    found = tune(
        task,
        recipe,
        speeds,
        stepsizes=grid(1e-3 / delays.concurrency, 4.0, points),
        iterations=tiny_iterations,
        target=TINY,
        window=3 * (slowest + 1),
        sustained=True,
    )
    x = slowest if varied == "τ_max" else delays.concurrency
    return Need(rule, float(x), float(reached[0]), float(reached[1:].min()), found.best_iterations)


def _stays_below(means: Floats, epsilon: float) -> Floats:
    """Per column: the number of iterations after which the mean is at most ε for good; inf if it is not at the end."""
    above = ~(means <= epsilon)
    last = len(means) - np.argmax(above[::-1], axis=0)
    return np.where(above[-1], np.inf, np.where(above.any(axis=0), last, 0.0))


def one_slow(slow: float, workers: int = 4) -> Durations:
    """Everybody but one takes a second: τ_C stays, τ_max grows with ``slow``."""
    return durations.fixed([1.0] * (workers - 1) + [slow])


def exponents(needs: Sequence[Need]) -> dict[str, tuple[float, float, float]]:
    """Per rule, the exponent of each reading in what was varied."""
    found = {}
    for rule in dict.fromkeys(need.rule for need in needs):
        mine = [need for need in needs if need.rule == rule]
        x = [need.varied for need in mine]
        columns = zip(*((need.promised, need.tuned, need.tiny) for need in mine), strict=True)
        found[rule] = tuple(exponent(x, column) for column in columns)
    return found  # type: ignore[return-value]
