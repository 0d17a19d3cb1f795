"""The gradient of a job: micro-batches that add up, and half precision."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from asyncsgd.tasks._torch.devices import generators, moved
from asyncsgd.tasks._torch.model import FlatModel
from asyncsgd.tasks._torch.objective import Objective

LARGEST_SCALE, SMALLEST_SCALE, SHRINK = 2.0**16, 2.0**-16, 0.25


@dataclass(frozen=True)
class Compute:
    """How a worker computes a job."""

    accumulate: int = 1
    """Micro-batches per job."""
    precision: str = "float32"
    compile: bool = False
    loaders: int = 0
    """Threads that read rows of a Dataset."""


def write_gradient(
    model: FlatModel,
    objective: Objective,
    micro_batches: Iterable[tuple[float, Any]],
    precision: str,
    destination: Sequence[Any],
) -> None:
    """Write Σ share · gradient over micro-batches of the form (share of the rows, batch).

    Every micro-batch starts from the same buffers. A loss that is a mean over rows so gives the gradient of the whole
    batch up to rounding, except through layers that mix rows, such as BatchNorm, which see one micro-batch each.
    """
    scale = LARGEST_SCALE
    for place, (share, batch) in enumerate(micro_batches):
        here = moved(batch, model.device)
        if precision == "float16":
            gradient, scale = _scaled_gradient(model, objective, here, scale)
        else:
            gradient = _gradient(model, objective, here, precision)
        if share == 1.0:
            torch._foreach_copy_(destination, gradient)
        elif place == 0:
            torch._foreach_copy_(destination, torch._foreach_mul(gradient, share))
        else:
            torch._foreach_add_(destination, gradient, alpha=share)


def _gradient(model: FlatModel, objective: Objective, batch: Any, precision: str, scale: float = 1.0) -> list[Any]:
    """Return the gradient by each parameter, times ``scale``; 0 if the loss does not depend on a parameter."""
    model.start_job()
    with torch.enable_grad():
        if precision == "float32":
            value = objective.value(model.called, batch)
        else:
            with torch.autocast(model.device.type, getattr(torch, precision)):
                value = objective.value(model.called, batch)
        found = torch.autograd.grad(
            value if scale == 1.0 else value.float() * scale,
            model.parameters,
            allow_unused=True,
            materialize_grads=True,
        )
    return [g.to_dense() if g.layout is not torch.strided else g for g in found]


def _scaled_gradient(model: FlatModel, objective: Objective, batch: Any, scale: float) -> tuple[list[Any], float]:
    """Return the gradient in float16 and the scale that it was computed with.

    float16 has no numbers below 6e-8, so the loss is multiplied by a power of two, and the gradient is divided by it. A
    scale that makes the gradient overflow is reduced, and the same micro-batch is computed again from the same random
    numbers. Every job starts with the largest scale, so that its gradient depends on nothing before it. A gradient that
    is not finite at the smallest scale is returned as it is: the server rejects it.
    """
    drawn = generators(model.device)
    states = [generator.get_state() for generator in drawn]
    while True:
        gradient = _gradient(model, objective, batch, "float16", scale)
        finite = bool(torch.stack([torch.isfinite(part).all() for part in gradient]).all())
        if finite or scale * SHRINK < SMALLEST_SCALE:
            return torch._foreach_mul(gradient, 1 / scale), scale
        scale *= SHRINK
        for generator, state in zip(drawn, states, strict=True):
            generator.set_state(state)
