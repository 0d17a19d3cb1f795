"""Run a server and its twin side by side along a script of small integers, and compare after every event."""

import numpy as np
from core.twins.work import local_adam, local_steps

from asyncsgd.core.events import Arrived, Assign, Changed, Drain, Joined, Left, Lost, Outcome
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.optimizers import Adam
from asyncsgd.core.random import below, derive
from asyncsgd.core.server import Server
from asyncsgd.core.work import LocalSteps, Tools
from asyncsgd.run.checkpoints import pack, unpack

MOST_WORKERS = 9


def vector(number, dim, large):
    """A vector that ``number`` stands for: zeros of both signs, tiny, large and ordinary coordinates."""
    state, values = derive(number, 0x7E57), []
    for _ in range(dim):
        state, kind = below(state, 10)
        state, k = below(state, 1 << 31)
        ordinary = k / (1 << 30) - 1.0
        special = {0: 0.0, 1: -0.0, 2: 1e-30 * ordinary, 3: large * ordinary}
        values.append(special.get(kind, ordinary))
    return values


def pull(y, worker, seed):
    """A gradient for local steps that works on arrays and, coordinate by coordinate, on lists."""
    shift = below(seed, 1000)[1] / 500 - 1.0 + worker
    return y * 0.75 - shift if isinstance(y, np.ndarray) else [value * 0.75 - shift for value in y]


def side_by_side(method, make_twin, script, *, start, dim=3, seed=0, dtype=np.float64, large=1e6, restore_every=None):
    """Feed both the same events; ``script`` holds (kind, which, number) triples, read modulo what is possible.

    Every ``restore_every`` events the server is saved, thrown away and restored.
    """
    number = float if dtype == np.float64 else np.float32
    x = np.array(vector(seed, dim, 1.0), dtype=dtype)
    own_data = bool(seed % 2)
    server = Server(x.copy(), method, seed, batches="worker" if own_data else "all")
    twin = make_twin([number(value) for value in x], seed=seed, number=number)
    twin.steps, twin.own_data = method.work.steps, own_data
    fresh = start
    _both(server, twin, Joined(range(start)))
    for place, (kind, which, value) in enumerate(script):
        if restore_every and place % restore_every == restore_every - 1:
            server = Server.restore(unpack(*pack(server.state())), method)
        heads = _heads(twin)
        if kind == 12:
            fresh = _join(server, twin, which, value, fresh)
        elif kind == 13 and twin.present:
            _both(server, twin, Left(twin.present[which % len(twin.present)]))
        elif kind in (14, 15) and twin.flight:
            outcome = Outcome.LOST if kind == 14 else Outcome.REJECTED
            _both(server, twin, Lost(twin.flight[which % len(twin.flight)], outcome))
        elif kind == 16:
            _both(server, twin, Drain((None, 0, which % 7, which % 40)[value % 4]))
        elif kind == 17:
            _both(server, twin, Changed((0.5, 2.0, 0.3, 1.7)[value % 4]))
        elif heads:
            job = heads[which % len(heads)]
            examples = (None, value % 50, value % 7)[value % 3]
            _both(server, twin, Arrived(job, _update(server, twin, job, value, dtype, large), examples=examples))
    return server, twin


def _heads(twin):
    """The oldest job of every worker: what may arrive next."""
    oldest = {}
    for job in twin.flight:
        oldest.setdefault(twin.jobs[job].worker, job)
    return list(oldest.values())


def _join(server, twin, which, value, fresh):
    absent = [worker for worker in range(fresh) if worker not in twin.present]
    group = [absent[which % len(absent)]] if absent and value % 2 else list(range(fresh, fresh + 1 + value % 3))
    if len(twin.present) + len(group) <= MOST_WORKERS:
        _both(server, twin, Joined(group))
        fresh = max(fresh, *(worker + 1 for worker in group))
    return fresh


def _update(server, twin, job, value, dtype, large):
    work, record = server.method.work, twin.jobs[job]
    if not isinstance(work, LocalSteps):
        return np.array(vector(value, len(twin.x), large), dtype=dtype)
    tools = Tools(work.memory(server.x), Kernels())
    counts = (record.steps, record.batch)
    update = work.compute(pull, server.point(job), record.worker, record.seed, counts, tools)
    job_of = (pull, record.point, record.worker, record.seed, record.steps, work.stepsize)
    if isinstance(work.optimizer, Adam):
        naive = local_adam(*job_of, work.optimizer.weight_decay)
    else:
        naive = local_steps(*job_of, work.scaled, work.proximal)
    assert_same(update, naive, "the update of the local steps")
    return update


def _both(server, twin, event):
    sent = event.update.copy() if isinstance(event, Arrived) else None
    reply = server.handle(event)
    match event:
        case Joined():
            twin.joined(event.workers)
        case Left():
            twin.left(event.worker)
        case Lost():
            twin.lost(event.job, event.outcome.name)
        case Changed():
            twin.changed(event.step_factor)
        case Drain():
            twin.drain(event.after)
        case Arrived():
            assert event.update.tobytes() == sent.tobytes(), "the server wrote into the worker's update"
            twin.arrived(event.job, sent.tolist(), event.examples)
    equal("commands", [told(command) for command in reply.commands], [twin_told(command) for command in twin.commands])
    for command, (_, job) in zip(reply.commands, twin.commands, strict=True):
        if isinstance(command, Assign):
            assert_same(command.point, job.point, f"the point of job {job.id}")
    equal("ended", [record(ended) for ended in reply.ended], twin.ended)
    equal("iteration and version", (server.iteration, server.version), (twin.t, twin.version))
    equal("workers", server.workers, tuple(twin.present))
    equal("τ_C", server.max_concurrency, max(twin.sizes, default=0))
    equal("mini-batches", server.batches, twin.batches())
    equal("in flight", [job.id for job in server.in_flight], twin.flight)
    assert_same(server.x, twin.x, "x")
    assert_same(server.output, twin.output, "the output")
    for job in twin.flight:
        assert_same(server.point(job), twin.jobs[job].point, f"the point of job {job}")


def equal(what, server, twin):
    """Spelled out, as pytest explains bare asserts only in test files."""
    if server != twin:
        raise AssertionError(f"{what}: server {server}, twin {twin}")


def told(command):
    job = command.job
    if not isinstance(command, Assign):
        return ("cancel", job.id)
    return ("assign", job.id, job.worker, job.iteration, job.version, job.entered, job.seed, job.steps, job.batch)


def twin_told(command):
    kind, job = command
    if kind == "cancel":
        return command
    return (kind, job.id, job.worker, job.iteration, job.version, job.entered, job.seed, job.steps, job.batch)


def record(ended):
    return (
        ended.job.id,
        ended.outcome.name,
        ended.iteration,
        ended.version,
        ended.step,
        ended.concurrency,
        ended.workers,
    )


def assert_same(array, values, what):
    """Bit for bit."""
    expected = np.array(values, dtype=array.dtype)
    if array.tobytes() != expected.tobytes():
        raise AssertionError(f"{what}: server {array.tolist()}, twin {expected.tolist()}")
