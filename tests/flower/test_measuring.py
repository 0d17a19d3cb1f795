"""What `a run measures on the way: by the server's own evaluation, and by what clients report."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, record, reply, towards
from flower.serving import ARRAYS, QUIET, Ear, clients, error, quiet, serve
from flwr.app import ArrayRecord, ConfigRecord, Message

import asyncsgd as asgd

EVIL = "</script><script>alert(1)</script>"


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
        callbacks=[ear],
        **QUIET,
    )
    assert asked == [0, 10, 20, 30, 40]
    assert list(run.metrics) == ["iteration", "time", "accuracy", "per class.0", "per class.1"]
    evaluated = [row for row in run.round_metrics if row["kind"] == "evaluate"]
    assert evaluated[0]["at"] >= 10
    assert evaluated[-1]["at"] == 40
    assert all(row["clients"] == 2 and row["examples"] == 20 for row in evaluated)
    trained = [row for row in run.round_metrics if row["kind"] == "train"]
    assert [row["replies"] for row in trained] == [1] * 40
    shown = [note for note in ear.notes if note.startswith("round 40, evaluated by clients: loss ")]
    assert len(shown) == 1
    assert any(note.startswith("round 1, clients in training: loss ") for note in ear.notes)
    page = asgd.report(tmp_path, tmp_path / "page.html").read_text("utf-8")
    assert '"loss (clients, while training)"' in page
    assert '"loss (clients, evaluating)"' in page


def test_updates_arrive_while_the_server_evaluates(tmp_path: Path) -> None:
    """The evaluation of iteration 4 ends after others have arrived, and counts for iteration 4 and its model."""
    arrived = threading.Event()
    seen: dict[int, float] = {}
    grid = FakeGrid([counting(arrived, after=6), counting(arrived, after=6)])

    def evaluate(iteration: int, arrays: ArrayRecord) -> dict[str, float]:
        if iteration == 4:
            assert arrived.wait(60), "nothing arrives meanwhile"
        seen[iteration] = float(arrays["w"].numpy().sum())
        return {"sum": seen[iteration]}

    run = serve(
        grid,
        ARRAYS,
        asgd.async_sgd(1.0),
        iterations=12,
        every=4,
        evaluate=evaluate,
        directory=tmp_path,
        **quiet(keep_updates=True),
    )
    assert run.metrics["iteration"].tolist() == [0, 4, 8, 12]
    assert run.metrics["sum"].tolist() == list(seen.values())
    models: dict[int, float] = {}
    asgd.replay(tmp_path, look=lambda arrival, g: models.update({arrival.iteration: float(arrival.x[:6].sum())}))
    assert seen[4] == pytest.approx(models[4])


def counting(done: threading.Event, after: int) -> Any:
    """A client that says so once it is sent a model that ``after`` updates or more have gone into."""
    trains = towards(1.0)

    def client(message: Message) -> Any:
        if message.content["config"]["server-round"] > after:
            done.set()
        return trains(message)

    return client


def test_names_that_clients_invent_do_not_break_the_page(tmp_path: Path) -> None:
    def inventive(message: Message) -> Any:
        return reply(record(**{name: array.numpy() for name, array in message.content["arrays"].items()}), {EVIL: 1.0})

    serve(FakeGrid([inventive] * 2), ARRAYS, asgd.async_sgd(0.2), iterations=4, directory=tmp_path, **QUIET)
    page = asgd.report(tmp_path, tmp_path / "page.html").read_text("utf-8")
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
    method = asgd.fedbuff(0.5, concurrency=2, buffer=2).clipped(1.0, noise=4.0) if private else asgd.async_sgd(0.1)
    options: dict[str, Any] = {"iterations": 10, "every": 2, **QUIET}
    run = serve(clients(1.0, 2.0), ARRAYS, method, evaluate=sometimes, until="loss <= 0", **options)
    assert asked == [0, 2, 4, 6, 8, 10]
    assert run.metrics["iteration"].tolist() == [4, 8]
    assert list(run.metrics) == ["iteration", "time", "loss", *(["epsilon"] if private else [])]
    never = serve(clients(1.0, 2.0), ARRAYS, method, evaluate=lambda t, a: None, directory=tmp_path / "run", **options)
    assert never.trace.iterations == 10
    assert "run" in asgd.report(tmp_path / "run", tmp_path / "page.html").read_text("utf-8")
