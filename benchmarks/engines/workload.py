"""Tasks that every contestant computes: a constant gradient that costs nothing, or that of a multi-layer perceptron."""

from __future__ import annotations

import os
import time
from itertools import pairwise

import numpy as np

WORKERS = 2
STEP = 1e-3
LAYERS = {10_000: (64, 128, 10), 1_000_000: (784, 1000, 200, 10), 10_000_000: (3072, 2800, 500, 10)}
"""Layers of the perceptrons, by their approximate number of parameters."""


class Constant:
    """The same gradient every time, already in the right memory, so that only the way to the model is timed."""

    workers = WORKERS

    def __init__(self, dimension: int) -> None:
        self.dimension = dimension
        self._gradient: np.ndarray | None = None
        self._written: set[int] = set()

    def initial(self):
        return np.zeros(self.dimension, np.float32)

    def update(self, x, worker, seed):
        if self._gradient is None:
            self._gradient = np.full(self.dimension, 1e-6, np.float32)
        return self._gradient

    def update_into(self, x, worker, seed, out):
        if id(out) not in self._written:
            out[:] = 1e-6
            self._written.add(id(out))

    def evaluate(self, x):
        return {}


class Known:
    """A task whose gradients hold, in the first coordinate, the id of the process that computed them."""

    def __init__(self, task) -> None:
        self._task = task
        self.workers = task.workers

    def initial(self):
        return self._task.initial()

    def update(self, x, worker, seed):
        out = np.empty_like(x)
        self.update_into(x, worker, seed, out)
        return out

    def update_into(self, x, worker, seed, out):
        self._task.update_into(x, worker, seed, out)
        out[0] = os.getpid()

    def evaluate(self, x):
        return self._task.evaluate(x)


def perceptron(size: int):
    """Gradients of a multi-layer perceptron with about ``size`` parameters, on batches of 32."""
    import torch
    from torch import nn

    import asyncsgd as asgd

    torch.manual_seed(0)
    widths = LAYERS[size]
    layers: list[nn.Module] = []
    for into, out in pairwise(widths):
        layers += [nn.Linear(into, out), nn.ReLU()]
    random = np.random.default_rng(0)
    inputs = random.standard_normal((1024, widths[0]), np.float32)
    targets = random.integers(0, widths[-1], 1024)
    model = nn.Sequential(*layers[:-1])
    return asgd.tasks.torch(model, nn.CrossEntropyLoss(), (inputs, targets), batch_size=32)


class Meter:
    """Count updates per second, from the moment at which all workers are computing until ``seconds`` have passed."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._seen = self._counted = 0
        self._first = self._begin = self._now = 0.0

    def tick(self) -> bool:
        """Count one more update; return whether it was the last one."""
        self._now = time.perf_counter()
        self._seen += 1
        if self._seen == 1:
            self._first = self._now
        elif not self._begin:
            if self._seen > 2 * WORKERS and self._now - self._first > 0.1 * self._seconds:
                self._begin = self._now
        else:
            self._counted += 1
        return self._counted >= 3 and self._now - self._begin >= self._seconds

    @property
    def per_second(self) -> float:
        return self._counted / (self._now - self._begin)
