"""The command line of issue 15 as one call: a PyTorch task with everything on, then its model in a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from run.test_commands import call

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install 'asyncsgd[torch]'")

pytestmark = [pytest.mark.processes, pytest.mark.slow]

MODULE = """
import torch
from torch import nn
import asyncsgd as asgd

def task():
    torch.set_num_threads(1)
    torch.manual_seed(0)
    inputs = torch.randn(256, 10)
    labels = (inputs[:, 0] > 0).long()
    model = nn.Sequential(nn.Linear(10, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))
    data = (inputs, labels)
    return asgd.tasks.torch(model, nn.CrossEntropyLoss(), data, batch_size=16, sampling="epochs", test=data)
"""


def test_train_and_export_a_torch_task(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moved.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    code, said, complaints = call(
        *("train", "moved:task", "--method", "delay_adaptive", "--stepsize", "0.03"),
        *("--schedule", "cosine", "--warmup", "4", "--epochs", "3", "--clip", "1.0"),
        *("--optimizer", "adamw", "--set", "optimizer.weight_decay=0.1", "--set", 'optimizer.exclude=["bias", "1.*"]'),
        *("--workers", "2", "--threads", "1", "--evaluation-seconds", "600", "--save-best", "loss", "--json"),
    )
    assert (code, complaints) == (0, "")
    row = json.loads(said)
    assert (row["iterations"], row["state"], row["epoch"]) == (48, "done", 3.0)
    config = json.loads((tmp_path / "runs/task-1/run.json").read_text("utf-8"))
    optimizer = config["parts"]["optimizer"]
    assert (optimizer["weight_decay"], optimizer["ranges"]) == (0.1, [[80, 104], [120, 122]])
    assert (code, complaints) == (0, "")
    code, said, complaints = call("export", "runs/task-1", "model.pt")
    assert (code, complaints) == (0, "")
    model = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.LayerNorm(8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    model.load_state_dict(torch.load("model.pt", weights_only=True))
    inputs = torch.randn(500, 10, generator=torch.Generator().manual_seed(1))
    found = model.eval()(inputs).argmax(1)
    assert float((found == (inputs[:, 0] > 0)).float().mean()) > 0.8


def test_an_evaluation_needs_a_positive_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "moved.py").write_text(MODULE, "utf-8")
    monkeypatch.chdir(tmp_path)
    code, _, complaints = call("train", "moved:task", "--stepsize", "0.1", "--epochs", "1", "--evaluation-seconds", "0")
    assert code == 2
    assert "--evaluation-seconds = 0" in " ".join(complaints.split())
    assert not (tmp_path / "runs").exists()
