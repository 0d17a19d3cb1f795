"""A PyTorch model as a task: from one flat vector to one flat gradient."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from copy import deepcopy
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks._torch.data import Rows, draw_rows, mixed_batch
from asyncsgd.tasks.base import check_job

if TYPE_CHECKING:
    from asyncsgd.tasks._torch.model import FlatModel

EVALUATED_AT_ONCE = 256
"""Rows of a batch in `TorchTask.evaluate` and in calibration."""


class TorchTask:
    """Mini-batch gradients of a model's loss, on data that all workers share or on a part per worker.

    Everything depends on (x, worker, seed) alone: rows are drawn with replacement from the job's seed, torch's own
    generator is set from it too, so that dropout can be repeated, and buffers are restored before every job. (To the
    bit it depends on the number of torch's threads too, and on a GPU on ``torch.use_deterministic_algorithms``.) The
    given model is copied, never changed. `notes` describes its buffers.

    Each process sets up the model on its device when it first uses it.
    """

    def __init__(
        self,
        module: Any,
        loss: Callable[[Any, Any], Any],
        rows: Sequence[Rows],
        *,
        batch_size: int,
        workers: int | None,
        test: Rows | None,
        metrics: Mapping[str, Callable[[Any, Any], Any]],
        calibration: int,
    ) -> None:
        from asyncsgd.tasks._torch.model import copied, notes, trained

        self.workers = workers
        self.heterogeneous = len(rows) > 1
        self.device = "cpu"
        """The device that torch computes on; set it before the task is used."""
        self._module = copied(module).cpu()
        self._loss, self._rows, self._test, self._metrics = loss, list(rows), test, dict(metrics)
        self._batch_size, self._calibration = batch_size, calibration
        self._dtype = trained(self._module)[0].detach().numpy().dtype
        self.dimension = sum(parameter.numel() for parameter in trained(self._module))
        """The number of trained parameters."""
        self._plain = all(part.plain for part in (*self._rows, *([] if test is None else [test])))
        self.notes = notes(self._module, min(calibration, sum(map(len, self._rows))))
        """Sentences about the model's buffers and modes."""
        self._used: tuple[int, FlatModel, Any] | None = None

    def __repr__(self) -> str:
        kind, data = type(self._module).__name__, "own" if self.heterogeneous else "shared"
        workers = "any number of" if self.workers is None else self.workers
        return f"<TorchTask: {kind} of {self.dimension:,} parameters, {workers} workers, {data} data>"

    def __getstate__(self) -> dict[str, Any]:
        seen: dict[int, Any] = {}
        rows = [part.compact(seen) for part in self._rows]
        test = None if self._test is None else self._test.compact(seen)
        return {**self.__dict__, "_rows": rows, "_test": test, "_used": None}

    def _ready(self) -> tuple[FlatModel, Any]:
        """Return (the model on its device, the loss there) of this process; a forked process makes its own."""
        process = os.getpid()
        if self._used is None or self._used[0] != process:
            import torch

            from asyncsgd.tasks._torch.model import FlatModel

            device = torch.device(self.device)
            loss = deepcopy(self._loss).to(device) if isinstance(self._loss, torch.nn.Module) else self._loss
            self._used = (process, FlatModel(self._module, device), loss)
        return self._used[1], self._used[2]

    def initial(self) -> Vector:
        """Return the parameters of the given model."""
        from asyncsgd.tasks._torch.model import trained

        start: Vector = np.concatenate([p.detach().numpy().reshape(-1) for p in trained(self._module)])
        return start

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """Return the gradient of the mean loss of a mini-batch of this worker's data."""
        out = np.empty(self.dimension, self._dtype)
        self.update_into(x, worker, seed, out)
        return out

    def update_into(self, x: Vector, worker: int, seed: int, out: Vector) -> None:
        """Write into ``out`` what `update` returns.

        If x starts at a multiple of 64 bytes it may be used in place, so it must not change during the call.
        """
        import torch

        check_job(worker, seed, self.workers)
        seed = int(seed)  # NumPy's integers would overflow
        model, _ = self._ready()
        parts = model.views(out)
        if not out.flags.writeable:
            raise BadParameter("out", "a read-only vector", "cannot be written into", "pass one that is writeable")
        rows = self._rows[worker if self.heterogeneous else 0]
        model.load(x)
        torch._foreach_copy_(parts, self._gradient(rows, seed))

    def _gradient(self, rows: Rows, seed: int) -> Sequence[Any]:
        model, loss = self._ready()
        chosen = draw_rows(seed, self._batch_size, len(rows))
        with self._seeded(seed, rows.plain):
            inputs, targets = self._fetch(rows, chosen)
            model.start_job()
            return model.gradient(loss, inputs, targets)

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return the mean loss and metrics on the held-out data, or else the mean over workers on their own data."""
        import torch

        model, _ = self._ready()
        parts = self._rows if self._test is None else [self._test]
        with torch.no_grad(), self._seeded(0, self._plain):
            model.load(x)
            model.start_evaluation(self._calibration_inputs)
            values = [self._measure(part) for part in parts]
        return {name: sum(value[name] for value in values) / len(values) for name in values[0]}

    def _measure(self, rows: Rows) -> dict[str, float]:
        from asyncsgd.tasks._torch.model import check_scalar

        model, loss = self._ready()
        totals: dict[str, float] = {}
        for begin in range(0, len(rows), EVALUATED_AT_ONCE):
            chosen = np.arange(begin, min(begin + EVALUATED_AT_ONCE, len(rows)))
            inputs, targets = self._fetch(rows, chosen)
            outputs = model.module(inputs)
            value = loss(outputs, targets)
            check_scalar(value)
            values = {"loss": float(value), **_accuracy(outputs, targets)}
            values |= {name: float(metric(outputs, targets)) for name, metric in self._metrics.items()}
            for name, value in values.items():
                totals[name] = totals.get(name, 0.0) + value * len(chosen)
        return {name: total / len(rows) for name, total in totals.items()}

    def module(self, x: Vector) -> Any:
        """Return a new copy of the model with parameters x and calibrated buffers, in eval mode on the CPU."""
        import torch

        from asyncsgd.tasks._torch.model import trained

        copy, (model, _) = deepcopy(self._module), self._ready()
        with torch.no_grad(), self._seeded(0, self._plain):
            model.load(x, copy=True)
            model.start_evaluation(self._calibration_inputs)
            torch._foreach_copy_(trained(copy), model.parameters)
            for mine, computed in zip(copy.buffers(), model.module.buffers(), strict=True):
                mine.copy_(computed)
        return copy.eval()

    def _calibration_inputs(self) -> Iterator[Any]:
        """Yield batches of inputs spread evenly over the data of all workers, the same ones each time."""
        each = -(-self._calibration // len(self._rows))
        places = [
            (part, int(row))
            for part, rows in enumerate(self._rows)
            for row in np.linspace(0, len(rows) - 1, min(each, len(rows))).astype(np.int64)
        ]
        order = np.random.Generator(np.random.Philox(key=derive(0))).permutation(len(places))
        for batch in np.array_split(order, -(-len(places) // EVALUATED_AT_ONCE)):
            inputs, _ = mixed_batch(self._rows, [places[place] for place in batch])
            yield _moved(inputs, self._ready()[0].device)

    def _fetch(self, rows: Rows, chosen: Any) -> tuple[Any, Any]:
        inputs, targets = rows.batch(chosen)
        device = self._ready()[0].device
        return (inputs, targets) if device.type == "cpu" else (_moved(inputs, device), _moved(targets, device))

    def _seeded(self, seed: int, plain: bool) -> AbstractContextManager[None]:
        from asyncsgd.tasks._torch.model import seeded

        return seeded(seed, self._ready()[0].device, everything=not plain)


def _accuracy(outputs: Any, targets: Any) -> dict[str, float]:
    """Return the accuracy for classes: outputs of shape [rows, classes, ...], integer targets [rows, ...]."""
    tensors = all(hasattr(value, "is_floating_point") for value in (outputs, targets))
    if not tensors or outputs.ndim < 2 or outputs.shape[1] < 2 or targets.is_floating_point():
        return {}
    if outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        return {}
    return {"accuracy": float((outputs.argmax(dim=1) == targets).double().mean())}


def _moved(value: Any, device: Any) -> Any:
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, dict):
        return {key: _moved(item, device) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_moved(item, device) for item in value]
    return value
