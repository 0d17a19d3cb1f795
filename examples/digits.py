"""An ordinary PyTorch task: a small network on scikit-learn's handwritten digits.

Run: asyncsgd train examples.digits:task --workers 4 --stepsize 0.05 --iterations 2000
"""

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import TensorDataset

import asyncsgd as asgd


def task(seed: int = 0) -> asgd.tasks.TorchTask:
    """Return a task: a network with one hidden layer on 8 x 8 pictures, a quarter of which are the test set."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images / 16.0, labels, test_size=0.25, random_state=seed, stratify=labels)
    train_x, test_x, train_y, test_y = (torch.tensor(part) for part in parts)
    torch.manual_seed(seed)
    return asgd.tasks.torch(
        model=nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)),
        loss=nn.CrossEntropyLoss(),
        data=TensorDataset(train_x.float(), train_y),
        test=TensorDataset(test_x.float(), test_y),
        batch_size=32,
    )
