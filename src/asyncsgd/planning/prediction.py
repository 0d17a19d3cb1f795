"""How often updates will arrive in a run, predicted from how long its workers take per mini-batch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.dispatch import FirstOf
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.parts import Reason
from asyncsgd.core.validate import count
from asyncsgd.core.vectors import Vector
from asyncsgd.simulation import durations as du
from asyncsgd.simulation._simulate import run_simulation, source_of
from asyncsgd.simulation.durations import Durations
from asyncsgd.simulation.lowering import lower

ROUNDS = 60
"""The number of updates per worker, or of rounds, that are simulated; the first sixth is not measured."""
FEWEST = 1200
"""The fewest updates that are simulated."""


class _Nothing:
    """A task of one parameter that never moves: the times of a run do not depend on its numbers."""

    def initial(self) -> Vector:
        return np.zeros(1)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        return np.zeros_like(x)

    def evaluate(self, x: Vector) -> dict[str, float]:
        return {"loss": 0.0}


def seconds_per_update(
    method: Method,
    durations: Durations | Sequence[float],
    *,
    parameters: int | None = None,
    dtype: str = "float32",
    seed: int = 0,
) -> float:
    """Predict the mean seconds between two updates that reach the server, in the long run.

    The server's own time is not part of it.

    Args:
        method: The method, with its local steps and its compression.
        durations: Seconds per mini-batch of each worker: numbers, or durations with communication or a network.
        parameters: The number of parameters of the model; needed with a network.
        dtype: The type of a parameter.
        seed: Seed of the simulated run.

    Two workers that take 1 s and 3 s per step, 10 steps per job, and 2 s per message each way:

    >>> import asyncsgd as asgd
    >>> fleet = asgd.durations.fixed([1.0, 3.0]).with_communication(down=2.0, up=2.0)
    >>> predicted = seconds_per_update(asgd.async_sgd(1.0).local(10, 0.1), fleet)
    >>> bool(abs(predicted - 1 / (1 / 14 + 1 / 34)) < 0.1)
    True

    See docs/users/planner.md for plans with distant workers.
    """
    known = durations if isinstance(durations, Durations) else du.fixed(durations)
    known = _over_network(known, method, parameters, dtype)
    n = known.workers
    turn = method.dispatch.clients if isinstance(method.dispatch, FirstOf) else n
    rounds = max(ROUNDS, math.ceil(FEWEST / turn))
    total, skipped = rounds * turn, rounds // 6 * turn
    time = _arrivals(method.bind(n, total), known, total, seed)
    return float((time[-1] - time[skipped - 1]) / (total - skipped))


def _over_network(durations: Durations, method: Method, parameters: int | None, dtype: str) -> Durations:
    if not durations.networked:
        return durations
    if parameters is None:
        fix = "pass parameters=..., the number of parameters of the model"
        raise BadParameter("parameters", None, "is missing: over a network, times depend on the model's size", fix)
    count("parameters", parameters)
    up, down = method.message_bytes(parameters, dtype)
    return durations.for_messages(up=up, down=down)


def _arrivals(method: Method, durations: Durations, total: int, seed: int) -> NDArray[Any]:
    """Return the times of the arrivals, from the compiled schedule if the method has one."""
    if isinstance(lower(method, _Nothing()).schedule, Reason):
        return run_simulation(_Nothing(), method, durations, iterations=total, every=total, seed=seed).trace.time
    return source_of(durations, method, total, seed).arrivals().time
