"""The compiled pass of the server: the bits of NumPy's, on its own and in a whole run of events."""

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.compiled.kernels import CompiledKernels, ready
from asyncsgd.compiled.vectors import subtract_scaled as compiled
from asyncsgd.core.events import Arrived, Assign, Joined, Lost
from asyncsgd.core.server import Server
from asyncsgd.core.vectors import subtract_scaled

METHODS = {
    "plain": asgd.async_sgd(0.3),
    "in place": asgd.minibatch_sgd(0.3),
    "early": asgd.federated_async_sgd(0.3, concurrency=5, early=True),
    "weighted": asgd.delay_adaptive(0.3),
    "momentum": asgd.async_sgd(0.3).using(optimizer=asgd.optimizers.momentum(0.9)),
    "buffer": asgd.fedbuff(0.3, concurrency=4, buffer=3).local(1, 0.1),
    "clipped": asgd.async_sgd(0.3).clipped(0.5),
    "twice clipped": asgd.async_sgd(0.3).clipped(0.5).clipped(0.3),
    "nesterov": asgd.minibatch_sgd(0.3).using(optimizer=asgd.optimizers.momentum(0.9, nesterov=True)),
    "adamw": asgd.async_sgd(0.3).clipped(0.5).using(optimizer=asgd.optimizers.adamw(weight_decay=0.1)),
    "amsgrad": asgd.fedbuff(0.3, concurrency=4, buffer=3).using(optimizer=asgd.optimizers.adamw(amsgrad=True)),
    "excluded": asgd.delay_adaptive(0.3)
    .using(optimizer=asgd.optimizers.adamw(weight_decay=0.1, exclude="bias"))
    .bind_layout((("weight", 0, (4, 5)), ("bias", 20, (5,)), ("head", 25, (8,)))),
    "memory": asgd.mifa(0.3).clipped(0.5).using(optimizer=asgd.optimizers.adamw()),
    "averaged": asgd.async_sgd(0.3).using(average=True, optimizer=asgd.optimizers.momentum(0.5)),
}


def numbers(random, length, dtype):
    """Of every magnitude that the dtype knows, zeros and subnormal numbers included."""
    widest = np.finfo(dtype).maxexp - 2
    exponents = random.integers(-widest - 24, widest // 2, length)
    values = np.ldexp(random.standard_normal(length), exponents).astype(dtype)
    values[random.random(length) < 0.05] = 0
    return values


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 1000, 100_003])
def test_it_rounds_as_numpy_does(dtype, length):
    random = np.random.default_rng(length)
    x, g = numbers(random, length, dtype), numbers(random, length, dtype)
    for scale in (0.3, 1 / 3, -1e-3, 1e30):
        expected, out, same = np.empty_like(x), np.empty_like(x), x.copy()
        with np.errstate(all="ignore"):
            subtract_scaled(x, scale, g, expected)
        view = x.view()
        view.flags.writeable = False
        compiled(view, scale, g, out)
        compiled(same.view(), scale, g, same)
        assert out.tobytes() == same.tobytes() == expected.tobytes()


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_server_that_uses_it_is_the_same_server(name, dtype):
    random = np.random.default_rng(1)
    kernels = (None, ready(METHODS[name], dtype))
    servers = [Server(np.ones(33, dtype), METHODS[name], seed=2, kernels=given) for given in kernels]
    sent = {}  # job -> its point when it left
    for server in servers:
        sent |= {command.job.id: command.point.tobytes() for command in server.handle(Joined(range(4))).commands}
    for step in range(300):
        jobs = {job.worker: job for job in reversed(servers[0].in_flight)}
        job = jobs[int(random.choice(list(jobs)))]
        g = random.standard_normal(33).astype(dtype)
        event = Lost(job.id) if step % 17 == 0 else Arrived(job.id, g)
        first, second = (server.handle(event) for server in servers)
        assert [command.job for command in first.commands] == [command.job for command in second.commands]
        assert first.ended == second.ended
        assert servers[0].x.tobytes() == servers[1].x.tobytes()
        sent |= {command.job.id: command.point.tobytes() for command in second.commands if isinstance(command, Assign)}
        assert all(servers[1].point(job.id).tobytes() == sent[job.id] for job in servers[1].in_flight)
    assert servers[0].version > 0


def test_an_overflow_raises_nothing_and_leaves_no_half_done_step():
    server = Server(np.full(3, 3e38, np.float32), asgd.async_sgd(1.0), kernels=CompiledKernels())
    [assign] = server.handle(Joined(0)).commands
    with np.errstate(all="raise"):
        server.handle(Arrived(assign.job.id, np.full(3, -3e38, np.float32)))
    assert server.version == 1
    assert np.isinf(server.x).all()


def test_two_workers_take_two_buffers():
    server = Server(np.zeros(3), asgd.async_sgd(0.1), kernels=CompiledKernels())
    server.handle(Joined(range(2)))
    for _ in range(20):
        server.handle(Arrived(server.in_flight[0].id, np.ones(3)))
    assert server._update.points.slots == 2


def test_one_worker_takes_one_buffer():
    server = Server(np.zeros(3), asgd.async_sgd(0.5), kernels=CompiledKernels())
    server.handle(Joined(0))
    for _ in range(4):
        server.handle(Arrived(server.in_flight[0].id, np.ones(3)))
    assert server._update.points.slots == 1
    assert server.x.tolist() == [-2.0, -2.0, -2.0]
