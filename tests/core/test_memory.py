"""A server holds a vector per point in flight, two more, and what its parts remember: nothing else of that length.

With compiled kernels a move overwrites the point of its arrival where that is safe: then one vector less.
"""

import tracemalloc

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.compiled.kernels import CompiledKernels, ready
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.vectors import BLOCK
from asyncsgd.run.memory import memory_needed

WORKERS = 3
ADAMW = asgd.optimizers.adamw(weight_decay=0.1, exclude="bias")
METHODS = {  # a method, and the vectors that its parts remember
    "sgd": (asgd.async_sgd(0.1), 0),
    "momentum": (asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.momentum(nesterov=True)), 1),
    "adamw": (asgd.delay_adaptive(0.1).clipped(1.0).using(optimizer=ADAMW), 2),
    "amsgrad": (asgd.minibatch_sgd(0.1).using(optimizer=asgd.optimizers.adamw(amsgrad=True)), 3),
    "buffer with noise": (asgd.fedbuff(0.1, concurrency=3, buffer=2).clipped(1.0, noise=0.1), 1),
    "delayed nesterov": (asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.delayed_nesterov(every=2)), 2),
    "look-ahead": (asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.look_ahead(ahead=True)), 2),
    "decoupled": (asgd.decoupled_diloco(quorum=2), 2),
    "memory": (asgd.mifa(0.1).using(optimizer=asgd.optimizers.momentum()), 1 + 1 + WORKERS),
    "calibrated": (asgd.fedbuff(0.1, concurrency=3, buffer=2, calibrated=True), 3 + WORKERS),
    "calibrated, weighted": (asgd.fedbuff(0.1, concurrency=3, buffer=2, calibrated=True).weighted(), 3 + WORKERS),
    "median": (asgd.fedbuff(0.1, concurrency=3).using(aggregation=asgd.aggregation.median(4)), 4),
    "krum": (asgd.fedbuff(0.1, concurrency=3).using(aggregation=asgd.aggregation.krum(3, byzantine=0)), 3),
    "compensated": (asgd.methods.dc_asgd(0.1, adaptive=True), 1),
    "interpolated": (asgd.fedasync(0.5, concurrency=3), 0),
    "coordinates": (asgd.methods.adadelay(0.1, smoothness=1.0, coordinates=True), 1),
    "delayed average": (asgd.methods.delayed_average(0.1), 1),
    "averaged": (asgd.async_sgd(0.1).using(average=True), 1),
    "early": (asgd.federated_async_sgd(0.1, concurrency=3, early=True), 0),
}


def peak(method, dimension, kernels):
    """The most bytes that a server allocates over a few arrivals of every worker; updates belong to the caller."""
    x, g = np.ones(dimension, np.float32), np.full(dimension, 0.5, np.float32)
    ready(method, np.float32)  # a compiler allocates too
    tracemalloc.start()
    try:
        server = asgd.Server(x, method, kernels=kernels)
        server.handle(asgd.Joined(range(WORKERS)))
        for _ in range(4 * WORKERS):
            server.handle(asgd.Arrived(server.in_flight[0].id, g))
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert server.version > 2
    return most


def check(name, dimension, kernels):
    method, remembered = METHODS[name]
    method = method.bind_layout((("weight", 0, (dimension - 5,)), ("bias", dimension - 5, (5,))))
    size = 4 * dimension
    most = peak(method, dimension, kernels)
    assert most <= (WORKERS + 2 + remembered) * size + 8 * 8 * BLOCK  # and a few blocks of float64
    needed = memory_needed(method, dimension, "float32", WORKERS)
    spare = 0 if kernels.never_raises else size  # `memory_needed` is about runs, which have compiled kernels
    assert most <= needed.total - needed.updates + spare + 8 * 8 * BLOCK


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("make", [Kernels, CompiledKernels])
def test_a_server_makes_no_hidden_vector(name, make):
    check(name, 3_000_000, make())


@pytest.mark.slow
@pytest.mark.parametrize("make", [Kernels, CompiledKernels])
def test_ten_million_parameters_with_adamw_and_clipping(make):
    check("adamw", 10_000_000, make())


def test_what_is_needed_by_part():
    size = 8 * 10**6
    adam = asgd.optimizers.adamw(amsgrad=True)
    needed = memory_needed(asgd.async_sgd(0.1).clipped(1.0).using(optimizer=adam, average=True), 10**6, "float64", 4)
    assert needed == (4 * size, 4 * size, 3 * size, 2 * size, 0)
    assert needed.total == 13 * size
    assert memory_needed(asgd.methods.dc_asgd(0.1), 10**6, "float64", 4).points == 5 * size
    assert memory_needed(asgd.mifa(0.1), 10**6, "float64", 4).memories == 5 * size
    calibrated = asgd.fedbuff(0.1, concurrency=4, calibrated=True)
    assert memory_needed(calibrated, 10**6, "float64", 4).memories == (4 + 3) * size
    robust = asgd.fedavg(clients=4).using(aggregation=asgd.aggregation.median(4))
    assert memory_needed(robust, 10**6, "float64", 4).buffers == (4 + 1) * size
    assert memory_needed(asgd.minibatch_sgd(0.1), 10**6, "float64", 4).points == 2 * size
    early = asgd.federated_async_sgd(0.1, concurrency=9, early=True)
    assert memory_needed(early, 10**6, "float64", 4)[:2] == (10 * size, 8 * size)


@pytest.mark.parametrize(("optimizer", "state"), [("sgd", 0), ("adamw", 2)])
def test_two_workers_need_four_vectors_and_the_state_of_the_optimizer(optimizer, state):
    method = asgd.async_sgd(0.1).using(optimizer=getattr(asgd.optimizers, optimizer)())
    assert memory_needed(method, 10, "float32", 2).total == (4 + state) * 40


def handle(servers, held, event):
    """Both servers do the same, and the points of all jobs in flight stay as they were handed out."""
    replies = [server.handle(event) for server in servers]
    for server, reply in zip(servers, replies, strict=True):
        assert reply.ended == replies[0].ended
        held |= {command.job.id: command.point.tobytes() for command in reply.commands if hasattr(command, "point")}
        assert [held[job.id] for job in server.in_flight] == [
            server.point(job.id).tobytes() for job in server.in_flight
        ]
        assert server.output.tobytes() == servers[0].output.tobytes()
    assert servers[0].in_flight == servers[1].in_flight


MANY = {**METHODS, "one": (asgd.async_sgd(0.1, concurrency=1), 0), "rounds": (asgd.fedavg(0.1, clients=2, ask=4), 1)}


@pytest.mark.parametrize("name", MANY)
def test_overwriting_points_saves_buffers_and_changes_no_bit(name):
    """A server that overwrites the points of arrivals beside one that never does, along random events."""
    method = MANY[name][0].bind_layout((("weight", 0, (35,)), ("bias", 35, (5,))))
    random = np.random.default_rng(0)
    x, workers = random.standard_normal(40), 6
    servers = [asgd.Server(x, method, kernels=make()) for make in (Kernels, lambda: CompiledKernels(1))]
    most = memory_needed(method, 40, "float64", workers).points // x.nbytes
    held: dict[int, bytes] = {}  # what each job in flight was given
    handle(servers, held, asgd.Joined(range(3)))
    for _ in range(300):
        present, oldest = servers[0].workers, {job.worker: job.id for job in reversed(servers[0].in_flight)}
        kind, one, job = random.random(), int(random.integers(workers)), int(random.choice(list(oldest.values())))
        if kind < 0.8:
            handle(servers, held, asgd.Arrived(job, random.standard_normal(40)))
        elif kind < 0.85:
            handle(servers, held, asgd.Lost(job))
        elif one in present and len(present) > 1:
            handle(servers, held, asgd.Left(one))
        elif one not in present:
            handle(servers, held, asgd.Joined([one]))
        assert servers[1]._update.points.slots <= most
    assert servers[0].version > 20


def test_an_optimizer_of_torch_says_what_it_remembers():
    pytest.importorskip("torch")
    for kind, options, vectors in (("SGD", {}, 0), ("AdamW", {}, 2), ("AdamW", {"amsgrad": True}, 3)):
        method = asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.torch(kind, **options))
        assert memory_needed(method, 10, "float32", 1).optimizer == vectors * 40
