"""What all simulated parts share: digits on clients, the contestants, their step sizes, and the time to an accuracy.

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
"""Jobs in flight of every asynchronous method, clients of a round, and arrivals between two evaluations."""
BUFFER = 5
LEVELS = (0.95, 0.98)
"""Accuracies to reach, as shares of the accuracy of the optimum of all clients. We fixed them before tuning."""
HELD = 3
"""An accuracy counts as reached at the first of this many evaluations in a row that have it."""
ARRIVALS = 1500
"""Length of a run; a method that needs more does not reach the level."""
LOCAL = (0.1, 0.3, 1.0)
"""Step sizes of the clients to try."""
MEANS, SINGLE, MIXED = (0.5, 1.0, 2.0, 4.0), (0.05, 0.1, 0.2, 0.4), (0.1, 0.2, 0.4, 0.8)
"""Step sizes of the server to try: for a mean of updates, for single updates, for FedAsync's mixture of models."""


class Setting(NamedTuple):
    """Which clients are slow, how much the data differ, and how many clients there are."""

    slow: int = 4
    factor: float = 10.0
    split: str = "dirichlet"
    clients: int = CLIENTS
    at_once: int = AT_ONCE
    buffer: int = BUFFER
    kept: int = AT_ONCE
    """Clients of a round of over-selection, which asks ``asked`` of them."""
    asked: int = 14


class Contestant(NamedTuple):
    """A method as a function of the server's step size and the setting, and the step sizes to try."""

    make: Callable[[float, Setting], asgd.Method]
    servers: tuple[float, ...]


def fedbuff(stepsize: float, where: Setting, *, calibrated: bool = False, idle: bool = False) -> asgd.Method:
    """Return FedBuff; with ``idle``, jobs go to idle clients only, in the order in which they became idle."""
    method = asgd.fedbuff(stepsize, concurrency=where.at_once, buffer=where.buffer, calibrated=calibrated)
    return method.using(dispatch=asgd.dispatch.always_busy(where.at_once)) if idle else method


CONTESTANTS = {
    "FedAvg": Contestant(lambda s, where: asgd.fedavg(s, clients=where.at_once), MEANS),
    "FedAvg, all clients": Contestant(lambda s, where: asgd.fedavg(s, clients=where.clients), MEANS),
    "over-selection": Contestant(lambda s, where: asgd.fedavg(s, clients=where.kept, ask=where.asked), MEANS),
    "FedBuff": Contestant(fedbuff, MEANS),
    "FedBuff, idle clients": Contestant(lambda s, where: fedbuff(s, where, idle=True), MEANS),
    "CA²FL": Contestant(lambda s, where: fedbuff(s, where, calibrated=True), MEANS),
    "CA²FL, idle clients": Contestant(lambda s, where: fedbuff(s, where, calibrated=True, idle=True), MEANS),
    "Algorithm 2": Contestant(lambda s, where: asgd.federated_async_sgd(s, concurrency=where.at_once), SINGLE),
    "FedAsync": Contestant(lambda s, where: asgd.fedasync(s, concurrency=where.at_once), MIXED),
}


@cache
def task(seed: int, split: str = "dirichlet", clients: int = CLIENTS) -> asgd.tasks.Softmax:
    """Return softmax regression on digits. The seed decides the held-out rows and the split."""
    return asgd.tasks.digits(workers=clients, split=split, alpha=0.3, batch=BATCH, seed=seed)


@cache
def best_accuracy(seed: int, split: str, clients: int = CLIENTS) -> float:
    """Return the held-out accuracy of the optimum of all clients."""
    problem = task(seed, split, clients)
    return float(problem.evaluate(problem.optimum)["accuracy"])


def durations(setting: Setting) -> asgd.durations.Durations:
    """Return seconds per mini-batch; the last clients are the slow ones."""
    means = [1.0] * (setting.clients - setting.slow) + [setting.factor] * setting.slow
    return asgd.durations.lognormal([mean / STEPS for mean in means], sigma=0.3)


def methods(name: str, where: Setting, local: tuple[float, ...] = LOCAL) -> dict[tuple[float, float], asgd.Method]:
    """Return a contestant with all step sizes to try, by (client's, server's)."""
    make, servers = CONTESTANTS[name]
    return {(step, server): make(server, where).local(STEPS, step) for step in local for server in servers}


class Measured(NamedTuple):
    """Times to the levels (infinite if not reached), the accuracy at the end, and updates per unit of time."""

    times: tuple[float, ...]
    last: float
    rate: float


def measure(method: asgd.Method, setting: Setting, seed: int) -> Measured:
    """Simulate one run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # bias and divergence are what we measure
        problem = task(seed, setting.split, setting.clients)
        often = {"iterations": ARRIVALS, "every": setting.at_once}
        run = asgd.simulate(problem, method, durations(setting), **often, seed=seed)
    accuracy, times = np.asarray(run.metrics["accuracy"]), np.asarray(run.metrics["time"])
    best = best_accuracy(seed, setting.split, setting.clients)
    held = np.lib.stride_tricks.sliding_window_view(accuracy, HELD).min(axis=1)
    reached = [np.flatnonzero(held >= level * best) for level in LEVELS]
    found = tuple(float(times[some[0]]) if len(some) else math.inf for some in reached)
    return Measured(found, float(accuracy[-20:].mean() / best), len(run.trace.delay) / float(times[-1]))
