"""How an update is encoded on its way to the server, as plain data; the engines do the encoding.

>>> import asyncsgd as asgd
>>> asgd.async_sgd(0.1).compressed(asgd.compression.bfloat16()).compression
Compression(code='bfloat16')
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import nearest

CODES = ("float16", "bfloat16")


@dataclass(frozen=True)
class Compression:
    """How an update is encoded. The worker adds the rounding error to its next update (error feedback)."""

    code: str

    def __post_init__(self) -> None:
        if self.code not in CODES:
            raise BadParameter("up", self.code, "is not a code", nearest(self.code, CODES))


def float16() -> Compression:
    """Send two bytes per number: 11 significant bits, scaled by a power of two so that nothing overflows.

    >>> float16().code
    'float16'
    """
    return Compression("float16")


def bfloat16() -> Compression:
    """Send two bytes per number: 8 significant bits and the range of float32.

    >>> bfloat16().code
    'bfloat16'
    """
    return Compression("bfloat16")


def as_compression(up: Any) -> Compression:
    """Return the compression that a name stands for, or the compression itself."""
    return up if isinstance(up, Compression) else Compression(up)
