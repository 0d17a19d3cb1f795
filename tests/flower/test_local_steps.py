"""Methods with local steps: the client's own loop takes them, and the server says how many. DiLoCo is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.compressed import Node
from flower.fake import Client, FakeGrid, record, reply
from flower.serving import ARRAYS, QUIET, clients, error, quiet, serve
from flower.virtual import World
from flwr.app import Message, MetricRecord, RecordDict

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.flower.client_work import for_clients
from asyncsgd.flower.sender import ClientMessage

DILOCO = asgd.async_diloco(0.7, steps=40, momentum=0.5)


def own_loop(target: float, told: list[int]) -> Client:
    """A client with its own optimizer, of as many steps as the server says."""

    def client(message: Message) -> RecordDict:
        steps = int(message.content["config"]["steps"])
        told.append(steps)
        arrays = {name: array.numpy().copy() for name, array in message.content["arrays"].items()}
        for _ in range(steps):
            for values in arrays.values():
                if values.dtype.kind == "f":
                    values -= (0.02 * (values - target)).astype(values.dtype)
        return reply(record(**arrays), {"steps": steps})

    return client


def per_step(seconds: float) -> Any:
    """Takes so many seconds per step, and one for the way."""

    def pace(message: ClientMessage) -> float:
        return 1.0 + seconds * int(message.content()["config"]["steps"])

    return pace


@pytest.mark.parametrize("compressed", [False, True])
def test_asynchronous_diloco_with_clients_of_unequal_speed(
    compressed: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The fastest client takes all steps and slower ones fewer, in proportion to their measured speed (DyLU)."""
    world = World(monkeypatch)
    world.paces = [per_step(0.1), per_step(0.2), per_step(1.0)]
    told: list[list[int]] = [[], [], []]
    plain = [own_loop(target, told[place]) for place, target in enumerate((1.0, 2.0, 3.0))]
    method = DILOCO.compressed("int8", down="bfloat16") if compressed else DILOCO
    grid = FakeGrid([Node(client) for client in plain] if compressed else plain)
    options = {"every": 40, "directory": tmp_path, **quiet(minimum=3, keep_updates=True)}
    run = serve(grid, ARRAYS, method, iterations=40, evaluate=error, **options)
    assert run.metrics["loss"][-1] < 0.5 < run.metrics["loss"][0]
    assert [steps[0] for steps in told] == [40, 40, 40]  # their speed is not known yet
    assert set(told[0]) == {40}
    assert all(15 <= steps <= 25 for steps in told[1][2:])
    assert all(4 <= steps <= 7 for steps in told[2][2:])
    rows = run.trace.jobs
    for worker in range(3):
        arrived = run.trace.job[run.trace.worker == worker]
        assert rows.steps[arrived].tolist() == told[worker][: len(arrived)]
    assert run.config["notes"][0].startswith(
        'the ClientApp decides what a job computes: it gets config["steps"] = up to 40'
    )
    replayed = asgd.replay(tmp_path)
    assert replayed.model_compared
    assert replayed.x.tobytes() == run.x.tobytes()


def test_delayed_nesterov_moves_as_its_formula() -> None:
    """One client, N = 1: Nesterov's momentum on what the client's training moved."""
    told: list[int] = []
    method = asgd.async_sgd(0.5).local(3, 1.0).using(optimizer=asgd.optimizers.delayed_nesterov(0.5, every=1))
    grid = FakeGrid([own_loop(1.0, told)])
    run = serve(grid, record(w=np.zeros(2)), method, iterations=5, every=100, **quiet(minimum=1))
    x = m = 0.0
    for _ in range(5):
        moved = (x - 1.0) * (1 - 0.98**3)
        m = 0.5 * m + moved
        x -= 0.5 * (moved + 0.5 * m)
    np.testing.assert_allclose(run.arrays["w"].numpy(), x, rtol=1e-12)
    assert told[:5] == [3] * 5


@pytest.mark.parametrize(
    "method", [asgd.diloco(steps=20, momentum=0.5), asgd.decoupled_diloco(steps=20, momentum=0.5, quorum=3)]
)
def test_the_other_forms_of_diloco_train(method: asgd.Method) -> None:
    told: list[int] = []
    grid = FakeGrid([own_loop(target, told) for target in (1.0, 2.0, 3.0)])
    run = serve(grid, ARRAYS, method, iterations=60, every=60, evaluate=error, **quiet(minimum=3))
    # Where the clients' data differ, the fast one decides: on a busy machine it may be 1 away from the optimum.
    assert run.metrics["loss"][-1] < 2.0 < run.metrics["loss"][0]
    assert set(told) == {20}


def test_a_method_without_local_steps_sends_no_number_of_steps() -> None:
    grid = clients(1.0, 2.0)
    serve(grid, ARRAYS, asgd.async_sgd(0.3), iterations=4, train_config={"steps": 5}, **QUIET)
    assert {message.content["config"]["steps"] for message in grid.messages} == {5}  # the user's own


def test_the_number_of_steps_has_one_source() -> None:
    with pytest.raises(
        BadParameter, match=r"train_config\['steps'\] = 5 is set by the method; leave it out of train_c"
    ):
        serve(clients(1.0, 2.0), ARRAYS, DILOCO, iterations=2, train_config={"steps": 5}, **QUIET)


def test_clients_may_ignore_the_steps() -> None:
    def client(message: Message) -> RecordDict:
        moved = {name: array.numpy() for name, array in message.content["arrays"].items()}
        return RecordDict({"arrays": record(**moved), "metrics": MetricRecord({"num-examples": 1})})

    method = asgd.fedasync(0.6, concurrency=3).local(1, 1.0)
    run = serve(FakeGrid([client, client]), ARRAYS, method, iterations=4, every=100, **QUIET)
    assert run.trace.iterations == 4


def test_state_that_only_the_client_can_keep_is_refused() -> None:
    kept = asgd.async_sgd(1.0).local(20, 0.1, optimizer=asgd.optimizers.adamw(), state="kept")
    with pytest.raises(BadParameter, match=r"state = 'kept' is not possible: a Flower client owns its inner loop"):
        for_clients(kept, {})
