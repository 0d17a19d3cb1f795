"""Every recipe runs under the strategy, and leaves it to the client what a job computes."""

from __future__ import annotations

import inspect
import warnings
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid
from flower.serving import ARRAYS, Ear, clients, error

import asyncsgd as asgd
from asyncsgd.core.aggregation import Calibrated
from asyncsgd.flower import AsyncStrategy, Clients
from asyncsgd.flower.strategy import AsyncResult
from asyncsgd.methods.listing import recipes

LATE = {"concurrency": 3, "clients": 2, "threshold": 1.0, "smoothness": 1.0, "batch": 2, "limit": 4}
"""Values for options without a default."""
VARIANTS = {
    "CA2FL": asgd.fedbuff(0.5, concurrency=3, buffer=2, calibrated=True),
    "Algorithm 2 with a buffer": asgd.federated_async_sgd(0.5, concurrency=3, buffer=2),
    "median": asgd.fedbuff(0.5, concurrency=3).using(aggregation=asgd.aggregation.median(3)),
    "trimmed mean": asgd.fedbuff(0.5, concurrency=3).using(aggregation=asgd.aggregation.trimmed_mean(5, fraction=0.2)),
    "Krum": asgd.fedbuff(0.5, concurrency=3).using(aggregation=asgd.aggregation.krum(5, byzantine=1, keep=2)),
}
"""Recipes with options that change how updates are aggregated."""
LOCAL = {"diloco", "async_diloco", "decoupled_diloco"}
"""Recipes that have local steps by themselves."""


def made(name: str) -> asgd.Method:
    recipe = recipes()[name]
    parameters = inspect.signature(recipe).parameters.values()
    needed = {each.name: LATE[each.name] for each in parameters if each.default is each.empty and each.name in LATE}
    return recipe(0.2, **needed)


def trained(method: asgd.Method) -> tuple[FakeGrid, AsyncResult]:
    """Train stock clients for 20 rounds, and check that the loss has become smaller."""
    grid, size = clients(1.5, 2.0, 2.5), getattr(method.dispatch, "clients", 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", asgd.BiasWarning)  # several recipes favour fast clients, which is their own
        result = AsyncStrategy(method, progress=False, evaluate_every=5).start(
            grid, ARRAYS, num_rounds=20, evaluate_fn=error
        )
    assert result.run is not None
    assert result.run.trace.iterations == 20 * size
    losses = [row["loss"] for row in result.evaluate_metrics_serverapp.values()]
    assert losses[-1] < losses[0]
    assert np.isfinite(losses).all()
    assert not grid.wrong
    return grid, result


@pytest.mark.parametrize("name", recipes())
def test_a_recipe_trains_stock_clients(name: str) -> None:
    grid, result = trained(made(name))
    configs: list[Any] = [
        message.content["config"] for message in grid.messages if message.metadata.message_type == "train"
    ]
    assert all(("steps" in config) == (name in LOCAL) for config in configs)
    notes = [note for note in result.run.config["notes"] if "ClientApp decides" in note]
    assert bool(notes) == (name in LOCAL)


def test_the_memory_of_calibration_is_stated_before_it_is_allocated(monkeypatch: pytest.MonkeyPatch) -> None:
    """One vector for each of three clients, and three sums; the model has 9 numbers of 4 bytes."""
    ear = Ear()
    stated: list[list[str]] = []
    allocate = Calibrated.init

    def init(self: Calibrated, x: Any, seed: int) -> Any:
        stated.append(list(ear.notes))
        return allocate(self, x, seed)

    monkeypatch.setattr(Calibrated, "init", init)
    method = asgd.fedbuff(0.5, concurrency=3, buffer=2, calibrated=True)
    AsyncStrategy(method, progress=False, callbacks=[ear], min_available_nodes=3).start(
        clients(1.0, 2.0, 3.0), ARRAYS, num_rounds=2
    )
    note = "fedbuff remembers one update per client: 216 B of memory on the server for 3 clients"
    assert [text for text in ear.notes if text.startswith(note)] == [f"{note}, 36 B more for each further one"]
    assert any(text.startswith(note) for text in stated[0])


@pytest.mark.parametrize("name", VARIANTS)
def test_a_way_to_aggregate_trains_stock_clients(name: str) -> None:
    """The clients pull towards 1.5, 2.0 and 2.5; the model began at 0."""
    grid, result = trained(VARIANTS[name])
    assert (np.abs(result.arrays["w"].numpy() - 2.0) < 1.0).all()
    assert {message.metadata.dst_node_id for message in grid.messages} == grid.online


def test_every_recipe_of_the_table_is_tried() -> None:
    listed = str(asgd.methods.table())
    assert all(name in listed for name in recipes())
    assert len(recipes()) >= 18


def test_open_options_are_filled_in_with_the_clients_at_the_start() -> None:
    """Not with the least number of clients that may start: a step for two would be too long for five."""
    strategy = AsyncStrategy(asgd.async_diloco(0.7, steps=20), progress=False, clients=Clients(heterogeneous=False))
    result = strategy.start(clients(1.0, 2.0, 3.0, 4.0, 5.0), ARRAYS, num_rounds=2)
    bound = result.run.config["bound"]
    assert (bound["workers"], bound["iterations"]) == (5, 10)
