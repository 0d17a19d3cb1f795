"""What a torch task minimises: the user's loss or step, with metrics and numbers derived from them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from asyncsgd.core.errors import BadParameter


@dataclass(frozen=True, eq=False)
class Objective:
    """A scalar of a model and a batch: ``step(model, batch)``, or ``loss(model(inputs), targets)``."""

    name: str
    """"loss" or "step": the argument that the user passed."""
    function: Callable[..., Any]
    metrics: Mapping[str, Callable[..., Any]]
    """With a loss: functions of (outputs, targets). With a step: functions of (model, batch). Means over rows."""
    derived: Mapping[str, Callable[[dict[str, float]], float]]
    """Functions of all metrics at once, after these were averaged."""

    def on(self, device: torch.device) -> Objective:
        """Return the objective with its own tensors, such as the weights of classes, on the device."""
        if not isinstance(self.function, nn.Module):
            return self
        return replace(self, function=deepcopy(self.function).to(device))

    def on_cpu(self) -> Objective:
        """Return the objective with its own tensors on the CPU: the server, which may have no GPU, hands them out."""
        if not isinstance(self.function, nn.Module):
            return self
        tensors = (*self.function.parameters(), *self.function.buffers())
        return self.on(torch.device("cpu")) if any(tensor.device.type != "cpu" for tensor in tensors) else self

    def value(self, model: Any, batch: Any) -> Any:
        """Return the scalar to minimise; raise unless a gradient can be computed from it."""
        if self.name == "step":
            result = self.function(model, batch)
        else:
            inputs, targets = pair("data: a batch", batch)
            result = self.function(model(inputs), targets)
        self._check(result)
        if not result.requires_grad:
            fix = "compute it from the model's outputs, without detach() or no_grad()"
            raise BadParameter(self.name, float(result), "does not depend on the parameters", fix)
        return result

    def run(self, model: Any, batch: Any) -> None:
        """Run the model on a batch for what it does to its buffers."""
        if self.name == "step":
            self.function(model, batch)
        else:
            model(pair("data: a batch", batch)[0])

    def measure(self, model: Any, batch: Any) -> dict[str, float]:
        """Return the loss and the metrics of a batch."""
        if self.name == "step":
            arguments: tuple[Any, Any] = (model, batch)
            value, extra = self.function(model, batch), {}
        else:
            inputs, targets = pair("test: a batch", batch)
            outputs = model(inputs)
            arguments = (outputs, targets)
            value, extra = self.function(outputs, targets), accuracy(outputs, targets)
        self._check(value)
        own = {name: float(metric(*arguments)) for name, metric in self.metrics.items()}
        return {"loss": float(value), **extra, **own}

    def complete(self, values: dict[str, float]) -> dict[str, float]:
        """Return the metrics with the derived numbers. One that overflows, such as e^1000, is infinite."""
        result = dict(values)
        for name, function in self.derived.items():
            try:
                result[name] = float(function(dict(values)))
            except OverflowError:
                result[name] = math.inf
        return result

    def _check(self, value: Any) -> None:
        """Raise unless the loss is one number."""
        if not isinstance(value, torch.Tensor):
            shown = type(value).__name__
            fix = "return the tensor, without .item()"
            if hasattr(value, "loss"):
                fix = "return its attribute .loss"
            raise BadParameter(self.name, shown, "is what it returned, not a tensor", fix)
        if value.ndim and value.numel() != 1:
            shown = f"a tensor of shape {tuple(value.shape)}"
            fix = "use reduction='mean'" if self.name == "loss" else "return the mean over the rows of the batch"
            raise BadParameter(self.name, shown, "is what it returned, not one number", fix)


def pair(name: str, item: Any) -> tuple[Any, Any]:
    """Return (inputs, targets); raise if this is anything else."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        shown = f"{type(item).__name__} of {len(item)}" if hasattr(item, "__len__") else type(item).__name__
        fix = "let the data be (input, target) pairs, either of them a nest of tensors, or pass step in place of loss"
        raise BadParameter(name, shown, "is not a pair (input, target)", fix)
    return item[0], item[1]


def accuracy(outputs: Any, targets: Any) -> dict[str, float]:
    """Return the accuracy for classes: outputs of shape [rows, classes, ...], integer targets [rows, ...]."""
    tensors = all(isinstance(value, torch.Tensor) for value in (outputs, targets))
    if not tensors or outputs.ndim < 2 or outputs.shape[1] < 2 or targets.is_floating_point():
        return {}
    if outputs.shape[:1] + outputs.shape[2:] != targets.shape:
        return {}
    return {"accuracy": float((outputs.argmax(dim=1) == targets).double().mean())}
