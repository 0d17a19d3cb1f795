"""Clients have the names that operators know, on the terminal, in notes, in `watch`, on the page and in files."""

from __future__ import annotations

import io
import json
import threading
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.bench import FOREVER
from flower.fake import Client, FakeGrid, record, towards
from flower.serving import ARRAYS, Ear, clients, error, quiet, serve
from flwr.app import Message, MetricRecord, RecordDict
from rich.console import Console

import asyncsgd as asgd
from asyncsgd.cli.watch_view import view
from asyncsgd.core.errors import EngineError
from asyncsgd.flower import AsyncStrategy, Clients
from asyncsgd.flower.allowance import Allowance
from asyncsgd.flower.privacy import Accountant, Book, Privacy
from asyncsgd.flower.reply_checks import ReplyChecks
from asyncsgd.pages import page_data
from asyncsgd.pages.run_page import compose
from asyncsgd.pages.sources import gather
from asyncsgd.run.live import Watcher
from asyncsgd.run.view import RunView
from asyncsgd.trace import timeline

NAMES = ("clinic-a", "clinic-b", "")


def grid_of(*answers: Client) -> FakeGrid:
    """Three clients: two have names from their operators, the third has none."""
    grid = FakeGrid(answers)
    grid.names = {node: name for node, name in zip(grid.clients, NAMES, strict=True) if name}
    return grid


def broken(message: Message) -> RecordDict:
    return RecordDict({"arrays": record(wrong=np.zeros(2)), "metrics": MetricRecord({"num-examples": 1})})


def in_turn() -> tuple[Client, Client]:
    """Two clients that answer in turn, however the machine schedules threads; the second one first.

    It has four times as many examples, so that its share of the step is the largest.
    """
    lock, turn = threading.Lock(), 1

    def answer(message: Message, number: int, client: Client, examples: int) -> RecordDict | None:
        nonlocal turn
        with lock:
            if message.metadata.message_type == "train":
                if turn != number:
                    return None
                turn = 1 - turn
        content: RecordDict = client(message)
        content["metrics"]["num-examples"] = examples
        return content

    light = partial(answer, number=0, client=towards(1.0), examples=10)
    return light, partial(answer, number=1, client=towards(3.0), examples=40)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A run with a client whose replies are refused, and its ids."""
    folder = tmp_path_factory.mktemp("names") / "run"
    light, heavy = in_turn()
    grid = grid_of(light, broken, heavy)
    strategy = AsyncStrategy(
        asgd.async_sgd(0.1),
        directory=folder,
        progress=False,
        evaluate_every=1,
        clients=Clients(heterogeneous=False, max_failures=1, pause=FOREVER),
        min_available_nodes=3,
    )
    result = strategy.start(grid, ARRAYS, num_rounds=10, evaluate_fn=error)
    return result.run, folder, [str(node) for node in grid.clients]


def labels(nodes: list[str]) -> list[str]:
    return ["client 0 (clinic-a)", "client 1 (clinic-b)", f"client 2 (node {nodes[2]})"]


def test_the_diagnosis_names_clients(run: Any) -> None:
    trained, folder, nodes = run
    first, _, third = labels(nodes)
    for seen in (trained.diagnosis, RunView.read(folder).diagnosis):
        [fact] = [fact for fact in seen.facts if "of the total step" in fact]
        assert fact.startswith(f"{third} gave ")
        assert f" of the total step, {first} " in fact


def test_a_diagnosis_that_is_made_from_files_names_clients(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a run that still trains, or was killed before it wrote one."""
    _, folder, nodes = run
    monkeypatch.setattr("asyncsgd.run.view._stored", lambda journal: None)
    facts = RunView.read(folder).diagnosis.facts  # type: ignore[union-attr]
    assert any(fact.startswith(f"{labels(nodes)[2]} gave ") for fact in facts)


def test_watch_names_clients(run: Any) -> None:
    _, folder, nodes = run
    with Watcher(folder) as watcher:
        frame = watcher.look()
    assert [worker.label for worker in frame.workers] == labels(nodes)
    assert any(note.text.startswith("client 1 (clinic-b), job ") for note in frame.notes)
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(view(frame, 120))
    text = console.export_text()
    assert "client " in text
    assert "0 (clinic-a)" in text
    assert f"2 (node {nodes[2]})" in text
    assert json.loads(json.dumps(frame.headline()))["per_worker"][1]["label"] == "client 1 (clinic-b)"


def test_the_page_names_clients(run: Any) -> None:
    _, folder, nodes = run
    [subject] = gather(folder)
    found = page_data.jobs(subject, page_data.spans(subject))
    assert found["workers"] == ["clinic-a", "clinic-b", nodes[2]]
    assert found["labels"] == labels(nodes)
    page = compose([subject]).html()
    assert f"clinic-a · {nodes[0]}" in page
    assert f">{nodes[2]}</td>" in page


def test_exported_timelines_and_figures_name_clients(run: Any) -> None:
    _, folder, nodes = run
    subject = RunView.read(folder)
    events = timeline.events(subject.trace, label=subject.label)
    rows = [event["args"]["name"] for event in events if event["name"] == "thread_name"]
    assert rows[1:] == labels(nodes)
    pytest.importorskip("matplotlib", reason="the extra 'report' is not installed")
    axes = asgd.plot.timeline(subject)
    assert [tick.get_text() for tick in axes.get_yticklabels()] == labels(nodes)


def test_workers_of_other_engines_keep_their_numbers() -> None:
    run = asgd.simulate(
        asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1), asgd.durations.fixed([1, 3]), iterations=20
    )
    subject = RunView.of(run)
    assert subject.label(1) == "worker 1"
    found = page_data.jobs(subject, page_data.spans(subject))
    assert (found["workers"], found["labels"]) == (["0", "1"], None)
    assert any(fact.startswith("worker 0 gave ") for fact in subject.diagnosis.facts)  # type: ignore[union-attr]


# ---------------------------------------------------------------------------------------------- notes


def test_notes_about_updates_and_weights_name_clients() -> None:
    """One client sends updates that are much too long, another one does not report its examples."""
    often = [0]

    def long(message: Message) -> RecordDict:
        often[0] += 1
        arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
        far = 1e6 if often[0] > 12 else 0.1
        moved = {name: values + np.asarray(far, values.dtype) for name, values in arrays.items()}
        return RecordDict({"arrays": record(**moved), "metrics": MetricRecord({"loss": 1.0})})

    ear, grid = Ear(), grid_of(towards(1.0), long, towards(3.0))
    serve(grid, ARRAYS, asgd.async_sgd(0.1), iterations=90, callbacks=[ear], **quiet(minimum=3))
    notes = "\n".join(ear.notes)
    assert "client 1 (clinic-b) does not report 'num-examples', which client " in notes
    assert "client 1 (clinic-b): the update has norm " in notes
    assert "of them from client 1 (clinic-b); " in notes


def test_limits_name_clients() -> None:
    def label(worker: int) -> str:
        return f"client {worker} (clinic-{worker})"

    [note] = Allowance(1, None, label).used(2, applied=True)
    assert str(note.message).startswith("client 2 (clinic-2) gets no more jobs: ")
    book = Book(limit=1, budget=3.0)
    Allowance(None, Accountant(1.0, 1.0, Privacy(3.0), book), label)
    with pytest.raises(EngineError, match=r"a release would take client 4 \(clinic-4\) above the budget ε = 3"):
        book.released(0, {4: 2})
    checks = ReplyChecks(Clients(), label)
    assert checks.summary() == []


def test_simulated_clients_have_no_ids_in_texts(tmp_path: Path) -> None:
    """Flower's simulation gives new ids at every start."""

    class InMemoryGrid(FakeGrid):
        pass

    grid = InMemoryGrid([towards(1.0), towards(3.0)])
    serve(grid, ARRAYS, asgd.async_sgd(0.1), iterations=6, directory=tmp_path / "run", **quiet())
    subject = RunView.read(tmp_path / "run")
    assert [subject.label(0), subject.label.short(0)] == ["client 0", "0"]


def test_a_run_without_a_directory_names_clients_too() -> None:
    run = serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), iterations=7, **quiet())
    assert "client " in " ".join(run.diagnosis.facts)
    assert RunView.of(run).label(0).startswith("client 0 (node ")
