"""The model and the data that clients and server share, in plain PyTorch without asyncsgd."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    """A small convolutional network with BatchNorm: 8 x 8 pixels in, ten digits out."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1),
            nn.BatchNorm2d(16),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.BatchNorm2d(32),
            nn.ReLU(),
            nn.Flatten(),
            nn.Linear(32 * 4 * 4, 10),
        )

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.layers(images)


def _digits() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).reshape(-1, 1, 8, 8).astype(np.float32)
    return train_test_split(images, labels, test_size=0.25, stratify=labels, random_state=0)


def _dataset(images: np.ndarray, labels: np.ndarray) -> TensorDataset:
    return TensorDataset(torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64)))


def load_test(batch_size: int = 256) -> DataLoader:
    _, images, _, labels = _digits()
    return DataLoader(_dataset(images, labels), batch_size)


def load_client(client: int, clients: int, alpha: float, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """Return (training, validation) data of one client. A Dirichlet draw divides each digit among the clients."""
    images, _, labels, _ = _digits()
    random = np.random.default_rng(0)
    mine: list[np.ndarray] = []
    for digit in range(10):
        rows = random.permutation(np.flatnonzero(labels == digit))
        cuts = np.cumsum(random.dirichlet([alpha] * clients))[:-1] * len(rows)
        mine.append(np.split(rows, cuts.astype(int))[client])
    rows = random.permutation(np.concatenate(mine))
    if len(rows) < 4:  # give a client without data a few random rows, so that it can answer
        rows = random.permutation(len(labels))[:4]
    held = max(2, len(rows) // 5)
    train, validation = (
        _dataset(images[rows[held:]], labels[rows[held:]]),
        _dataset(images[rows[:held]], labels[rows[:held]]),
    )
    size = min(batch_size, len(train))
    return DataLoader(train, size, shuffle=True, drop_last=True), DataLoader(validation, batch_size)


def train(model: nn.Module, data: DataLoader, epochs: int, learning_rate: float) -> float:
    """Train the model and return the mean loss over all batches."""
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=learning_rate, momentum=0.9)
    total, batches = 0.0, 0
    for _ in range(epochs):
        for images, labels in data:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            total, batches = total + loss.item(), batches + 1
    return total / max(1, batches)


@torch.no_grad()
def test(model: nn.Module, data: DataLoader) -> tuple[float, float]:
    """Return (loss, accuracy)."""
    model.eval()
    loss, right, count = 0.0, 0, 0
    for images, labels in data:
        scores = model(images)
        loss += nn.functional.cross_entropy(scores, labels, reduction="sum").item()
        right += int((scores.argmax(1) == labels).sum())
        count += len(labels)
    return loss / count, right / count
