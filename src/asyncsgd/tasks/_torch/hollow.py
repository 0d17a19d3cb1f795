"""A module without the values of its trained parameters: a run stores those once, beside the pickled task."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import torch
from torch import nn

from asyncsgd.core.vectors import Vector
from asyncsgd.tasks._torch.model import trained


def hollow(module: nn.Module) -> nn.Module | None:
    """Return a copy whose trained parameters have shapes but no values; None if that would lose something.

    Each of them points at a single number. Everything else (buffers, frozen parameters) is copied. Parameters of
    other kinds or layouts, or with memory that another tensor uses too, cannot be restored from values alone.
    """
    parameters = trained(module)
    others = [
        tensor for tensor in (*module.parameters(), *module.buffers()) if all(tensor is not p for p in parameters)
    ]
    places = [tensor.untyped_storage().data_ptr() for tensor in (*parameters, *others) if tensor.numel()]
    plain = all(type(p) is nn.Parameter and p.is_contiguous() for p in parameters)
    if not plain or len(set(places)) < len(places):
        return None
    empty: dict[int, Any] = {}
    for parameter in parameters:
        stand_in = nn.Parameter(torch.zeros((), dtype=parameter.dtype).expand(parameter.shape))
        stand_in.__dict__.update(parameter.__dict__)
        empty[id(parameter)] = stand_in
    stand_ins = list(empty.values())
    try:
        copy = deepcopy(module, empty)
    except Exception:  # a module may copy itself in any way
        return None
    found = trained(copy)
    same = len(found) == len(stand_ins) and all(a is b for a, b in zip(found, stand_ins, strict=True))
    return copy if same else None


def fill(module: nn.Module, x: Vector) -> None:
    """Give the trained parameters of a `hollow` module these values; each gets memory of its own."""
    parameters = trained(module)
    parts = torch.from_numpy(x).split([parameter.numel() for parameter in parameters])
    for parameter, part in zip(parameters, parts, strict=True):
        parameter.data = part.clone().view(parameter.shape)
