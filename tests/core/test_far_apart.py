"""Identities of the methods for workers far apart, and their local steps against loops of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from core.checks import through_file
from core.twins.work import local_steps

import asyncsgd as asgd
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import Batch
from asyncsgd.core.events import Assign
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import Momentum, Optimizer
from asyncsgd.core.outer_optimizers import DelayedNesterov, Muon, orthogonal
from asyncsgd.core.random import derive
from asyncsgd.core.server import Server
from asyncsgd.core.steps import Constant
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import LocalSteps, Tools, Work
from asyncsgd.core.worker import WorkerState

DIM = 4


def assigned(reply: asgd.Reply) -> list[Assign]:
    return [command for command in reply.commands if isinstance(command, Assign)]


def pull(x: Vector, worker: int, seed: int) -> Vector:
    return (x * 0.75 - (seed % 1000) / 500 + worker).astype(x.dtype)


# ------------------------------------------------------------------------------------------ Delayed Nesterov


def test_with_one_arrival_it_is_nesterov() -> None:
    random = np.random.default_rng(0)
    one, other = DelayedNesterov(0.9, every=1), Momentum(0.9, nesterov=True)
    x = random.normal(size=DIM).astype(np.float32)
    y, mine, theirs = x.copy(), one.init(x), other.init(x)
    for _ in range(50):
        d = random.normal(size=DIM).astype(np.float32)
        one.step(mine, x, d, 0.1, x, None)  # type: ignore[arg-type]
        other.step(theirs, y, d, 0.1, y, None)  # type: ignore[arg-type]
        assert x.tobytes() == y.tobytes()


@pytest.mark.parametrize("workers", [2, 3, 5])
def test_from_one_start_it_ends_where_a_round_of_diloco_ends(workers: int) -> None:
    """Rounds of both; every update depends on the model that it started from."""
    inner = asgd.diloco().work
    servers = [
        Server(np.linspace(-1, 1, DIM), Method(name, Constant(0.7), Batch(), inner, (), aggregation, optimizer))
        for name, aggregation, optimizer in (
            ("delayed", asgd.aggregation.each(), DelayedNesterov(0.9, workers)),
            ("diloco", Buffer(workers), Momentum(0.9, nesterov=True)),
        )
    ]
    jobs = [assigned(server.handle(asgd.Joined(range(workers)))) for server in servers]
    for _ in range(6):
        for place, server in enumerate(servers):
            round_, jobs[place] = jobs[place], []
            for command in round_:
                update = 0.1 * pull(command.point, command.job.worker, command.job.seed)
                jobs[place] += assigned(server.handle(asgd.Arrived(command.job.id, update)))
        assert len(jobs[0]) == workers
        np.testing.assert_allclose(servers[0].x, servers[1].x, rtol=1e-12)
    assert [server.version for server in servers] == [6 * workers, 6]


@pytest.mark.parametrize("activation", [0.0, 0.1, 0.25])
def test_the_momentum_is_applied_once_in_all(activation: float) -> None:
    """From one refresh to the next, the moves besides η d/N add up to η β m."""
    n, eta, random = 4, 0.5, np.random.default_rng(1)
    rule = DelayedNesterov(0.9, n, activation)
    x = random.normal(size=DIM)
    state = rule.init(x)
    for arrival in range(5 * n):
        d = random.normal(size=DIM)
        if arrival % n == n - 1:
            moved = np.zeros(DIM)  # by the momentum, since the refresh that comes now
        before = x.copy()
        rule.step(state, x, d, eta, x, None)  # type: ignore[arg-type]
        if arrival >= n - 1:
            moved += before - x - eta * d / n
        if arrival % n == n - 2 and arrival > n:
            np.testing.assert_allclose(moved, eta * 0.9 * state["m"], atol=1e-14)


def test_look_ahead_hands_out_the_point_ahead_and_returns_the_model() -> None:
    method = asgd.async_sgd(0.5).using(optimizer=asgd.optimizers.look_ahead(0.8, ahead=True))
    server = Server(np.ones(DIM), method)
    [command] = assigned(server.handle(asgd.Joined(0)))
    theta, m = np.ones(DIM), np.zeros(DIM)
    for number in range(5):
        update = np.arange(DIM) + number
        m = 0.8 * m + (1 - 0.8) * update
        theta = theta - 0.5 * (update + 0.8 * m)
        [command] = assigned(server.handle(asgd.Arrived(command.job.id, update.astype(float))))
        np.testing.assert_allclose(command.point, theta - 0.5 * 0.8 * m, rtol=1e-14)
        np.testing.assert_allclose(server.output, theta, rtol=1e-14)


def test_a_buffer_whose_workers_used_no_example_does_not_move() -> None:
    server = Server(np.ones(DIM), asgd.decoupled_diloco(quorum=2, momentum=0.0))
    for command in assigned(server.handle(asgd.Joined(range(2)))):
        server.handle(asgd.Arrived(command.job.id, np.ones(DIM), examples=0))
    assert server.version == 1
    assert server.x.tolist() == [1.0] * DIM


# ------------------------------------------------------------------------------------------ steps per worker


def test_slower_workers_get_fewer_steps_by_their_measured_speed(tmp_path: Path) -> None:
    """H_i = max(1, ⌊H v_i / max v⌋): v_i from reported seconds, half the last job and half what was known before."""
    server = Server(np.zeros(DIM), asgd.async_diloco(steps=40).bind(workers=3))
    jobs = {c.job.worker: c.job for c in assigned(server.handle(asgd.Joined(range(3))))}
    assert [jobs[worker].steps for worker in range(3)] == [40, 40, 40]  # no speed is known
    speeds: dict[int, float] = {}
    script = [(0, 0.5), (1, 1.0), (2, 64.0), (0, 0.25), (2, None), (1, 1.5), (2, 0.0), (0, 2.0), (1, 0.125), (2, 1.0)]
    handed_out = 120
    for place, (worker, seconds) in enumerate(script):
        job = jobs[worker]
        if place == 5:
            server = through_file(server, tmp_path)
        if seconds:
            v = job.steps / seconds
            speeds[worker] = v if worker not in speeds else (v + speeds[worker]) / 2
        [command] = assigned(server.handle(asgd.Arrived(job.id, np.zeros(DIM), seconds=seconds)))
        jobs[worker] = command.job
        share = speeds[worker] / max(speeds.values()) if worker in speeds else 1.0
        assert command.job.steps == max(1, math.floor(40 * share)), place
        assert command.job.batch == handed_out  # written into the job, where a replay finds it
        handed_out += command.job.steps
    assert min(job.steps for job in jobs.values()) < 20
    server.handle(asgd.Left(1))
    [command] = assigned(server.handle(asgd.Joined(1)))
    assert command.job.steps == 40  # whatever joins under its number may run elsewhere


def test_steps_given_for_each_worker() -> None:
    method = asgd.diloco().using(dispatch=asgd.dispatch.always_busy()).local(20, 0.1, per_worker=[30, 10, 1])
    server = Server(np.zeros(DIM), method.bind(workers=3), batches="worker")
    first = assigned(server.handle(asgd.Joined(range(4))))
    assert [command.job.steps for command in first] == [30, 10, 1, 20]  # a worker that came later has no number
    [second] = assigned(server.handle(asgd.Arrived(first[1].job.id, np.zeros(DIM))))
    assert (second.job.steps, second.job.batch) == (10, 10)


@pytest.mark.parametrize("counted", ["all", "worker"])
def test_a_schedule_of_local_steps_counts_the_batches_of_the_job(counted: str) -> None:
    method = asgd.async_sgd(1.0).local(3, asgd.schedules.custom(lambda t: 1.0 + t))
    server = Server(np.zeros(1), method.bind(workers=2), batches=counted)
    jobs = [c.job for c in assigned(server.handle(asgd.Joined(range(2))))]
    jobs += [c.job for c in assigned(server.handle(asgd.Arrived(0, np.zeros(1))))]
    assert [job.batch for job in jobs] == ([0, 3, 6] if counted == "all" else [0, 0, 3])
    for job in jobs:
        tools = Tools({}, Kernels())
        counts = (job.steps, job.batch)
        update = method.work.compute(lambda y, *_: np.ones(1), np.zeros(1), job.worker, job.seed, counts, tools)
        assert update.tolist() == [sum(1.0 + t for t in range(job.batch, job.batch + 3))]


def test_a_schedule_of_local_steps_ends_with_the_run() -> None:
    method = asgd.async_sgd(1.0).local(5, asgd.schedules.linear(0.1))
    assert method.bind(workers=4, iterations=100).work.stepsize == asgd.schedules.linear(0.1, total=500)
    assert method.bind(4, 101, "worker").work.stepsize == asgd.schedules.linear(0.1, total=127)


# ------------------------------------------------------------------------------------------ local steps and PyTorch


def local(optimizer: Optimizer, steps: int, **options: object) -> Work:
    return LocalSteps(steps, 0.05, optimizer=optimizer, **options)  # type: ignore[arg-type]


class Task:
    update = staticmethod(pull)


def torch_loop(make: Callable[[list], object], jobs: int, steps: int, kept: bool, clip: float | None) -> list[Vector]:
    """The updates of several jobs of one worker: a loop of plain PyTorch."""
    torch = pytest.importorskip("torch")
    y = torch.zeros(DIM, dtype=torch.float64, requires_grad=True)
    optimizer = make([y])
    updates = []
    for job in range(jobs):
        x = np.linspace(-1, 1, DIM) * (1 + job)
        if not kept:
            optimizer = make([y])
        y.data.copy_(torch.from_numpy(x))
        for q in range(steps):
            y.grad = torch.from_numpy(pull(y.detach().numpy(), 1, derive(job, q)))
            if clip is not None:
                torch.nn.utils.clip_grad_norm_([y], clip)
            optimizer.step()
        updates.append(x - y.detach().numpy())
    return updates


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_local_adamw_is_a_loop_of_pytorch(state: str, clip: float | None) -> None:
    torch = pytest.importorskip("torch")
    work = local(asgd.optimizers.adamw(weight_decay=0.1), 25, state=state, clip=clip)
    worker, mine = WorkerState(work, np.zeros(DIM)), []
    for job in range(3):
        mine.append(worker.compute(Task(), np.linspace(-1, 1, DIM) * (1 + job), 1, job, None, 0))
        worker.settle(used=True)
    naive = torch_loop(lambda p: torch.optim.AdamW(p, lr=0.05, weight_decay=0.1), 3, 25, state == "kept", clip)
    np.testing.assert_allclose(mine, naive, rtol=1e-5 if clip else 1e-10)  # PyTorch clips to norm / (length + 1e-6)


@pytest.mark.parametrize("state", ["fresh", "kept"])
def test_local_momentum_is_a_loop_of_pytorch(state: str) -> None:
    torch = pytest.importorskip("torch")
    worker = WorkerState(local(asgd.optimizers.momentum(0.9, nesterov=True), 7, state=state), np.zeros(DIM))
    mine = []
    for job in range(3):
        mine.append(worker.compute(Task(), np.linspace(-1, 1, DIM) * (1 + job), 1, job, None, 0))
        worker.settle(used=True)
    naive = torch_loop(lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True), 3, 7, state == "kept", None)
    np.testing.assert_allclose(mine, naive, rtol=1e-12)


def test_an_optimizer_of_pytorch_takes_local_steps() -> None:
    torch = pytest.importorskip("torch")
    worker = WorkerState(local(asgd.optimizers.torch("RAdam"), 7, state="kept"), np.zeros(DIM))
    mine = []
    for job in range(3):
        mine.append(worker.compute(Task(), np.linspace(-1, 1, DIM) * (1 + job), 1, job, None, 0))
        worker.settle(used=True)
    naive = torch_loop(lambda p: torch.optim.RAdam(p, lr=0.05), 3, 7, kept=True, clip=None)
    np.testing.assert_allclose(mine, naive, rtol=1e-12)


# ------------------------------------------------------------------------------------------ Muon

LAYOUT = (("embed", 0, (3, 2)), ("bias", 6, (2,)), ("tall", 8, (6, 3)), ("wide", 26, (2, 5)), ("head", 36, (2, 2)))
SIZE = 40


def times(a: list[list[float]], b: list[list[float]]) -> list[list[float]]:
    return [[sum(p * q for p, q in zip(row, column, strict=True)) for column in zip(*b, strict=True)] for row in a]


def plus(p: float, a: list[list[float]], q: float, b: list[list[float]]) -> list[list[float]]:
    return [[p * v + q * w for v, w in zip(*rows, strict=True)] for rows in zip(a, b, strict=True)]


def newton_schulz(g: list[list[float]]) -> list[list[float]]:
    """X ← a X + (b XXᵀ + c (XXᵀ)²) X, five times, after X = G / ‖G‖; with loops."""
    norm = math.sqrt(sum(value * value for row in g for value in row)) + 1e-7
    x = [[value / norm for value in row] for row in g]
    for _ in range(5):
        square = times(x, [list(column) for column in zip(*x, strict=True)])
        fourth = times(square, square)
        x = plus(3.4445, x, 1.0, times(plus(-4.7750, square, 2.0315, fourth), x))
    return x


def test_muon_is_its_formula() -> None:
    rule, random = asgd.optimizers.muon().bind_layout(LAYOUT), np.random.default_rng(2)
    assert isinstance(rule, Muon)
    assert rule.matrices == ((8, 6, 3), (26, 2, 5))
    x = random.normal(size=SIZE)
    state, adam = rule.init(x), asgd.optimizers.adamw()
    y, m = x.copy(), np.zeros(SIZE)
    rest, rest_state = x.copy(), adam.init(x)
    for _ in range(4):
        d = random.normal(size=SIZE)
        rule.step(state, x, d, 0.1, x, None)  # type: ignore[arg-type]
        adam.step(rest_state, rest, d, 0.1, rest, None)  # type: ignore[arg-type]
        m = 0.95 * m + d
        for offset, rows, columns in rule.matrices:
            part = slice(offset, offset + rows * columns)
            direction = np.array(newton_schulz((d + 0.95 * m)[part].reshape(rows, columns).tolist()))
            y[part] -= 0.1 * 0.2 * math.sqrt(max(rows, columns)) * direction.reshape(-1)
    for offset, rows, columns in rule.matrices:
        part = slice(offset, offset + rows * columns)
        np.testing.assert_allclose(x[part], y[part], rtol=1e-7)
        rest[part] = x[part]
    assert x.tobytes() == rest.tobytes()  # AdamW moves all other parameters


def test_muon_of_pytorch_agrees_as_far_as_bfloat16_goes() -> None:
    torch = pytest.importorskip("torch")
    if not hasattr(torch.optim, "Muon"):
        pytest.skip("this PyTorch has no Muon")
    rule, random = asgd.optimizers.muon().bind_layout((("weight", 0, (6, 4)),)), np.random.default_rng(3)
    x = random.normal(size=24).astype(np.float32)
    w = torch.nn.Parameter(torch.from_numpy(x.copy()).reshape(6, 4))
    theirs = torch.optim.Muon([w], lr=0.1, momentum=0.95, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    state, start = rule.init(x), x.copy()
    for _ in range(5):
        d = random.normal(size=24).astype(np.float32)
        rule.step(state, x, d, 0.1, x, None)  # type: ignore[arg-type]
        w.grad = torch.from_numpy(d).reshape(6, 4)
        theirs.step()
    moved, theirs_moved = x - start, w.detach().numpy().reshape(-1) - start
    assert np.linalg.norm(moved - theirs_moved) < 0.03 * np.linalg.norm(moved)


@pytest.mark.parametrize("shape", [(4, 9), (9, 4), (1, 7), (40, 20)])
def test_singular_values_end_near_one(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(4).normal(size=shape)
    u, values, v = np.linalg.svd(matrix, full_matrices=False)
    assert values.min() > 0.02 * np.linalg.norm(matrix)
    found = orthogonal(matrix)
    ended = np.diag(u.T @ found @ v.T)
    assert ended.min() > 0.6
    assert ended.max() < 1.3
    np.testing.assert_allclose(found, u @ np.diag(ended) @ v, atol=1e-10)  # the singular vectors stay


# ------------------------------------------------------------------------------------------ compiled code


@pytest.mark.parametrize("options", [{}, {"scaled": True}, {"proximal": 0.3}], ids=str)
def test_local_sgd_in_compiled_code_has_the_bits_of_the_worker_and_of_a_naive_loop(options: dict[str, Any]) -> None:
    task = asgd.tasks.quadratic(dim=DIM, workers=3, noise=0.5)
    method = asgd.async_sgd(0.5).local(3, 0.05, **options)
    run = asgd.simulate(task, method, asgd.durations.fixed([1.0, 1.7, 4.1]), iterations=40, seed=3)
    assert not run.slow_because  # it ran in compiled code
    server = Server(task.initial(), method, seed=3)
    server.handle(asgd.Joined(range(3)))
    state = WorkerState(method.job, server.x)
    for number in run.trace.job.tolist():
        job = next(job for job in server.in_flight if job.id == number)
        update = state.compute(task, server.point(number), job.worker, job.seed, job.steps, job.batch)
        by_loops = local_steps(
            lambda y, worker, seed: task.update(np.array(y), worker, seed).tolist(),
            *(server.point(number).tolist(), job.worker, job.seed, 3, 0.05),
            *(options.get("scaled", False), options.get("proximal", 0.0)),
        )
        assert update.tolist() == by_loops
        server.handle(asgd.Arrived(number, update))
    assert run.x.tobytes() == server.x.tobytes()
