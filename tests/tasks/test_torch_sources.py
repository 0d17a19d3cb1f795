"""Where the data of torch tasks come from, what travels to a worker, and which parameters do."""

import pickle
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from tasks.test_torch_step import ROWS, Records, own_loss, task_of
from tasks.torch_zoo import small_model
from torch import nn

import asyncsgd as asgd


class FileRows:
    """The documented pattern: a memory-mapped file that each process opens when it first reads a row."""

    def __init__(self, path, rows):
        self.path, self.rows = path, rows
        self.file = None

    def __len__(self):
        return self.rows

    def __getitem__(self, row):
        if self.file is None:
            self.file = np.memmap(self.path, np.float32, "r", shape=(self.rows, 65))
        return {"x": torch.tensor(self.file[row, :64]), "y": int(self.file[row, 64])}

    def __getstate__(self):
        return {**self.__dict__, "file": None}


def test_a_memory_mapped_file_is_opened_in_the_worker(tmp_path: Path):
    path = tmp_path / "rows.bin"
    inputs, targets = Records().inputs, Records().targets
    torch.cat([inputs, targets[:, None].float()], dim=1).numpy().tofile(path)
    data = FileRows(path, ROWS)
    task = task_of(data)
    assert data.file is None  # making the task looked at a copy
    expected = task.update(task.initial(), 0, 5)
    assert np.array_equal(expected, task_of().update(task.initial(), 0, 5))
    sent = pickle.dumps(data)
    assert len(sent) < 1000
    copy = cloudpickle.loads(cloudpickle.dumps(task))
    assert copy._data.rows[0].dataset.file is None
    assert np.array_equal(copy.update(task.initial(), 0, 5), expected)


class LikeArrow:
    """A table of columns with the interface of a Hugging Face Dataset."""

    def __init__(self, columns):
        self.columns = columns

    def __len__(self):
        return len(next(iter(self.columns.values())))

    def __getitem__(self, key):
        return {name: values[key] for name, values in self.columns.items()}

    def __getitems__(self, rows):
        batch = self[rows]
        return [{name: values[place] for name, values in batch.items()} for place in range(len(rows))]


def test_a_table_with_the_interface_of_datasets_is_map_style():
    task = task_of(LikeArrow({"x": Records().inputs, "y": Records().targets}), sampling="epochs")
    expected = task_of(sampling="epochs")
    assert np.array_equal(task.update(task.initial(), 0, 0, 3), expected.update(task.initial(), 0, 0, 3))
    asgd.tasks.check_task(task)


@pytest.mark.filterwarnings("ignore")  # of dill, with which datasets makes fingerprints
def test_a_local_arrow_dataset_of_datasets(tmp_path: Path):
    datasets = pytest.importorskip("datasets", reason="the library datasets is not installed")
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table({"x": Records().inputs.tolist(), "y": Records().targets.tolist()})
    path = str(tmp_path / "rows.arrow")
    with arrow.OSFile(path, "wb") as file, arrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    data = datasets.Dataset.from_file(path).with_format("torch")
    task = task_of(data, sampling="epochs", test=data, loaders=2, accumulate=2)
    expected = task_of(sampling="epochs", accumulate=2)
    assert np.array_equal(task.update(task.initial(), 0, 0, 3), expected.update(task.initial(), 0, 0, 3))
    asgd.tasks.check_task(task)
    copy = cloudpickle.loads(cloudpickle.dumps(task))
    assert np.array_equal(copy.update(task.initial(), 0, 0, 3), expected.update(task.initial(), 0, 0, 3))


# ---------------------------------------------------------------------------------------------- parameters


class Tied(nn.Module):
    """The output layer shares its weights with the first one; the middle is frozen."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.middle, self.last = nn.Linear(64, 10), nn.Linear(10, 64), nn.Linear(64, 10)
        self.last.weight = self.first.weight
        self.middle.requires_grad_(False)

    def forward(self, x):
        return self.last(torch.tanh(self.middle(self.first(x))))


def test_tied_weights_count_once_and_frozen_ones_do_not_travel():
    task = asgd.tasks.torch(Tied(), data=Records(), step=own_loss)
    assert task.dimension == 640 + 10 + 10
    assert task.layout() == (("first.weight", 0, (10, 64)), ("first.bias", 640, (10,)), ("last.bias", 650, (10,)))
    assert any("Tied: 1 parameter has several names" in note for note in task.notes)
    asgd.tasks.check_task(task)
    x = task.initial() + 1
    module = task.module(x)
    assert module.first.weight is module.last.weight
    state = module.state_dict()
    assert state["first.weight"].data_ptr() == state["last.weight"].data_ptr()
    assert np.array_equal(state["last.weight"].numpy().reshape(-1), x[:640])
    assert torch.equal(module.middle.weight, Tied().middle.weight)
    module = Tied()
    own_loss(module, {"x": Records().inputs[:2], "y": Records().targets[:2]}).backward()
    assert module.first.weight.grad is not None


def test_dropout_follows_the_seed_in_every_micro_batch():
    model = small_model(nn.Dropout(0.5))
    task = asgd.tasks.torch(model, data=Records(), step=own_loss, batch_size=8, accumulate=2, sampling="epochs")
    x = task.initial()
    assert np.array_equal(task.update(x, 0, 1, 2), task.update(x, 1, 1, 2))
    assert not np.array_equal(task.update(x, 0, 1, 2), task.update(x, 0, 2, 2))
    asgd.tasks.check_task(task)


class Opened:
    def __init__(self, file):
        self.file = file

    def __len__(self):
        return 3

    def __getitem__(self, row):
        return {"x": torch.zeros(64), "y": 0}


def refuse(*given, **options):
    raise AssertionError("a process was started")


@pytest.mark.parametrize(
    "name", [pytest.param("processes", marks=pytest.mark.processes), pytest.param("ray", marks=pytest.mark.ray)]
)
def test_data_that_cannot_reach_a_worker_are_named_with_the_attribute(name, monkeypatch):
    """Nothing is started, neither a worker process nor a Ray cluster."""
    if name == "ray":
        pytest.importorskip("ray")
    from asyncsgd.engines._processes import fork_client
    from asyncsgd.engines._ray import pool

    monkeypatch.setattr(fork_client.subprocess, "Popen", refuse)
    monkeypatch.setattr(pool, "Cluster", refuse)
    engine = getattr(asgd.engines, name)(1)
    with open(__file__, "rb") as file:
        for data, where in ((Opened(file), "data.file"), ([Opened(3), Opened({"a": file})], r'data\[1\].file\["a"\]')):
            task = task_of(data)
            with pytest.raises(asgd.errors.UsageError, match=f"cannot pickle.*, in {where}, a BufferedReader"):
                asgd.train(
                    task,
                    asgd.federated_async_sgd(0.1, concurrency=1),
                    getattr(asgd.engines, name)(2) if isinstance(data, list) else engine,
                    iterations=1,
                    progress=False,
                )

        def step(model, batch):
            file.read(1)
            return own_loss(model, batch)

        with pytest.raises(asgd.errors.UsageError, match=r", in step\.file, a BufferedReader"):
            asgd.train(task_of(step=step), asgd.async_sgd(0.1), engine, iterations=1, progress=False)
