"""A NumPy vector as a tensor over the same memory."""

from __future__ import annotations

import ctypes
from typing import Any

from asyncsgd.core.events import Vector


def address(vector: Vector) -> int:
    """Where its first number lies."""
    place: int = vector.__array_interface__["data"][0]
    return place


def tensor_over(vector: Vector) -> Any:
    """A tensor on the memory of a vector, which is not kept alive by it, and not protected if it is read-only.

    By address, because ``torch.from_numpy`` warns of read-only vectors, and those are what a server hands out.
    """
    import torch

    memory = (ctypes.c_char * vector.nbytes).from_address(address(vector))
    return torch.frombuffer(memory, dtype=getattr(torch, vector.dtype.name))
