"""Who arrives when, once; then the gradient norms along that path for many steps and seeds at a time. And tuning."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import TargetNotReached
from asyncsgd.core.method import Method
from asyncsgd.simulation import simulate, sweep
from asyncsgd.simulation.durations import Durations
from asyncsgd.simulation.replay import replay_lanes
from asyncsgd.simulation.sweep import Sweep
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace

Floats = NDArray[np.float64]

STILL = 1e-9
"""A step at which nothing moves: the arrivals do not depend on it."""


def record(
    task: Task, recipe: Callable[[float], Method], speeds: Durations, iterations: int, seed: int = 0
) -> tuple[Trace, Floats]:
    """The trace of a method, and what its step rule makes of every arrival: η_t/η."""
    trace = simulate(task, recipe(STILL), speeds, iterations=iterations, every=iterations, seed=seed).trace
    return trace, trace.step / STILL


def squares(
    trace: Trace, task: Task, method: Method, stepsizes: Sequence[float], seeds: Sequence[int] = (0,)
) -> Floats:
    """‖∇f(x_t)‖² along the arrivals of a trace: axes t = 0..T, step sizes, seeds. NaN from divergence on."""
    lanes = [(step, seed) for step in stepsizes for seed in seeds]
    result = replay_lanes(
        trace.arrivals(),
        task,
        method,
        stepsizes=[step for step, _ in lanes],
        seeds=[seed for _, seed in lanes],
        every=1,
        wanted=("gradient_norm",),
    )
    norms = result.metrics["gradient_norm"].reshape(-1, len(stepsizes), len(seeds))
    square: Floats = norms**2
    return square


def tune(*what: Any, **how: Any) -> Sweep:
    """As `sweep`, but a target that no step reaches is a result (of inf iterations) that a claim can be judged by."""
    try:
        return sweep(*what, **how)
    except TargetNotReached as error:
        found: Sweep = error.sweep
        return found
