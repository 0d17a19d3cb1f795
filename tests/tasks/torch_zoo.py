"""Models and data that several tests of torch tasks share."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import Dataset, Subset, TensorDataset

torch.set_num_threads(1)  # tests run side by side, and two threads each on two cores cost a factor of ten


def digits(rows=None):
    from sklearn.datasets import load_digits

    features, labels = load_digits(return_X_y=True)
    data = TensorDataset(torch.as_tensor(features / 16, dtype=torch.float32), torch.as_tensor(labels))
    return Subset(data, range(*rows)) if rows else data


def small_model(*extra):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 16), nn.ReLU(), *extra, nn.Linear(16, 10))


class RowByRow(Dataset):
    """A Dataset that is more than tensors."""

    def __init__(self, data, length=None):
        self.data, self.length = data, len(data) if length is None else length

    def __len__(self):
        return self.length

    def __getitem__(self, row):
        return self.data[row]


class Counts(nn.Module):
    """Counts its calls in an integer buffer, rebinds a second one, and lets both change what it returns."""

    def __init__(self):
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("shift", torch.zeros(()))
        self.register_buffer("later", None)

    def forward(self, x):
        self.calls.data.add_(1)  # around the version counter, as code for running averages does
        self.shift = self.shift + 0.5
        self.later = self.shift
        return x * self.calls + self.shift


def flat(model):
    return nn.utils.parameters_to_vector(model.parameters()).detach().numpy()


def aligned(values, offset):
    """The same numbers ``offset`` bytes behind a multiple of 64, read-only."""
    room = np.empty(values.nbytes + 128, np.uint8)
    start = -room.__array_interface__["data"][0] % 64 + offset
    vector = room[start : start + values.nbytes].view(values.dtype)
    vector[:] = values
    vector.flags.writeable = False
    assert vector.__array_interface__["data"][0] % 64 == offset
    return vector
