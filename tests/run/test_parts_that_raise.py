"""A part of a method that raises half-way: the run stops with that error, and resumes from a sound checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from markers import share
from run.common import events, sound, train
from run.tasks import RudeCode

import asyncsgd as asgd
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import AlwaysBusy
from asyncsgd.core.errors import (
    BadParameter,
    BadStep,
    CancelledJob,
    EndedJob,
    NotFinite,
    RepeatedJob,
    TornServer,
    UnknownJob,
)
from asyncsgd.core.events import Arrival, Arrived, Joined, Left, Lost
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import Momentum
from asyncsgd.core.server import Server
from asyncsgd.core.steps import Custom
from asyncsgd.core.transforms import Transform
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Gradient
from asyncsgd.run import WorkersFailed, checkpoints

LEFT: dict[str, int] = {}
"""How many calls of a kind of part are left until it raises."""
RAISED: dict[str, type[Exception]] = {}
"""What a kind of part raises, if not what it usually does."""


WORKERS: tuple[type[Exception], ...] = (EndedJob, RepeatedJob, CancelledJob, UnknownJob, NotFinite)
"""Errors of ours that are about workers, in the hands of a user."""


class Broken(Exception):
    """What the user's code raises."""


def fuse(kind: str, error: Callable[[str], Exception] = Broken) -> None:
    """Every part calls this, having changed what it remembers."""
    if kind in LEFT:
        LEFT[kind] -= 1
        if LEFT[kind] < 0:
            raise RAISED.get(kind, error)(f"in {kind}")


@pytest.fixture(autouse=True)
def reset() -> Any:
    LEFT.clear()
    yield
    LEFT.clear()


def weigh(arrival: Arrival) -> float:
    fuse("step")
    for error in WORKERS:
        fuse(error.__name__, error)
    return 1.0


@dataclass(frozen=True)
class Sum(Transform):
    def init(self, x: Vector) -> dict[str, Any]:
        return {"sum": np.zeros_like(x)}

    def apply(self, state: dict[str, Any], g: Vector, arrival: Arrival) -> Vector:
        state["sum"] += g
        fuse("transform")
        fuse("transform that rejects", NotFinite)
        state["sum"] *= 0.9
        return g + 0.01 * state["sum"]


@dataclass(frozen=True)
class Three(Buffer):
    size: int = 3

    def add(self, state: Any, g: Vector, stepsize: float, weight: float, arrival: Arrival) -> Any:
        move = super().add(state, g, stepsize, weight, arrival)
        fuse("gather")
        return move

    def share(self, state: Any, stepsize: float, weight: float) -> float:
        fuse("share")
        return super().share(state, stepsize, weight)


@dataclass(frozen=True)
class Halfway(Momentum):
    def step(self, state: Any, x: Vector, d: Vector, step: float, out: Vector, arrival: Arrival) -> None:
        super().step(state, x, d, step, out, arrival)
        fuse("optimizer")


@dataclass(frozen=True)
class Busy(AlwaysBusy):
    def joined(self, state: Any, worker: int) -> None:
        super().joined(state, worker)
        fuse("joined")

    def left(self, state: Any, worker: int) -> None:
        super().left(state, worker)
        fuse("left")

    def ended(self, state: Any, worker: int, arrived: bool) -> None:
        super().ended(state, worker, arrived)
        fuse("ended")

    def over(self, state: Any, in_flight: int) -> bool:
        fuse("over")
        return super().over(state, in_flight)

    def pick(self, state: Any, in_flight: int) -> Sequence[int]:
        picked = super().pick(state, in_flight)
        fuse("pick")
        return picked


@dataclass(frozen=True)
class Twice(Gradient):
    def compute(self, gradient: Any, x: Vector, worker: int, seed: int, counts: tuple[int, int], tools: Any) -> Vector:
        fuse("work")
        return gradient(x, worker, seed)


def method() -> Method:
    return Method("mine", Custom(0.05, weigh), Busy(), Twice(), (Sum(),), Three(), Halfway(0.5))


def torch_method() -> Method:
    torch = pytest.importorskip("torch")

    class Rude(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> None:
            super().step()
            fuse("torch optimizer")

    Rude.__module__ = "torch.optim.sgd"
    return asgd.async_sgd(0.05).using(optimizer=asgd.optimizers.torch(Rude, momentum=0.5))


UPDATING = ("transform", "transform that rejects", "gather", "share", "optimizer", "torch optimizer")
DISPATCHING = ("ended", "over", "pick")


def made(kind: str) -> Method:
    return torch_method() if kind == "torch optimizer" else method()


def saved(directory: Path) -> int:
    return checkpoints.read(checkpoints.listed(directory / "checkpoints")[0]).iteration


@pytest.mark.parametrize("kind", [*UPDATING, *DISPATCHING])
def test_training_stops_and_resumes(tmp_path: Path, kind: str) -> None:
    used = made(kind)
    LEFT[kind] = 35 if kind != "optimizer" else 12
    with pytest.raises((Broken, NotFinite), match=f"in {kind}") as raised:
        train(tmp_path, method=used)
    assert saved(tmp_path) == 20  # what came after may be half changed
    [note] = raised.value.__notes__
    assert "raised half-way" in note
    assert "resume=True" in note
    assert events(tmp_path, "stopped")[0]["reason"] == f"in {kind}"
    LEFT.clear()
    sound(train(tmp_path, method=used, resume=True), 60)


def test_a_step_rule_that_raises_leaves_everything_as_it_was(tmp_path: Path) -> None:
    LEFT["step"] = 35
    with pytest.raises(Broken, match="in step"):
        train(tmp_path, method=method())
    assert saved(tmp_path) == 35
    LEFT.clear()
    sound(train(tmp_path, method=method(), resume=True), 60)


@pytest.mark.parametrize("error", WORKERS)
def test_a_step_rule_that_raises_our_errors_is_not_a_worker(tmp_path: Path, error: type[Exception]) -> None:
    LEFT[error.__name__] = 35
    with pytest.raises(BadStep, match=f"the step rule Custom raised {error.__name__} for job .*in {error.__name__}"):
        train(tmp_path, method=method())
    assert saved(tmp_path) == 35
    assert not events(tmp_path, "rejected")
    LEFT.clear()
    sound(train(tmp_path, method=method(), resume=True), 60)


# A quarter in `make quick`: every part, and every error.
@pytest.mark.parametrize(("kind", "error"), share(product([*UPDATING, *DISPATCHING], WORKERS), every=4))
def test_another_part_that_raises_our_errors_is_not_a_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, error: type[Exception]
) -> None:
    used = made(kind)
    monkeypatch.setitem(RAISED, kind, error)
    LEFT[kind] = 12
    with pytest.raises(error, match=f"in {kind}"):
        train(tmp_path, method=used)
    assert not events(tmp_path, "rejected")


def test_work_that_raises_is_the_workers_fault(tmp_path: Path) -> None:
    LEFT["work"] = 35
    with pytest.raises(WorkersFailed, match=r"failed 3 times in a row, at last with .*Broken: in work"):
        train(tmp_path, method=method())
    assert saved(tmp_path) == 35
    LEFT.clear()
    sound(train(tmp_path, method=method(), resume=True), 60)


class Arm(asgd.Callback):
    """Lets a kind of part raise from an iteration on, whatever was called before the run."""

    def __init__(self, kind: str, iteration: int) -> None:
        self.kind, self.iteration = kind, iteration

    def on_update(self, view: Any, control: Any) -> None:
        if view.iteration == self.iteration:
            LEFT[self.kind] = 0


def falling(iteration: int) -> float:
    fuse("schedule")
    return 1.0 / (1 + iteration)


def test_a_schedule_that_raises_leaves_everything_as_it_was(tmp_path: Path) -> None:
    used = method().using(step=Custom(asgd.schedules.custom(falling, peak=0.05), weigh))
    with pytest.raises(Broken, match="in schedule"):
        train(tmp_path, method=used, callbacks=[Arm("schedule", 35)])
    assert saved(tmp_path) == 35
    LEFT.clear()
    sound(train(tmp_path, method=used, resume=True), 60)


def test_a_schedule_that_raises_before_the_run_is_named(tmp_path: Path) -> None:
    LEFT["schedule"] = 12
    used = method().using(step=Custom(asgd.schedules.custom(falling, peak=0.05), weigh))
    with pytest.raises(BadParameter, match=r"stepsize = custom\(falling.* raised Broken \(in schedule\) at iteration"):
        train(tmp_path / "run", method=used)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("kind", ["gather", "optimizer", "pick"])
def test_the_average_of_the_models_is_that_of_the_checkpoint(tmp_path: Path, kind: str) -> None:
    """The average moves with every arrival, so a part that raises leaves it half-way too."""
    used = method().using(average=True)
    LEFT[kind] = 35 if kind != "optimizer" else 12
    with pytest.raises(Broken, match=f"in {kind}"):
        train(tmp_path / "run", method=used)
    assert saved(tmp_path / "run") == 20
    LEFT.clear()
    sound(train(tmp_path / "run", method=used, resume=True), 60)


@pytest.mark.processes
@pytest.mark.slow
def test_a_code_that_raises_is_the_workers_fault(tmp_path: Path) -> None:
    flag = tmp_path / "raise"
    used = asgd.async_sgd(0.05).compressed(RudeCode(flag=str(flag)))
    options = {"method": used, "engine": asgd.engines.processes(1)}
    train(tmp_path / "run", 40, **options)
    flag.touch()
    with pytest.raises(WorkersFailed, match=r"failed 3 times in a row, at last with .*OSError: in the code"):
        train(tmp_path / "run", 60, resume=True, **options)
    assert saved(tmp_path / "run") >= 40
    flag.unlink()
    sound(train(tmp_path / "run", 60, resume=True, **options), 60)


def test_a_code_that_raises_ends_a_simulation(tmp_path: Path) -> None:
    flag = tmp_path / "raise"
    flag.touch()
    used, task = asgd.async_sgd(0.05).compressed(RudeCode(flag=str(flag))), asgd.tasks.quadratic(dim=4, workers=2)
    with pytest.raises(OSError, match="in the code"):
        asgd.simulate(task, used, asgd.durations.fixed([1.0, 3.0]), iterations=60)


def test_a_dispatch_that_raises_when_workers_join(tmp_path: Path) -> None:
    LEFT["joined"] = 1
    with pytest.raises(Broken, match="in joined"):
        train(tmp_path, method=method())
    assert saved(tmp_path) == 0
    LEFT.clear()
    sound(train(tmp_path, method=method(), resume=True), 60)


def test_a_dispatch_that_raises_while_a_resume_starts(tmp_path: Path) -> None:
    train(tmp_path, iterations=40, method=method())
    trace = (tmp_path / "trace.parquet").read_bytes()
    LEFT["left"] = 1
    with pytest.raises(Broken, match="in left") as raised:
        train(tmp_path, method=method(), resume=True)
    [note] = raised.value.__notes__
    assert "the last checkpoint is intact: fix the part and resume with resume=True" in note
    assert events(tmp_path, "stopped")[0]["reason"] == "in left"
    assert (tmp_path / "trace.parquet").read_bytes() == trace
    assert saved(tmp_path) == 40
    assert asgd.replay(tmp_path).model_compared
    LEFT.clear()
    sound(train(tmp_path, method=method(), resume=True), 60)


def test_a_callback_that_raises_while_a_resume_starts(tmp_path: Path) -> None:
    class Rude(asgd.Callback):
        def on_start(self, view: Any) -> None:
            raise Broken("in started")

    train(tmp_path, iterations=40)
    with pytest.raises(Broken, match="in started"):
        train(tmp_path, resume=True, callbacks=[Rude()])
    assert events(tmp_path, "stopped")[0]["reason"] == "in started (raised in on_start of the callback Rude)"
    assert (tmp_path / "trace.parquet").exists()
    sound(train(tmp_path, resume=True), 60)


@pytest.mark.parametrize("kind", [*UPDATING, *DISPATCHING, "step", "work", "joined"])
def test_a_simulation_ends_with_the_users_error(kind: str) -> None:
    used, task = made(kind), asgd.tasks.quadratic(dim=4, workers=2)
    LEFT[kind] = 0 if kind == "joined" else 12
    with pytest.raises((Broken, NotFinite), match=f"in {kind}"):
        asgd.simulate(task, used, asgd.durations.fixed([1.0, 3.0]), iterations=60)


# ---------------------------------------------------------------------------------------------- the server alone


def feed(server: Server, n: int) -> None:
    for _ in range(n):
        job = server.in_flight[0]
        server.handle(Arrived(job.id, np.ones(4), job.worker))


@pytest.mark.parametrize("kind", [*UPDATING, *DISPATCHING])
@pytest.mark.parametrize("early", [False, True])
def test_a_server_that_is_half_changed_says_so(kind: str, early: bool) -> None:
    used = made(kind)
    if early and kind in UPDATING:
        used = used.using(dispatch=asgd.federated_async_sgd(0.1, concurrency=2, early=True).dispatch)
    server = Server(np.zeros(4), used)
    server.handle(Joined([0, 1]))
    feed(server, 4)
    assert not server.torn
    LEFT[kind] = 0
    with pytest.raises((Broken, NotFinite)):
        feed(server, 3)
    assert server.torn
    LEFT.clear()
    for do in (lambda: feed(server, 1), lambda: server.handle(Left(0)), server.state):
        with pytest.raises(TornServer, match=r"raised half-way at iteration \d.*; restore it with Server.restore"):
            do()


def test_a_server_that_refuses_is_as_it_was() -> None:
    server = Server(np.zeros(4), method())
    server.handle(Joined([0, 1]))
    LEFT["step"] = 0
    with pytest.raises(Broken):
        feed(server, 1)
    with pytest.raises(asgd.AsyncSGDError):
        server.handle(Lost(99))
    assert not server.torn
    LEFT.clear()
    feed(server, 6)
    assert server.iteration == 6
