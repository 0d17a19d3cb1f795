"""Devices: from a name to a device, vectors on their way there and back, and a device's random numbers.

Nothing here has run on a GPU: the tests use the CPU, ``meta``, and a fake that treats the CPU's memory as a device's.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.vectors import Vector
from asyncsgd.torch_optimizers import tensor_over

EXAMPLES = 'pass "cpu", "cuda", "cuda:1" or "mps"'


def resolve(name: Any) -> torch.device:
    """Return the device of this name; raise if this process has none.

    >>> resolve("cpu")
    device(type='cpu')
    >>> resolve("gpu")
    Traceback (most recent call last):
        ...
    asyncsgd.core.errors.BadParameter: device = 'gpu' is not the name of a device; pass "cpu", "cuda", "cuda:1" or "mps"
    """
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError):
        raise BadParameter("device", name, "is not the name of a device", EXAMPLES) from None
    if device.type in ("cpu", "meta"):
        return device
    module = torch.backends.mps if device.type == "mps" else getattr(torch, device.type, None)
    if module is None or not hasattr(module, "is_available"):
        raise BadParameter("device", name, "is of a kind that PyTorch does not have here", EXAMPLES)
    if not module.is_available():
        why = "is not available: PyTorch finds no such device here"
        if device.type == "cuda" and torch.version.cuda is None and torch.version.hip is None:
            why = "is not available: this PyTorch was built without CUDA"
        raise BadParameter("device", name, why, 'pass "cpu", or start the worker on a machine that has one')
    number = module.device_count() if hasattr(module, "device_count") else 1
    if device.index is not None and device.index >= number:
        shown = f"{number} here" + (", and CUDA_VISIBLE_DEVICES may hide others" if device.type == "cuda" else "")
        fix = f'pass "{device.type}:0"' + (f' to "{device.type}:{number - 1}"' if number > 1 else "")
        raise BadParameter("device", name, f"does not exist: there are {shown}", fix)
    return device


def has_accelerator() -> bool:
    """Return whether this machine has a GPU that PyTorch can use."""
    return bool(torch.cuda.is_available() or torch.backends.mps.is_available())


def cpu_computes_in(precision: str) -> bool:
    """Return whether this CPU has instructions for this precision; without them autocast converts back and forth."""
    names = {
        "bfloat16": ("_is_avx512_bf16_supported", "_is_amx_tile_supported"),
        "float16": ("_is_amx_fp16_supported",),
    }
    return any(getattr(torch.cpu, name, lambda: False)() for name in names[precision])


class Staging:
    """Memory through which parameters reach a device and gradients leave it: one copy each way per update.

    On the CPU there is nothing to copy. Elsewhere one vector in the host's memory, page-locked for CUDA, serves both
    directions: a job needs it for the parameters only at its start, and for the gradient only at its end.

    Args:
        device: The device to compute on.
        length: The number of parameters.
        dtype: Their dtype.
        apart: Whether the device has memory of its own; by default, whether it is not the CPU. Tests pass True.
    """

    def __init__(self, device: torch.device, length: int, dtype: torch.dtype, *, apart: bool | None = None) -> None:
        self.device = device
        self.apart = device.type != "cpu" if apart is None else apart
        self.host = torch.empty(length, dtype=dtype, pin_memory=device.type == "cuda")
        self.host_numpy: Vector = self.host.numpy()
        self.flat = torch.empty_like(self.host, device=device) if self.apart else self.host
        """The parameters on the device."""
        self.gradient = torch.empty_like(self.flat) if self.apart else None
        """Where a job puts the gradient; None on the CPU, where it goes to its destination at once."""

    def send(self, x: Vector) -> None:
        """Copy the parameters to the device."""
        np.copyto(self.host_numpy, x)
        if self.apart:
            self.flat.copy_(self.host, non_blocking=True)  # later work on the device waits for it

    def fetch(self, out: Vector) -> None:
        """Copy the gradient off the device, if it is on one."""
        if self.gradient is None:
            return
        if self.device.type == "meta":
            fix = 'compute on "cpu" or a GPU; use "meta" to check shapes only'
            raise BadParameter("device", "meta", "has no numbers to return", fix)
        if self.host.is_pinned():
            self.host.copy_(self.gradient)  # blocks until the numbers are there
            np.copyto(out, self.host_numpy)
        else:
            tensor_over(out).copy_(self.gradient)


def moved(value: Any, device: torch.device) -> Any:
    """Return a batch, a nest of tensors, on the device. What is not a tensor stays as it is."""
    if device.type == "cpu":
        return value
    if isinstance(value, torch.Tensor):
        if device.type == "cuda" and value.device.type == "cpu":
            return value.pin_memory().to(device, non_blocking=True)
        return value.to(device)
    if hasattr(value, "to"):  # such as the batches of a tokenizer
        return value.to(device)
    if isinstance(value, Mapping):
        return {key: moved(item, device) for key, item in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return type(value)(*(moved(item, device) for item in value))
    if isinstance(value, list | tuple):
        return type(value)(moved(item, device) for item in value)
    return value


def generators(device: torch.device) -> list[torch.Generator]:
    """Return the random generators that code on this device draws from: the CPU's, and the device's own."""
    found = [torch.default_generator]
    if device.type == "mps":
        found.append(torch.mps._get_default_mps_generator())
    elif device.type not in ("cpu", "meta"):
        module = torch.get_device_module(device)
        index = module.current_device() if device.index is None else device.index
        found.append(module.default_generators[index])
    return found
