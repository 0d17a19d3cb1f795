"""What all simulated parts share: digits on 20 clients, the contestants, their step sizes, and the time to an accuracy.

A unit of time is one job of a fast client: `STEPS` local mini-batches.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import cache
from typing import NamedTuple

import numpy as np

import asyncsgd as asgd

CLIENTS, STEPS, BATCH = 20, 10, 16
AT_ONCE = 10
"""Jobs in flight of every asynchronous method, and clients of a round."""
BUFFER = 5
LEVELS = (0.95, 0.98)
"""Accuracies to reach, as shares of the accuracy of the optimum of all clients. We fixed them before tuning."""
HELD = 3
"""An accuracy counts as reached at the first of this many evaluations in a row that have it."""
EVERY = 10
"""Arrivals between two evaluations: a round of FedAvg."""
ARRIVALS = 1500
"""Length of a run; a method that needs more does not reach the level."""
LOCAL = (0.1, 0.3, 1.0)
"""Step sizes of the clients to try."""
MEANS, SINGLE, MIXED = (0.5, 1.0, 2.0, 4.0), (0.05, 0.1, 0.2, 0.4), (0.1, 0.2, 0.4, 0.8)
"""Step sizes of the server to try: for a mean of updates, for single updates, for FedAsync's mixture of models."""


class Setting(NamedTuple):
    """Which clients are slow, and how much the data differ."""

    slow: int = 4
    factor: float = 10.0
    split: str = "dirichlet"


class Contestant(NamedTuple):
    """A method as a function of the server's step size, and the step sizes to try."""

    make: Callable[[float], asgd.Method]
    servers: tuple[float, ...]


def fedbuff(stepsize: float, *, calibrated: bool = False, idle: bool = False) -> asgd.Method:
    """Return FedBuff; with ``idle``, jobs go to idle clients only, in the order in which they became idle."""
    method = asgd.fedbuff(stepsize, concurrency=AT_ONCE, buffer=BUFFER, calibrated=calibrated)
    return method.using(dispatch=asgd.dispatch.always_busy(AT_ONCE)) if idle else method


CONTESTANTS = {
    "FedAvg": Contestant(lambda s: asgd.fedavg(s, clients=AT_ONCE), MEANS),
    "FedAvg, all clients": Contestant(lambda s: asgd.fedavg(s, clients=CLIENTS), MEANS),
    "over-selection": Contestant(lambda s: asgd.fedavg(s, clients=AT_ONCE, ask=14), MEANS),
    "FedBuff": Contestant(fedbuff, MEANS),
    "FedBuff, idle clients": Contestant(lambda s: fedbuff(s, idle=True), MEANS),
    "CA²FL": Contestant(lambda s: fedbuff(s, calibrated=True), MEANS),
    "CA²FL, idle clients": Contestant(lambda s: fedbuff(s, calibrated=True, idle=True), MEANS),
    "Algorithm 2": Contestant(lambda s: asgd.federated_async_sgd(s, concurrency=AT_ONCE), SINGLE),
    "FedAsync": Contestant(lambda s: asgd.fedasync(s, concurrency=AT_ONCE), MIXED),
}


@cache
def task(seed: int, split: str = "dirichlet") -> asgd.tasks.Softmax:
    """Return softmax regression on digits. The seed decides the held-out rows and the split."""
    return asgd.tasks.digits(workers=CLIENTS, split=split, alpha=0.3, batch=BATCH, seed=seed)


@cache
def best_accuracy(seed: int, split: str) -> float:
    """Return the held-out accuracy of the optimum of all clients."""
    problem = task(seed, split)
    return float(problem.evaluate(problem.optimum)["accuracy"])


def durations(setting: Setting) -> asgd.durations.Durations:
    """Return seconds per mini-batch; the last clients are the slow ones."""
    means = [1.0] * (CLIENTS - setting.slow) + [setting.factor] * setting.slow
    return asgd.durations.lognormal([mean / STEPS for mean in means], sigma=0.3)


def methods(name: str, local: tuple[float, ...] = LOCAL) -> dict[tuple[float, float], asgd.Method]:
    """Return a contestant with all step sizes to try, by (client's, server's)."""
    make, servers = CONTESTANTS[name]
    return {(step, server): make(server).local(STEPS, step) for step in local for server in servers}


class Measured(NamedTuple):
    """Times to the levels (infinite if not reached), the accuracy at the end, and updates per unit of time."""

    times: tuple[float, ...]
    last: float
    rate: float


def measure(method: asgd.Method, setting: Setting, seed: int) -> Measured:
    """Simulate one run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bias and divergence are what we measure
        run = asgd.simulate(
            task(seed, setting.split), method, durations(setting), iterations=ARRIVALS, every=EVERY, seed=seed
        )
    accuracy, times = np.asarray(run.metrics["accuracy"]), np.asarray(run.metrics["time"])
    best = best_accuracy(seed, setting.split)
    held = np.lib.stride_tricks.sliding_window_view(accuracy, HELD).min(axis=1)
    reached = [np.flatnonzero(held >= level * best) for level in LEVELS]
    found = tuple(float(times[some[0]]) if len(some) else math.inf for some in reached)
    return Measured(found, float(accuracy[-20:].mean() / best), len(run.trace.delay) / float(times[-1]))
