"""A server holds a vector per point in flight, two more, and what its parts remember: nothing else of that length."""

import tracemalloc

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.compiled.kernels import CompiledKernels, ready
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.memory import memory_needed
from asyncsgd.core.vectors import BLOCK

WORKERS = 3
ADAMW = asgd.optimizers.adamw(weight_decay=0.1, exclude="bias")
METHODS = {  # a method, and the vectors that its parts remember
    "sgd": (asgd.async_sgd(0.1), 0),
    "momentum": (asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.momentum(nesterov=True)), 1),
    "adamw": (asgd.delay_adaptive(0.1).clipped(1.0).using(optimizer=ADAMW), 2),
    "amsgrad": (asgd.minibatch_sgd(0.1).using(optimizer=asgd.optimizers.adamw(amsgrad=True)), 3),
    "buffer with noise": (asgd.fedbuff(0.1, concurrency=3, buffer=2).clipped(1.0, noise=0.1), 1),
    "memory": (asgd.mifa(0.1).using(optimizer=asgd.optimizers.momentum()), 1 + 1 + WORKERS),
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
    assert most <= needed.total - needed.updates + 8 * 8 * BLOCK


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
    assert needed == (5 * size, 4 * size, 3 * size, 2 * size, 0)
    assert needed.total == 14 * size
    assert memory_needed(asgd.mifa(0.1), 10**6, "float64", 4).memories == 5 * size
    assert memory_needed(asgd.minibatch_sgd(0.1), 10**6, "float64", 4).points == 2 * size
    early = asgd.federated_async_sgd(0.1, concurrency=9, early=True)
    assert memory_needed(early, 10**6, "float64", 4)[:2] == (11 * size, 8 * size)


def test_an_optimizer_of_torch_says_what_it_remembers():
    pytest.importorskip("torch")
    for kind, options, vectors in (("SGD", {}, 0), ("AdamW", {}, 2), ("AdamW", {"amsgrad": True}, 3)):
        method = asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.torch(kind, **options))
        assert memory_needed(method, 10, "float32", 1).optimizer == vectors * 40
