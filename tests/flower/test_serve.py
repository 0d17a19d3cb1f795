"""`asgd.flower.serve` from end to end, on a grid without a network: methods, metrics, mistakes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, record, reply
from flower.serving import ARRAYS, QUIET, Ear, clients, error
from flwr.app import ArrayRecord, ConfigRecord, Message

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.flower import Clients, serve

EVIL = "</script><script>alert(1)</script>"
METHODS = {
    "Algorithm 2": asgd.federated_async_sgd(0.3, concurrency=4),
    "delay-adaptive": asgd.delay_adaptive(0.3),
    "FedBuff": asgd.fedbuff(1.0, concurrency=4, buffer=3),
    "FedAsync": asgd.fedasync(0.6, concurrency=3, steps=1, local_stepsize=1.0),
    "over-selection": asgd.over_selection(1.0, goal=2, ask=3),
    "rounds": asgd.over_selection(1.0, goal=3, ask=3),
    "mini-batch": asgd.minibatch_sgd(0.3),
    "clipped": asgd.clipped(asgd.async_sgd(0.3), clip=1.0),
    "momentum": asgd.async_sgd(0.1).using(optimizer=asgd.momentum(0.5)),
    "MIFA": asgd.mifa(0.3),
}


@pytest.mark.parametrize("name", METHODS)
def test_any_method_trains(name: str, tmp_path: Path) -> None:
    """One argument is all that changes between synchronous and asynchronous."""
    grid = clients(1.0, 2.0, 3.0)
    run = serve(grid, ARRAYS, METHODS[name], iterations=60, evaluate=error, directory=tmp_path / "run", **QUIET)
    assert run.trace.iterations == 60
    assert run.metrics["loss"][-1] < 0.5 < run.metrics["loss"][0]
    assert {key: array.numpy().shape for key, array in run.arrays.items()} == {"w": (2, 3), "b": (3,), "n": ()}
    assert not grid.wrong
    run.trace.check()


def test_rounds_are_federated_averaging() -> None:
    """Straight from the formula: the mean of what clients return, with equal weights."""
    run = serve(
        clients(1.0, 2.0, 6.0), ARRAYS, asgd.over_selection(1.0, goal=3, ask=3), iterations=12, every=100, **QUIET
    )
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

    grid = FakeGrid([client(0.1, 3), client(0.3, 5)])
    run = serve(grid, model, asgd.async_sgd(1.0), iterations=10, **QUIET)
    np.testing.assert_allclose(run.arrays["bn.running_var"].numpy(), 0.3)  # of 0.1, 0.3, and 1.0 at the start
    assert run.arrays["bn.num_batches_tracked"].numpy().dtype == np.int64
    assert run.arrays["bn.num_batches_tracked"].numpy() >= 3 * 4
    assert run.config["notes"][-1].startswith("carried beside the trained arrays")


def test_clients_may_send_updates() -> None:
    def gradient(message: Message) -> Any:
        return reply(record(w=message.content["arrays"]["w"].numpy() - 3.0))

    run = serve(
        FakeGrid([gradient, gradient]),
        record(w=np.zeros(4)),
        asgd.async_sgd(0.2),
        iterations=80,
        clients=Clients(replies="updates"),
        **QUIET,
    )
    np.testing.assert_allclose(run.arrays["w"].numpy(), 3.0, atol=0.05)


# ---------------------------------------------------------------------------------------------- evaluation and metrics


def test_evaluation_on_the_server_and_on_clients(tmp_path: Path) -> None:
    asked: list[int] = []

    def evaluate(iteration: int, arrays: ArrayRecord) -> dict[str, Any]:
        asked.append(iteration)
        return {"accuracy": iteration / 100, "per class": [0.5, 1.0]}

    ear = Ear()
    run = serve(
        clients(1.0, 3.0),
        ARRAYS,
        asgd.async_sgd(0.2),
        iterations=40,
        every=10,
        evaluate=evaluate,
        evaluate_clients={"batch": 8},
        train_config=ConfigRecord({"lr": 0.5}),
        directory=tmp_path,
        listeners=[ear],
        **QUIET,
    )
    assert asked == [0, 10, 20, 30, 40]
    assert list(run.metrics) == ["iteration", "time", "accuracy", "per class.0", "per class.1"]
    evaluated = [row for row in run.client_metrics if row["kind"] == "evaluate"]
    assert [evaluated[0]["at"], evaluated[-1]["at"]] == [0, 40]
    assert all(row["clients"] == 2 and row["examples"] == 20 for row in evaluated)
    trained = [row for row in run.client_metrics if row["kind"] == "train"]
    assert 40 <= sum(row["replies"] for row in trained) <= 42  # one of each client may come with the last ones
    shown = [note for note in ear.notes if note.startswith("clients, model of iteration 40: loss ")]
    assert len(shown) == 1
    assert any(note.startswith("clients, training: loss ") for note in ear.notes)
    page = asgd.report.write(tmp_path, tmp_path / "page.html").read_text("utf-8")
    assert '"loss (clients, while training)"' in page
    assert '"loss (clients, evaluating)"' in page


def test_names_that_clients_invent_do_not_break_the_page(tmp_path: Path) -> None:
    def inventive(message: Message) -> Any:
        return reply(record(**{name: array.numpy() for name, array in message.content["arrays"].items()}), {EVIL: 1.0})

    serve(FakeGrid([inventive] * 2), ARRAYS, asgd.async_sgd(0.2), iterations=4, directory=tmp_path, **QUIET)
    page = asgd.report.write(tmp_path, tmp_path / "page.html").read_text("utf-8")
    assert EVIL not in page
    assert "alert(1)" in page


def test_without_a_directory_metrics_of_clients_are_there_too() -> None:
    run = serve(clients(1.0, 3.0), ARRAYS, asgd.async_sgd(0.2), iterations=10, evaluate_clients=True, **QUIET)
    assert {row["kind"] for row in run.client_metrics} == {"train", "evaluate"}
    assert run.directory is None


def test_a_target_ends_the_run() -> None:
    run = serve(
        clients(2.0, 2.0),
        ARRAYS,
        asgd.async_sgd(0.3),
        iterations=10_000,
        every=1,
        evaluate=error,
        until="loss <= 0.01",
        **QUIET,
    )
    assert run.reached
    assert run.trace.iterations < 1000


@pytest.mark.parametrize("private", [False, True])
def test_evaluation_may_say_nothing_at_times(private: bool, tmp_path: Path) -> None:
    """As Flower's evaluate_fn: at first, at the end, or always."""

    def sometimes(iteration: int, arrays: ArrayRecord) -> dict[str, float] | None:
        asked.append(iteration)
        return {"loss": 1.0} if iteration in (4, 8) else None

    asked: list[int] = []
    method = asgd.fedbuff(0.5, concurrency=2, buffer=2, clip=1.0, noise=4.0) if private else asgd.async_sgd(0.1)
    options: dict[str, Any] = {"iterations": 10, "every": 2, **QUIET}
    run = serve(clients(1.0, 2.0), ARRAYS, method, evaluate=sometimes, until="loss <= 0", **options)
    assert asked == [0, 2, 4, 6, 8, 10]
    assert run.metrics["iteration"].tolist() == [4, 8]
    assert list(run.metrics) == ["iteration", "time", "loss", *(["epsilon"] if private else [])]
    never = serve(clients(1.0, 2.0), ARRAYS, method, evaluate=lambda t, a: None, directory=tmp_path / "run", **options)
    assert never.trace.iterations == 10
    assert "run" in asgd.report.write(tmp_path / "run", tmp_path / "page.html").read_text("utf-8")


def test_metrics_must_keep_their_names() -> None:
    names = iter(["a", "a", "b"])
    with pytest.raises(BadParameter, match=r"evaluate = \['b'\] names other metrics than before; return \['a'\] every"):
        serve(
            clients(1.0, 2.0),
            ARRAYS,
            asgd.async_sgd(0.1),
            iterations=9,
            every=1,
            evaluate=lambda t, a: {next(names): 1.0},
            **QUIET,
        )


# ---------------------------------------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "fedavg"}, "is a str; call the recipe"),
        ({"iterations": 0}, "iterations = 0 must be an integer"),
        ({"resume": True}, "resume = True needs a place on disk"),
        ({"keep_updates": True}, "keep_updates = True needs a place on disk"),
        ({"initial_arrays": [np.zeros(2)]}, "is no ArrayRecord"),
        ({"seed": "x"}, "seed = 'x' is no integer"),
        ({"train_config": {"lr": 0.1, "shape": (2, 3)}}, r"train_config\['shape'\] = \(2, 3\) cannot be sent"),
        ({"train_config": 0.1}, "train_config = 0.1 is a float; pass a dict"),
        ({"evaluate_clients": {"k": None}}, r"evaluate_clients\['k'\] = None cannot be sent by Flower; pass numbers"),
        ({"clients": Clients(queue=2)}, "queue = 2 has no meaning with async_sgd"),
        ({"method": asgd.over_selection(1.0, goal=5), "clients": Clients(minimum=2)}, "can never be reached by 2"),
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
        ({"max_norm": 0.0}, "max_norm = 0.0"),
        ({"replies": "gradients"}, "replies = 'gradients' is not known"),
    ):
        with pytest.raises(BadParameter, match=words):
            Clients(**options)  # type: ignore[arg-type]


def test_bias_is_said_where_data_differ() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), iterations=2, progress=False)
    assert any(issubclass(warning.category, asgd.BiasWarning) for warning in caught)


def test_local_steps_of_the_method_are_the_clients_own_business() -> None:
    run = serve(
        clients(1.0, 2.0),
        ARRAYS,
        asgd.local_sgd(0.3, steps=5, local_stepsize=0.1),
        iterations=5,
        **QUIET,
    )
    assert run.config["notes"][0].startswith("what a job computes is up to the ClientApp: LocalSteps(steps=5")
