"""Flower's mods for privacy on the client, with our server: which work, and what the others are told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import FOREVER, bench
from flower.client_apps import node
from flower.fake import Client, FakeGrid, record, towards
from flower.serving import QUIET, Ear, quiet, serve
from flwr.app import Context, Message
from flwr.client import NumPyClient
from flwr.client import mod as legacy_mods
from flwr.clientapp import ClientApp
from flwr.clientapp import mod as message_mods

import asyncsgd as asgd
from asyncsgd.core.errors import EngineError
from asyncsgd.engines.base import Failed
from asyncsgd.flower import Clients, Privacy, compress_mod

MODEL = record(w=np.zeros((2, 2), np.float32), b=np.zeros(3, np.float32))
CLIPPING = ("fixedclipping_mod", "adaptiveclipping_mod")
MODS = {"messages": message_mods, "legacy": legacy_mods}
"""Flower has each mod for privacy twice: for ClientApps of the message API, and for those of the legacy interface."""


@pytest.fixture(params=MODS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def app(*mods: Any, target: float = 8.0, kind: str = "messages") -> Client:
    """A stock ClientApp with these mods, run as Flower's own program does: an exception becomes an error reply."""
    if kind == "legacy":
        return node(ClientApp(client_fn=lambda context: Halfway(target).to_client(), mods=list(mods)))
    client_app = ClientApp(mods=list(mods))
    inner = towards(target)

    @client_app.train()
    def train(message: Message, context: Context) -> Message:
        return Message(inner(message), reply_to=message)

    return node(client_app)


class Halfway(NumPyClient):
    """The legacy client that computes what `towards` does."""

    def __init__(self, target: float) -> None:
        self.target = target

    def fit(self, parameters: list[np.ndarray], config: dict[str, Any]) -> Any:
        return [x + 0.5 * (self.target - x) for x in parameters], 10, {}


def norms(run: Any) -> np.ndarray:
    """The norm of every update of a run, from the distances between successive models of a step size of 1."""
    return np.sqrt(np.square(np.diff(run, axis=0)).sum(axis=1))


class Models(asgd.Callback):
    """Every model of a run."""

    def __init__(self) -> None:
        self.seen: list[np.ndarray] = []

    def on_update(self, view: Any, control: Any) -> None:
        self.seen.append(view.x.copy())


@pytest.mark.parametrize("name", CLIPPING)
def test_clipping_on_the_client_works_with_the_norm_in_train_config(name: str, kind: str) -> None:
    """Rounds of one client with step 1: the model moves by exactly the clipped update."""
    models, ear = Models(), Ear()
    grid = FakeGrid([app(getattr(MODS[kind], name), kind=kind)])
    options = {"train_config": {"clipping_norm": 0.5}, "callbacks": [models, ear], **quiet(minimum=1)}
    run = serve(grid, MODEL, asgd.async_sgd(1.0), iterations=6, **options)
    assert run.faults.exceptions == run.faults.rejected == 0
    np.testing.assert_allclose(norms(np.array([np.zeros(7), *models.seen])), 0.5, rtol=1e-5)
    adapts = [note for note in ear.notes if "the server does not adapt clipping_norm" in note]
    assert len(adapts) == (name == "adaptiveclipping_mod")
    if name == "adaptiveclipping_mod":
        assert run.client_metrics[-1]["metrics"]["norm_bit"] == 1.0


@pytest.mark.parametrize("name", CLIPPING)
def test_clipping_without_a_norm_is_explained(name: str, kind: str) -> None:
    with bench(app(getattr(MODS[kind], name), kind=kind), rules=Clients(pause=FOREVER)) as here:
        failed = here.expect(Failed, job=here.give(0))
    # Mods of the legacy interface raise an exception.
    assert ("a mod of the ClientApp refused" in failed.error) == (kind == "messages")
    assert 'pass train_config={"clipping_norm": 1.0}, or clip on the server instead' in failed.error


def test_clipping_of_compressed_updates_depends_on_the_order_of_mods() -> None:
    """The mod that comes first sees the message as it was sent."""
    method = asgd.async_sgd(1.0).compressed("int8")
    options = {"train_config": {"clipping_norm": 0.5}, **quiet(minimum=1)}
    models = Models()
    good = FakeGrid([app(compress_mod(), message_mods.fixedclipping_mod)])
    serve(good, MODEL, method, iterations=4, callbacks=[models], **options)
    np.testing.assert_allclose(norms(np.array([np.zeros(7), *models.seen])), 0.5, rtol=0.02)
    bad = FakeGrid([app(message_mods.fixedclipping_mod, compress_mod())])
    with pytest.raises(EngineError, match=r"list compress_mod\(\) first"):
        serve(bad, MODEL, method, iterations=4, **options)


def test_local_privacy_needs_nothing_from_the_server(kind: str) -> None:
    """Clipped to 0.5, and noise of the mod's own: σ = sensitivity · √(2 ln(1.25/δ)) / ε."""
    deviation = 1e-4 * np.sqrt(2 * np.log(1.25 / 1e-5)) / 1.0
    models = Models()
    grid = FakeGrid([app(MODS[kind].LocalDpMod(0.5, 1e-4, 1.0, 1e-5), kind=kind)])
    serve(grid, MODEL, asgd.async_sgd(1.0), iterations=30, callbacks=[models], **quiet(minimum=1))
    lengths = norms(np.array([np.zeros(7), *models.seen]))
    np.testing.assert_allclose(lengths, 0.5, atol=10 * deviation)
    assert np.std(lengths) > 0.1 * deviation


def test_clipping_on_both_sides_is_accounted_by_the_server(kind: str) -> None:
    """A client's own clipping is not trusted: ε follows from the server's."""
    pytest.importorskip("dp_accounting", reason="the extra 'flower' is not installed")
    private = asgd.fedbuff(1.0, concurrency=2, buffer=2).clipped(0.5, noise=4.0)
    grid = FakeGrid([app(MODS[kind].fixedclipping_mod, kind=kind)] * 2)
    options = {"train_config": {"clipping_norm": 0.5}, "privacy": Privacy(3.0), **QUIET}
    run = serve(grid, MODEL, private, iterations=4, **options)
    assert run.privacy is not None
    assert 0 < run.privacy.epsilon <= 3.0
    assert run.faults.exceptions == 0


@pytest.mark.parametrize("mod", [legacy_mods.secaggplus_mod, legacy_mods.secagg_mod])
def test_secure_aggregation_is_refused_with_the_reason(mod: Any, kind: str) -> None:
    """The clients fail, and the error of the run says why and what to do."""
    grid = FakeGrid([app(mod, kind=kind), app(mod, kind=kind)])
    with pytest.raises(EngineError, match="every client fails") as caught:
        serve(grid, MODEL, asgd.async_sgd(1.0), iterations=4, **quiet(max_failures=2, pause=FOREVER))
    assert "The client uses secure aggregation (secagg_mod or secaggplus_mod)" in str(caught.value)
    assert "the masks of a single update do not cancel" in str(caught.value)
    assert "Remove the mod" in str(caught.value)


def test_one_client_with_secure_aggregation_does_not_end_the_run(kind: str) -> None:
    """Its error text comes from outside, so it must not decide about the others."""
    grid = FakeGrid([app(legacy_mods.secaggplus_mod, kind=kind), app(kind=kind), app(target=6.0, kind=kind)])
    run = serve(grid, MODEL, asgd.async_sgd(0.5), iterations=20, **quiet(minimum=3, max_failures=2, pause=FOREVER))
    assert run.trace.iterations == 20
    assert run.faults.exceptions == 2
