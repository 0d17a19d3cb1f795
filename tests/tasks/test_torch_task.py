"""A PyTorch model as a task, in virtual time."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

import asyncsgd as asgd


def digits(rows=None):
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.as_tensor(features / 16, dtype=torch.float32), torch.as_tensor(labels))
    return Subset(data, range(*rows)) if rows else data


def small_model(*extra):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), *extra, nn.Linear(16, 10))


def test_the_gradient_is_that_of_autograd():
    model, data = small_model(), digits()
    task = asgd.tasks.torch(model, nn.CrossEntropyLoss(), data, batch_size=8)
    x = task.initial()
    assert x.dtype == np.float32
    assert np.array_equal(x, nn.utils.parameters_to_vector(model.parameters()).detach().numpy())
    from asyncsgd.core.random import below, output

    rows = [below(output(7, k), len(data))[1] for k in range(8)]
    inputs, targets = data[rows]
    nn.CrossEntropyLoss()(model(inputs), targets).backward()
    expected = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()
    assert np.array_equal(task.update(x, 0, 7), expected)
    assert np.array_equal(x, task.initial())


def test_it_passes_the_public_check_of_tasks_with_dropout():
    task = asgd.tasks.torch(small_model(nn.Dropout(0.5)), nn.CrossEntropyLoss(), digits(), workers=3)
    asgd.tasks.check_task(task)


def test_a_plain_dataset_gives_the_same_as_tensors():
    class Rows(Dataset):
        def __len__(self):
            return 50

        def __getitem__(self, row):
            return data[row]

    data = digits()
    by_row = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), Rows())
    by_slice = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), TensorDataset(*data[:50]))
    x = by_row.initial()
    assert np.array_equal(by_row.update(x, 0, 3), by_slice.update(x, 0, 3))


def test_it_learns_in_virtual_time_and_repeats_to_the_bit():
    task = asgd.tasks.torch(
        small_model(), nn.CrossEntropyLoss(), digits((0, 1400)), workers=4, test=digits((1400, 1797))
    )
    speeds = asgd.durations.fixed([1.0, 1.0, 1.0, 10.0])
    runs = [asgd.simulate(task, asgd.delay_adaptive(0.2), speeds, iterations=1500, every=500) for _ in range(2)]
    assert not runs[0].compiled
    assert runs[0].metrics["accuracy"][-1] > 0.8
    assert runs[0].x.tobytes() == runs[1].x.tobytes()
    again = asgd.simulate(task, asgd.delay_adaptive(0.2), runs[0].trace, every=500)
    assert again.x.tobytes() == runs[0].x.tobytes()


def test_one_dataset_per_worker_is_heterogeneous():
    parts = [Subset(digits(), rows.tolist()) for rows in asgd.tasks.label_split(digits().tensors[1].numpy(), 3)]
    task = asgd.tasks.torch(small_model(), nn.CrossEntropyLoss(), parts)
    assert (task.workers, task.heterogeneous) == (3, True)
    with pytest.warns(asgd.BiasWarning):
        asgd.simulate(task, asgd.async_sgd(0.1), asgd.durations.fixed([1.0, 1.0, 2.0]), iterations=5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        method = asgd.federated_async_sgd(0.1, concurrency=3)
        asgd.simulate(task, method, asgd.durations.fixed([1.0, 1.0, 2.0]), iterations=5)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"model": "no"}, "model = 'str' is no torch module"),
        ({"model": nn.ReLU()}, "nothing to train"),
        ({"model": nn.Sequential(nn.Linear(64, 10), nn.BatchNorm1d(10))}, "has buffers.*GroupNorm"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"data": []}, "data"),
        ({"data": [TensorDataset(torch.empty(0, 64), torch.empty(0))]}, r"data\[0\].*has no rows"),
    ],
)
def test_bad_input_names_the_argument_and_the_fix(arguments, says):
    with pytest.raises(asgd.errors.BadParameter, match=says):
        asgd.tasks.torch(
            **{"model": small_model(), "loss": nn.CrossEntropyLoss(), "data": digits(), **arguments},
        )
