"""A directory holds the initial weights of a PyTorch model once: in initial.safetensors, and not in job.pkl."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from run.common import sound, train
from torch import nn

import asyncsgd as asgd
from asyncsgd.core.errors import BadRunDirectory
from asyncsgd.run.stored import package, unpackage
from asyncsgd.run.verify import verify
from asyncsgd.tasks._torch.model import fill, hollow

WIDE = 300


class Tied(nn.Module):
    """One parameter used twice, a frozen one, and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDE, WIDE, bias=False)
        self.second = nn.Linear(WIDE, WIDE)
        self.second.weight = self.first.weight
        self.last = nn.Linear(WIDE, 1)
        self.last.weight.requires_grad_(False)
        self.register_buffer("scale", torch.tensor([0.5]))

    def forward(self, rows: Any) -> Any:
        return self.last(torch.tanh(self.second(self.first(rows)))) * self.scale


def made(module: nn.Module | None = None) -> Any:
    torch.manual_seed(3)
    rows = torch.randn(8, WIDE)
    return asgd.tasks.torch(module or Tied(), nn.functional.mse_loss, (rows, torch.ones(8, 1)), batch_size=4)


def test_the_weights_are_stored_once(tmp_path: Path) -> None:
    task = made()
    run = train(tmp_path, iterations=20, task=task, every=20)
    weights = 4 * task.dimension
    assert weights > 300_000
    assert (tmp_path / "job.pkl").stat().st_size < 40_000
    assert weights <= (tmp_path / "initial.safetensors").stat().st_size < weights + 1000
    assert json.loads((tmp_path / "run.json").read_text("utf-8"))["job"]["parameters"] == "initial.safetensors"
    again, _ = unpackage(tmp_path)
    assert again.initial().tobytes() == task.initial().tobytes()
    x, out = task.initial() + np.float32(0.01), {"worker": 0, "seed": 5}
    assert again.update(x, **out).tobytes() == task.update(x, **out).tobytes()
    assert again.evaluate(x) == task.evaluate(x)
    mine, its = task.module(x).state_dict(), again.module(x).state_dict()
    assert all(torch.equal(mine[name], its[name]) for name in mine)
    sound(run, 20)
    assert not verify(tmp_path)


@pytest.mark.slow
def test_a_resume_keeps_the_initial_model(tmp_path: Path) -> None:
    """Resumed with a model that starts elsewhere: the run and its replay start where they started."""
    first = made()
    train(tmp_path, iterations=20, task=first, every=20)
    other = made()
    other._module.first.weight.data.mul_(2)
    sound(train(tmp_path, iterations=40, task=other, every=20, resume=True), 40)
    assert unpackage(tmp_path)[0].initial().tobytes() == first.initial().tobytes()


@pytest.mark.slow
def test_a_run_that_was_stored_with_its_weights_is_resumed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = made()
    with monkeypatch.context() as patch:
        patch.setattr("asyncsgd.tasks._torch.model.hollow", lambda module: None)
        sound(train(tmp_path, iterations=20, task=task, every=20), 20)
        assert not (tmp_path / "initial.safetensors").exists()
        assert (tmp_path / "job.pkl").stat().st_size > 4 * task.dimension
    sound(train(tmp_path, iterations=40, task=task, every=20, resume=True), 40)
    assert (tmp_path / "initial.safetensors").exists()


def test_missing_weights_are_noticed(tmp_path: Path) -> None:
    train(tmp_path, iterations=20, task=made(), every=20)
    (tmp_path / "initial.safetensors").unlink()
    assert [finding.file for finding in verify(tmp_path)] == ["initial.safetensors"]
    with pytest.raises(BadRunDirectory, match=r"initial\.safetensors"):
        unpackage(tmp_path)


def test_a_hollow_module_is_filled_again() -> None:
    module = Tied()
    empty = hollow(module)
    assert empty is not None
    assert empty.second.weight is empty.first.weight
    assert not empty.first.weight.any()
    assert empty.first.weight.untyped_storage().nbytes() == 4
    assert torch.equal(empty.last.weight, module.last.weight)
    fill(empty, np.concatenate([p.detach().numpy().reshape(-1) for p in module.parameters() if p.requires_grad]))
    assert empty.second.weight is empty.first.weight
    assert all(torch.equal(a, b) for a, b in zip(module.parameters(), empty.parameters(), strict=True))


class Shares(nn.Module):
    """A buffer in the memory of a parameter: values alone could not restore that."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(WIDE, 1)
        self.register_buffer("view", self.part.weight.detach()[0])

    def forward(self, rows: Any) -> Any:
        return self.part(rows)


class Strange(nn.Module):
    """Copies itself in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.part = nn.Linear(WIDE, 1)

    def __deepcopy__(self, memo: dict[int, Any]) -> Strange:
        copy = Strange()
        copy.load_state_dict(self.state_dict())
        return copy

    def forward(self, rows: Any) -> Any:
        return self.part(rows)


def test_what_values_cannot_restore_is_pickled_whole() -> None:
    upright = nn.Linear(WIDE, 2)
    upright.weight = nn.Parameter(upright.weight.detach().t().contiguous().t())
    for module in (Shares(), Strange(), upright):
        assert hollow(module) is None
    entry, pickled = package(made(Strange()), asgd.async_sgd(0.1))
    assert "parameters" not in entry
    assert pickled is not None


def test_a_model_can_be_made_while_another_thread_evaluates() -> None:
    """The evaluation waits between its batches until the main thread has made a model at other parameters."""
    rows, begun, made_model = torch.randn(600, WIDE), threading.Event(), threading.Event()

    def waits(outputs: Any, targets: Any) -> float:
        begun.set()
        assert made_model.wait(60)
        return float(outputs.mean())

    task = asgd.tasks.torch(Tied(), nn.functional.mse_loss, (rows, torch.ones(600, 1)), metrics={"mean": waits})
    x, found = task.initial(), []
    thread = threading.Thread(target=lambda: found.append(task.evaluate(x)))
    thread.start()
    assert begun.wait(60)
    module = task.module(x + np.float32(1.0))
    made_model.set()
    thread.join()
    assert found == [task.evaluate(x)]
    assert np.array_equal(module.first.weight.detach().numpy().reshape(-1), (x + np.float32(1.0))[: WIDE * WIDE])
