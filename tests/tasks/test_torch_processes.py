"""A torch task travels to other processes, small and unchanged, and survives a fork at any time."""

import subprocess
import sys
from pathlib import Path

import cloudpickle
import numpy as np
import pytest
import torch
from tasks.torch_zoo import RowByRow, digits, small_model
from torch import nn
from torch.utils.data import TensorDataset

import asyncsgd as asgd

pytestmark = pytest.mark.processes


def tasks():
    inputs, targets = digits().tensors
    model = small_model(nn.BatchNorm1d(16), nn.Dropout(0.2))
    yield asgd.tasks.torch(
        model, nn.CrossEntropyLoss(), digits(), test=digits((0, 50)), split=asgd.tasks.split("label", workers=3)
    )
    yield asgd.tasks.torch(model, nn.CrossEntropyLoss(), RowByRow(digits()))
    yield asgd.tasks.torch(model, nn.CrossEntropyLoss(), (inputs, targets))


@pytest.mark.parametrize("place", range(3))
def test_a_copy_gives_the_same_bits_before_and_after_use(place):
    task = list(tasks())[place]
    x = task.initial()
    unused = cloudpickle.loads(cloudpickle.dumps(task))
    expected = [task.update(x, worker, 7).tobytes() for worker in range(3)]
    values = task.evaluate(x)
    used = cloudpickle.loads(cloudpickle.dumps(task))
    for copy in (unused, used):
        assert np.array_equal(copy.initial(), x)
        assert [copy.update(x, worker, 7).tobytes() for worker in range(3)] == expected
        assert copy.evaluate(x) == values
        assert (copy.workers, copy.heterogeneous, copy.notes) == (task.workers, task.heterogeneous, task.notes)


def test_what_travels_is_the_model_once_and_the_rows_once():
    inputs, targets = torch.randn(10_000, 64), torch.randint(0, 10, (10_000,))
    model = nn.Sequential(nn.Linear(64, 1000), nn.Linear(1000, 10))
    for data, rows, options in (
        ((inputs[:100], targets[:100]), 100, {}),  # views of something larger
        (TensorDataset(inputs[:5000], targets[:5000]), 5000, {"split": asgd.tasks.split("iid", workers=4)}),
        ([(inputs[:50], targets[:50]), (inputs[50:100], targets[50:100])], 100, {}),
    ):
        task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), data, **options)
        task.update(task.initial(), 0, 0)
        task.update_into(task.initial(), 0, 0, np.empty(task.dimension, np.float32))
        needed = 4 * task.dimension + rows * (64 * 4 + 8 + (8 if options else 0))
        assert needed < len(cloudpickle.dumps(task)) < needed + 20_000


FORK = """
import os, sys, mmap
import cloudpickle, numpy as np, torch
torch.set_num_threads(1)  # as in a worker; threads of a parent do not live on in its child
sys.path.insert(0, {tests!r})
from tasks.test_torch_processes import tasks

def in_child(task, x, expected):
    shared = np.frombuffer(mmap.mmap(-1, x.nbytes), x.dtype)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            for seed in (5, 7):
                task.update_into(x, 1, seed, shared)
            task.evaluate(x)
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    assert shared.tobytes() == expected

for task in tasks():
    text = cloudpickle.dumps(task)
    x = task.initial()
    expected = task.update(x, 1, 7).tobytes()
    in_child(cloudpickle.loads(text), x, expected)  # forked before its first use
    out = np.empty_like(x)
    task.update_into(x, 0, 1, out)
    in_child(task, x, expected)  # and after
    assert task.update(x, 1, 7).tobytes() == expected
print("same")
"""


@pytest.mark.slow
def test_forks_give_the_same_bits():
    script = FORK.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=False, timeout=200
    )
    assert done.stdout == "same\n", done.stderr


def draws(worker, batch, seed):
    generator = torch.Generator().manual_seed(seed % 1000 + 7 * batch + worker)
    return torch.rand(8, 64, generator=generator), torch.randint(0, 10, (8,), generator=generator)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["epochs", "stream"])
def test_a_run_in_epochs_or_on_a_stream_replays_bit_for_bit(kind, tmp_path):
    options = {"accumulate": 2, "test": digits((0, 20))}
    model, loss = small_model(nn.Dropout(0.2)), nn.CrossEntropyLoss()
    if kind == "epochs":
        task = asgd.tasks.torch(
            model, loss, RowByRow(digits(), 90), batch_size=16, sampling="epochs", loaders=2, **options
        )
        length = {"epochs": 3}
    else:
        task, length = asgd.tasks.torch(model, loss, draws, **options), {"iterations": 18}
    method, engine = asgd.async_sgd(0.1), asgd.engines.processes(2)
    run = asgd.train(task, method, engine, directory=tmp_path / "run", progress=False, **length)
    assert run.trace.iterations == 18
    if kind == "epochs":  # each of the 3 · 6 mini-batches was handed out once
        assert sorted(run.trace.jobs.batch) == list(range(18))
    assert np.array_equal(asgd.replay(tmp_path / "run").x, run.x)
