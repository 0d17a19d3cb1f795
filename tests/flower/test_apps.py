"""Four apps written as Flower's examples are, with an asynchronous server; two of them have legacy clients."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from flower.client_apps import LEGACY, MESSAGES, imported, node
from flower.fake import FakeGrid
from flwr.app import Context, RecordDict

from asyncsgd.run.read import read_lines, read_trace

CLIENTS = 4


@pytest.mark.slow
@pytest.mark.parametrize("name", [*LEGACY, *MESSAGES])
def test_the_clients_train_and_evaluate_unchanged(name: str, tmp_path: Path) -> None:
    if name.startswith("torch"):
        pytest.importorskip("torch", reason="the extra 'torch' is not installed")
    config: dict[str, Any] = {
        "num-server-rounds": 5,
        "local-epochs": 10 if name.startswith("sklearn") else 1,
        "learning-rate": {"torch_app": 0.05, "numpy_legacy": 0.5}.get(name, 0.1),
        "output": str(tmp_path / "accuracy"),
        "directory": str(tmp_path / "run"),
        "clients": CLIENTS,
    }
    with imported(name, "client_app") as clients, imported(name, "async_server_app") as server:
        grid = FakeGrid([node(clients.app, partition, CLIENTS, **config) for partition in range(CLIENTS)])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            server.app(grid, Context(7, 1, {}, RecordDict(), config))
    assert not grid.wrong
    assert read_trace(tmp_path / "run").iterations == 5 * CLIENTS
    accuracy = [float(line) for line in (tmp_path / "accuracy").read_text("utf-8").split()]
    assert accuracy[-1] > 0.8 > accuracy[0]
    journal = read_lines(tmp_path / "run", "journal.jsonl")
    assert not [row for row in journal if row["event"] in ("failed", "rejected")]
    evaluated = [row for row in journal if row.get("kind") == "evaluate"]
    assert {row["clients"] for row in evaluated} == {CLIENTS}
    assert evaluated[0]["metrics"].keys() >= ({"loss", "accuracy"} if name in LEGACY else set())
    again = [message for message in grid.messages if message.metadata.group_id.endswith("-again")]
    assert (0 < len(again) <= CLIENTS) if name in LEGACY else not again
