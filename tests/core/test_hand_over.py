"""The optimizer gets (mean, η): a buffer or a memory changes neither the scale of the direction nor the step."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from asyncsgd import methods
from asyncsgd.core.aggregation import Buffer, Each, Memory
from asyncsgd.core.events import Arrived, Joined
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import AdaDelayCoordinates, Adam, Optimizer
from asyncsgd.core.server import Server
from asyncsgd.core.steps import Custom

ETA = 1e-3
FEDBUFF = {"concurrency": 8}


@dataclass(frozen=True)
class Spy(Optimizer):
    """Writes down what it is given."""

    seen: list[tuple[list[float], float]] = field(default_factory=list)

    def step(self, state: Any, x: Any, d: Any, step: float, out: Any, arrival: Any) -> None:
        self.seen.append((d.tolist(), step))
        np.copyto(out, x)


def moved(method: Method, *, workers: int, versions: int = 1, scale: float = 1.0) -> float:
    """How far each coordinate is after so many changes of the model, where all gradients are the same."""
    server = Server(np.zeros(3), method)
    server.handle(Joined(range(workers)))
    while server.version < versions:
        server.handle(Arrived(server.in_flight[0].id, np.full(3, scale)))
    assert len(set(server.x.tolist())) == 1
    return -float(server.x[0])


@pytest.mark.parametrize("scale", [1e-2, 1.0, 1e4])
@pytest.mark.parametrize("size", [1, 4, 10])
@pytest.mark.parametrize("amsgrad", [False, True])
def test_adams_first_move_is_the_stepsize_whatever_the_buffer(size: int, scale: float, amsgrad: bool) -> None:
    method = methods.fedbuff(ETA, buffer=size, **FEDBUFF).using(optimizer=Adam(amsgrad=amsgrad))
    assert moved(method, workers=4, scale=scale) == pytest.approx(ETA, rel=1e-5)
    rounds = methods.fedavg(ETA, clients=size).using(optimizer=Adam())
    assert moved(rounds, workers=13, scale=scale) == pytest.approx(ETA, rel=1e-5)
    rennala = methods.rennala(ETA, batch=size).using(optimizer=Adam())
    assert moved(rennala, workers=4, scale=scale) == pytest.approx(ETA, rel=1e-5)


@pytest.mark.parametrize("workers", [1, 10])
def test_adams_first_move_is_the_stepsize_whatever_the_memory(workers: int) -> None:
    method = methods.mifa(ETA).using(optimizer=Adam())
    assert moved(method, workers=workers) == pytest.approx(ETA, rel=1e-5)
    assert moved(method, workers=workers, versions=5) == pytest.approx(5 * ETA, rel=1e-5)


@pytest.mark.parametrize("size", [1, 4, 10])
def test_adadelays_own_scale_sees_a_mean(size: int) -> None:
    """x ← x - η d/(L + |d|) at t = 1 without delay; d is the gradient 2, not the sum of K of them."""
    method = Method("batch", methods.async_sgd(ETA).step, aggregation=Buffer(size), optimizer=AdaDelayCoordinates(3.0))
    server = Server(np.zeros(1), method)
    server.handle(Joined(0))
    for job in range(size):
        server.handle(Arrived(job, np.array([2.0])))
    c = np.sqrt(2.0**2 / size)  # the mean over all arrivals, of which only the last one was seen
    assert -server.x[0] == pytest.approx(ETA * 2.0 / (3.0 + c * np.sqrt(size)))


WEIGHTS = [0.5, 1.0, 0.25, 2.0]
UPDATES = [[1.0, -2.0], [4.0, 0.0], [8.0, 2.0], [3.0, -1.0]]


def watched(gather: Any) -> tuple[list[tuple[list[float], float]], list[float]]:
    """What the optimizer is given, and the recorded steps, of two workers with the updates and weights above."""
    spy = Spy()
    step = Custom(0.3, lambda arrival: WEIGHTS[arrival.iteration])
    server = Server(np.zeros(2), Method("watched", step, aggregation=gather, optimizer=spy))
    server.handle(Joined([0, 1]))
    steps = []
    for update in UPDATES:
        reply = server.handle(Arrived(server.in_flight[0].id, np.array(update)))
        steps.append(reply.ended[0].step)
    return spy.seen, steps


def test_each_arrival_hands_over_its_update_and_its_own_step() -> None:
    seen, steps = watched(Each())
    assert seen == [(update, 0.3 * weight) for update, weight in zip(UPDATES, WEIGHTS, strict=True)]
    assert steps == [0.3 * weight for weight in WEIGHTS]


@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_buffer_hands_over_the_weighted_mean_and_the_stepsize(size: int) -> None:
    seen, steps = watched(Buffer(size))
    weighted = np.array(WEIGHTS)[:, None] * np.array(UPDATES)  # exact, as are the sums: small fractions of 2
    assert seen == [(mean.tolist(), 0.3) for mean in weighted.reshape(-1, size, 2).sum(axis=1) / size]
    assert steps == pytest.approx([0.3 * weight / size for weight in WEIGHTS])  # the share of each


def test_a_memory_hands_over_the_mean_of_the_last_and_the_weighted_step() -> None:
    seen, steps = watched(Memory())  # the workers answer in turn
    first, second, third, fourth = np.array(UPDATES)
    means = [(a + b) / 2 for a, b in [(first, second), (third, second), (third, fourth)]]
    assert [mean for mean, _ in seen] == [mean.tolist() for mean in means]
    assert [step for _, step in seen] == [0.3 * weight for weight in WEIGHTS[1:]]
    assert steps == [0.0, *(0.3 * weight / 2 for weight in WEIGHTS[1:])]


def test_noise_is_on_the_sum_and_divided_with_it() -> None:
    """Zero updates: what the optimizer gets has the deviation noise/K."""
    spy = Spy()
    method = methods.fedbuff(1.0, buffer=4, **FEDBUFF).clipped(2.0, noise=1.5).using(optimizer=spy)
    server = Server(np.zeros(4000), method, seed=5)
    server.handle(Joined(0))
    for job in range(8):
        server.handle(Arrived(job, np.zeros(4000)))
    assert [step for _, step in spy.seen] == [1.0, 1.0]
    assert np.std([d for d, _ in spy.seen]) == pytest.approx(1.5 * 2.0 / 4, rel=0.05)
