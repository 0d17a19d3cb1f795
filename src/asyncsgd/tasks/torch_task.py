"""A PyTorch model as a task: one flat vector in, one flat gradient out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any

import numpy as np

from asyncsgd.core.check import count
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Vector
from asyncsgd.core.random import below, output


class TorchTask:
    """Mini-batch gradients of a loss of a model, over data that all workers share or that each has its own part of.

    Everything depends on (x, worker, seed) alone: rows are drawn with replacement from the job's seed, and torch's own
    generator is set from it too, so that dropout can be repeated. The model given is copied, never changed.
    """

    def __init__(
        self,
        model: Any,
        loss: Callable[[Any, Any], Any],
        datasets: Sequence[Any],
        batch_size: int,
        test: Any | None,
        device: str,
        workers: int,
    ) -> None:
        import torch

        self.workers = workers
        self.heterogeneous = len(datasets) > 1
        self._loss, self._datasets, self._batch_size, self._test = loss, datasets, batch_size, test
        self._device = torch.device(device)
        self._model = deepcopy(model).to(self._device)
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        self._flat = torch.cat([p.detach().reshape(-1) for p in parameters])
        self._gradient = torch.zeros_like(self._flat)
        place = 0
        for parameter in parameters:  # parameters and gradients become views of two flat vectors
            part = slice(place, place + parameter.numel())
            parameter.data = self._flat[part].view_as(parameter)
            parameter.grad = self._gradient[part].view_as(parameter)
            place = part.stop
        self._start: Vector = self._flat.cpu().numpy().copy()

    @property
    def dimension(self) -> int:
        """How many numbers are trained."""
        return len(self._start)

    def initial(self) -> Vector:
        """The parameters of the model as it was given."""
        return self._start.copy()

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """The gradient of the mean loss of a mini-batch of this worker's data."""
        import torch

        if not 0 <= worker < self.workers:
            raise BadParameter("worker", worker, f"is not one of {self.workers}", f"pass 0..{self.workers - 1}")
        dataset = self._datasets[worker if self.heterogeneous else 0]
        rows = [below(output(seed, k), len(dataset))[1] for k in range(self._batch_size)]
        inputs, targets = self._batch(dataset, rows)
        self._model.train()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed & (2**63 - 1))
            self._flat.copy_(torch.from_numpy(np.array(x)))
            self._gradient.zero_()
            self._loss(self._model(inputs), targets).backward()
        gradient: Vector = self._gradient.cpu().numpy().copy()
        return gradient

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Mean loss on the held-out data (on all training data without any), and accuracy where there are classes."""
        import torch

        self._model.eval()
        total, right, rows, classified = 0.0, 0, 0, True
        with torch.no_grad():
            self._flat.copy_(torch.from_numpy(np.array(x)))
            for dataset in self._datasets if self._test is None else [self._test]:
                for begin in range(0, len(dataset), 1024):
                    chosen = list(range(begin, min(begin + 1024, len(dataset))))
                    inputs, targets = self._batch(dataset, chosen)
                    outputs = self._model(inputs)
                    total += float(self._loss(outputs, targets)) * len(chosen)
                    rows += len(chosen)
                    classified = classified and outputs.ndim == 2 and not targets.is_floating_point()
                    if classified:
                        right += int((outputs.argmax(dim=1) == targets).sum())
        return {"loss": total / rows, **({"accuracy": right / rows} if classified else {})}

    def _batch(self, dataset: Any, rows: list[int]) -> tuple[Any, Any]:
        import torch

        if isinstance(dataset, torch.utils.data.TensorDataset):
            inputs, targets = dataset[rows]
        else:
            inputs, targets = torch.utils.data.default_collate([dataset[row] for row in rows])
        return inputs.to(self._device), targets.to(self._device)


def torch(
    model: Any,
    loss: Callable[[Any, Any], Any],
    data: Any,
    *,
    batch_size: int = 32,
    workers: int = 1,
    test: Any | None = None,
    device: str = "cpu",
) -> TorchTask:
    """A task from an ordinary ``nn.Module``, loss and dataset (extra ``torch``).

    Args:
        model: Any module whose output the loss takes; it is copied.
        loss: ``loss(outputs, targets)``, the mean over a batch, as ``nn.CrossEntropyLoss()``.
        data: A dataset of (input, target) pairs that all workers share, or a list of datasets, one per worker.
        batch_size: Rows of a job, drawn with replacement.
        workers: How many share the dataset; with a list it is the length of the list.
        test: Held-out data for ``evaluate``.
        device: Where to compute.
    """
    try:
        from torch import nn
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("asgd.tasks.torch needs PyTorch; pip install 'asyncsgd[torch]'") from error
    count("batch_size", batch_size)
    count("workers", workers)
    if not isinstance(model, nn.Module):
        raise BadParameter("model", type(model).__name__, "is no torch module", "pass an nn.Module")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise BadParameter("model", type(model).__name__, "has nothing to train", "give it parameters")
    if next(model.buffers(), None) is not None:
        fix = "use a layer without running statistics, such as GroupNorm or LayerNorm"
        raise BadParameter("model", type(model).__name__, "has buffers, which a flat vector does not carry yet", fix)
    datasets = list(data) if isinstance(data, list | tuple) else [data]
    if isinstance(data, list | tuple):
        workers = len(datasets)
    if not datasets:
        raise BadParameter("data", data, "is empty", "pass a dataset, or one per worker")
    for place, dataset in enumerate(datasets):
        if not hasattr(dataset, "__len__") or len(dataset) == 0:
            raise BadParameter(f"data[{place}]", type(dataset).__name__, "has no rows", "pass datasets with a length")
    return TorchTask(model, loss, datasets, batch_size, test, device, workers)
