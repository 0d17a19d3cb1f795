"""`a run from end to end, on a grid without a network: methods and mistakes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, record, reply
from flower.serving import ARRAYS, QUIET, clients, error, quiet, serve
from flwr.app import Message
from safetensors import safe_open

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.flower import Clients

METHODS = {
    "Algorithm 2": asgd.federated_async_sgd(0.3, concurrency=4),
    "delay-adaptive": asgd.delay_adaptive(0.3),
    "FedBuff": asgd.fedbuff(1.0, concurrency=4, buffer=3),
    "FedAsync": asgd.fedasync(0.6, concurrency=3).local(1, 1.0),
    "over-selection": asgd.fedavg(1.0, clients=2, ask=3),
    "rounds": asgd.fedavg(1.0, clients=3, ask=3),
    "mini-batch": asgd.minibatch_sgd(0.3),
    "clipped": asgd.async_sgd(0.3).clipped(1.0),
    "momentum": asgd.async_sgd(0.1).using(optimizer=asgd.optimizers.momentum(0.5)),
    "MIFA": asgd.mifa(0.3),
}


@pytest.mark.parametrize("name", METHODS)
def test_any_method_trains(name: str, tmp_path: Path) -> None:
    """One argument is all that changes between synchronous and asynchronous."""
    grid = clients(1.0, 2.0, 3.0)
    run = serve(grid, ARRAYS, METHODS[name], iterations=60, evaluate=error, directory=tmp_path / "run", **QUIET)
    assert run.trace.iterations == 60
    # Where the clients' data differ, the fast one decides: on a busy machine it may be 1 away from the optimum.
    assert run.metrics["loss"][-1] < 2.0 < run.metrics["loss"][0]
    assert {key: array.numpy().shape for key, array in run.arrays.items()} == {"w": (2, 3), "b": (3,), "n": ()}
    assert not grid.wrong
    run.trace.check()


def test_rounds_are_federated_averaging() -> None:
    """Straight from the formula: the mean of what clients return, with equal weights."""
    run = serve(clients(1.0, 2.0, 6.0), ARRAYS, asgd.fedavg(1.0, clients=3, ask=3), iterations=12, every=100, **QUIET)
    w = 0.0
    for _ in range(4):
        w = np.mean([w + 0.5 * (target - w) for target in (1.0, 2.0, 6.0)])
    np.testing.assert_allclose(run.arrays["w"].numpy(), w, rtol=1e-6)


def test_a_plain_asynchronous_run_is_what_the_trace_says() -> None:
    """x ← x - η (x_sent - x_returned), in the order of arrival, with the delays of the trace."""
    run = serve(clients(1.0, 2.0, 3.0), ARRAYS, asgd.async_sgd(0.25), iterations=30, every=100, **QUIET)
    jobs = run.trace.jobs
    x = [0.0]
    for t, worker in enumerate(run.trace.worker):
        sent = x[t - int(run.trace.delay[t])]
        x.append(x[-1] - 0.25 * (sent - (sent + 0.5 * (worker + 1.0 - sent))))
    np.testing.assert_allclose(run.arrays["w"].numpy(), x[-1], rtol=1e-5)
    assert len(jobs.outcome) >= 30


def test_whole_numbers_and_statistics_are_carried() -> None:
    """Clients of a BatchNorm model: a count that grows, statistics in the middle and never negative."""
    model = record(w=np.zeros(2), **{"bn.running_var": np.ones(2), "bn.num_batches_tracked": np.array(0)})

    def client(variance: float, batches: int) -> Any:
        def train(message: Message) -> Any:
            sent = {name: array.numpy() for name, array in message.content["arrays"].items()}
            assert (sent["bn.running_var"] > 0).all()
            count = np.asarray(sent["bn.num_batches_tracked"] + batches)
            statistics = {"bn.running_var": np.full(2, variance), "bn.num_batches_tracked": count}
            return reply(record(w=sent["w"] + 1.0, **statistics))

        return train

    grid = FakeGrid([client(0.1, 3), client(0.3, 5), client(0.9, 3)])
    run = serve(grid, model, asgd.minibatch_sgd(1.0), iterations=12, **quiet(minimum=3))
    np.testing.assert_allclose(run.arrays["bn.running_var"].numpy(), 0.3)
    assert run.arrays["bn.num_batches_tracked"].numpy().dtype == np.int64
    assert run.arrays["bn.num_batches_tracked"].numpy() >= 3 * 3
    assert run.config["notes"][-1].startswith("not trained, but set to medians")


def test_clients_may_send_updates() -> None:
    def gradient(message: Message) -> Any:
        return reply(record(w=message.content["arrays"]["w"].numpy() - 3.0))

    run = serve(
        FakeGrid([gradient, gradient]),
        record(w=np.zeros(4)),
        asgd.async_sgd(0.2),
        iterations=80,
        **quiet(replies="updates"),
    )
    np.testing.assert_allclose(run.arrays["w"].numpy(), 3.0, atol=0.05)


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "fedavg"}, "is a str; call the recipe"),
        ({"iterations": 0}, "num_rounds = 0 must be an integer"),
        ({"resume": True}, "resume = True needs a directory"),
        ({"clients": Clients(keep_updates=True)}, "keep_updates = True needs a directory"),
        ({"initial_arrays": [np.zeros(2)]}, "is not an ArrayRecord"),
        ({"seed": "x"}, "seed = 'x' is not an integer"),
        ({"train_config": {"lr": 0.1, "shape": (2, 3)}}, r"train_config\['shape'\] = \(2, 3\) cannot be sent"),
        ({"train_config": 0.1}, "train_config = 0.1 is a float; pass a dict"),
        ({"evaluate_clients": {"k": None}}, r"evaluate_config\['k'\] = None cannot be sent by Flower; pass numbers"),
        ({"callbacks": ["ear"]}, "callbacks = 'ear' is not a callback; pass an object of a class derived"),
        ({"callbacks": "ear"}, "callbacks = 'ear' is not a list"),
        ({"clients": 4}, r"clients = 4 is a int; pass asgd\.flower\.Clients"),
        ({"privacy": 1e-5}, r"privacy = 1e-05 is a float; pass asgd\.flower\.Privacy"),
        ({"clients": Clients(queue=2)}, "queue = 2 has no effect with async_sgd"),
        ({"method": asgd.fedavg(1.0, clients=5, ask=7), "clients": Clients(minimum=2)}, "can never be reached by 2"),
    ],
)
def test_mistakes_are_named(change: dict[str, Any], words: str) -> None:
    given: dict[str, Any] = {
        "initial_arrays": ARRAYS,
        "method": asgd.async_sgd(0.1),
        "iterations": 5,
        **QUIET,
        **change,
    }
    with pytest.raises(BadParameter, match=words):
        serve(clients(1.0, 2.0), **given)


def test_clients_options_are_checked() -> None:
    for options, words in (
        ({"minimum": 0}, "minimum = 0"),
        ({"timeout": -1.0}, "timeout = -1.0"),
        ({"pause": 0}, "pause = 0"),
        ({"patience": 0.5}, "patience = 0.5 would give up every second job of a client; pass a multiple above 1"),
        ({"max_norm": 0.0}, "max_norm = 0.0"),
        ({"replies": "gradients"}, "replies = 'gradients' is unknown"),
        ({"statistics": "*var"}, r"statistics = '\*var' is not a list of patterns"),
    ):
        with pytest.raises(BadParameter, match=words):
            Clients(**options)  # type: ignore[arg-type]


def test_bias_is_said_where_data_differ() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), iterations=2, progress=False)
    assert any(issubclass(warning.category, asgd.BiasWarning) for warning in caught)


def test_the_last_model_with_finite_metrics_is_kept(tmp_path: Path) -> None:
    def explodes(iteration: int, arrays: Any) -> Any:
        return {"loss": float("inf") if iteration >= 20 else 1.0}

    method = asgd.federated_async_sgd(0.3, concurrency=4)
    where = {"directory": tmp_path / "run", "every": 10}
    run = serve(clients(1.0, 2.0), ARRAYS, method, iterations=200, evaluate=explodes, **where, **QUIET)
    assert run.diverged is not None
    with safe_open(tmp_path / "run" / "last_finite.safetensors", framework="numpy") as file:
        assert file.metadata()["iteration"] == str(run.x_iteration)
        assert file.get_tensor("x").tobytes() == run.x.tobytes()
