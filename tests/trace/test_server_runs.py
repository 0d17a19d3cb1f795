"""The real server's own runs: every method's trace is sound, with workers that come, go and lose jobs."""

import random

import numpy as np
import pytest

from asyncsgd import methods
from asyncsgd.core.events import Arrived, Joined, Left, Lost, Outcome
from asyncsgd.core.server import Server
from asyncsgd.trace import Recorder, Trace

METHODS = {
    "async_sgd": lambda: methods.async_sgd(0.1),
    "async_sgd, concurrency 2": lambda: methods.async_sgd(0.1, concurrency=2),
    "minibatch_sgd": lambda: methods.minibatch_sgd(0.1),
    "delay_adaptive": lambda: methods.delay_adaptive(0.1),
    "federated": lambda: methods.federated_async_sgd(0.1, concurrency=5),
    "federated, early": lambda: methods.federated_async_sgd(0.1, concurrency=5, early=True),
    "shuffled": lambda: methods.federated_async_sgd(0.1, concurrency=5, order="shuffled"),
    "over_selection": lambda: methods.fedavg(0.1, clients=2, ask=3),
    "rennala": lambda: methods.rennala(0.1, batch=3),
    "ringmaster": lambda: methods.ringmaster(0.1, limit=3),
    "ringmaster, stops": lambda: methods.ringmaster(0.1, limit=3, stops=True),
}


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", METHODS)
def test_the_identity_holds_in_every_method(name, seed):
    method = METHODS[name]()
    server = Server(np.zeros(2), method, seed=seed)
    recorder = Recorder()
    draw = random.Random(f"{name} {seed}")
    update, newcomer = np.ones(2), 10

    def handle(event):
        reply = server.handle(event)
        recorder.record(float(clock), reply.commands, reply.ended)

    clock = 0
    handle(Joined([0, 1, 2, 3]))
    for clock in range(1, 300):
        kind = draw.random()
        heads = {job.worker: job for job in reversed(server.in_flight)}  # first in, first out
        if kind < 0.03 and len(server.workers) > 1:
            handle(Left(draw.choice(server.workers)))
        elif kind < 0.06 or not heads:
            handle(Joined([newcomer]))
            newcomer += 1
        elif kind < 0.12:
            handle(Lost(draw.choice(server.in_flight).id, draw.choice([Outcome.LOST, Outcome.REJECTED])))
        else:
            handle(Arrived(draw.choice(list(heads.values())).id, update))
        if clock % 50 == 0:
            recorder.trace(server.concurrency).check(early=method.dispatch.early)
    trace = recorder.trace(server.concurrency)
    identity = trace.check(early=method.dispatch.early)
    assert identity.total == identity.concurrency
    assert trace.iterations == server.iteration
    assert trace.delays.concurrency <= max(trace.concurrency.max(), server.concurrency)
    assert np.flatnonzero(trace.jobs.in_flight).tolist() == sorted(job.id for job in server.in_flight)
    # A server restored from a checkpoint goes on from the rewound trace.
    assert isinstance(trace.rewind(len(trace), [job.id for job in server.in_flight]), Trace)
