"""The example of asynchronous DiLoCo: its own ClientApp and ServerApp, on a grid without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")
pytest.importorskip("torch", reason="the extra 'torch' is not installed")
pytest.importorskip("sklearn", reason="scikit-learn is not installed")

from flower.deployment import DILOCO
from flower.fake import Client, FakeGrid
from flwr.app import Context, Message, RecordDict

import asyncsgd as asgd
from asyncsgd.run.read import read_config, read_lines, read_trace

CLIENTS = 3


@pytest.mark.parametrize("compress", [True, False])
def test_the_example_trains(
    compress: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(DILOCO))
    from diloco_app import client_app, server_app

    def client(number: int) -> Client:
        place = {"partition-id": number, "num-partitions": CLIENTS}
        context = Context(7, number, place, RecordDict(), {})
        return lambda message: client_app.app(message, context)

    config: dict[str, Any] = {"clients": CLIENTS, "rounds": 10, "steps": 20, "compress": compress}
    config |= {"directory": str(tmp_path / "run"), "resume": False, "learning-rate": 0.003}
    grid = FakeGrid([client(number) for number in range(CLIENTS)])
    server_app.main(grid, Context(7, 1, {}, RecordDict(), config))
    assert not grid.wrong
    rows = read_lines(tmp_path / "run", "metrics.jsonl")
    assert rows[-1]["accuracy"] > 0.6 > rows[0]["accuracy"]
    trace = read_trace(tmp_path / "run")
    assert trace.jobs.steps.max() == 20
    assert {message.content["config"]["steps"] for message in grid.messages} <= set(range(1, 21))
    assert ("up=Int8" in read_config(tmp_path / "run")["method"]) == compress
    parameters = 64 * 64 + 64 + 64 * 10 + 10
    up, down = asgd.async_sgd(1.0).compressed("int8", down="bfloat16").message_bytes(parameters, "float32")
    sizes = (up, down) if compress else (4 * parameters, 4 * parameters)
    assert f"an update takes {sizes[0]} bytes, a model {sizes[1]}" in capsys.readouterr().out
    assert isinstance(grid.messages[0], Message)
    for name in [name for name in sys.modules if name.startswith("diloco_app")]:
        monkeypatch.delitem(sys.modules, name)
