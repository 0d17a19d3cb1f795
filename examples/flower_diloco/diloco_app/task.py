"""The model and the data that clients and server share, in plain PyTorch without asyncsgd."""

from __future__ import annotations

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

TEST, SEED = 0.25, 0


def net() -> nn.Module:
    """Return the network: 8 x 8 pixels in, ten digits out."""
    torch.manual_seed(SEED)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))


def load(part: int | None, parts: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
    """Return images and labels: every ``parts``-th training row from row ``part`` on, or those for the test."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16.0).astype(np.float32)
    split = train_test_split(images, labels, test_size=TEST, stratify=labels, random_state=SEED)
    images, labels = (split[1], split[3]) if part is None else (split[0][part::parts], split[2][part::parts])
    return torch.from_numpy(images), torch.from_numpy(labels.astype(np.int64))


@torch.no_grad()
def accuracy(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> float:
    """Return the share of digits that the model names correctly."""
    return float((model(images).argmax(1) == labels).float().mean())
