"""Codes and workers with one bug each, put in on purpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from asyncsgd.core import compression as module
from asyncsgd.core import worker
from asyncsgd.core.compression import BFloat16, Blocks, Compression, Int4, Message, TopK
from asyncsgd.core.vectors import Vector
from asyncsgd.core.worker import WorkerState

Patch = pytest.MonkeyPatch


@dataclass(frozen=True)
class Bug:
    """``plant`` breaks the code; ``check`` names the check that sees it, with the code of this name."""

    plant: Callable[[Patch], None]
    check: str
    code: str


def ties_from_the_end(patch: Patch) -> None:
    """Among equal numbers the last ones are sent."""

    def argsort(values: Vector, kind: str) -> Any:
        return len(values) - 1 - np.argsort(values[::-1], kind="stable")

    patch.setattr(module, "np", _Numpy(argsort=argsort))


def scale_by_128(patch: Patch) -> None:
    """The scale of a block is its largest number / 128."""
    quantise = Blocks.quantise

    def other(self: Blocks, vector: Vector) -> Any:
        scales, units = quantise(self, vector)
        return scales * np.float32(127 / 128), units

    patch.setattr(Blocks, "quantise", other)


def cut_off(patch: Patch) -> None:
    """Numbers are cut off instead of rounded."""
    patch.setattr(module, "np", _Numpy(rint=np.trunc))


def upper_half_first(patch: Patch) -> None:
    """The first of two numbers is in the upper half of a byte."""
    encode = Int4.encode

    def swapped(self: Int4, vector: Vector) -> Message:
        message = encode(self, vector).copy()
        cut = 4 * self.scales(len(vector))
        message[cut:] = (message[cut:] >> 4) | (message[cut:] << 4)
        return message

    patch.setattr(Int4, "encode", swapped)


def one_number_too_few(patch: Patch) -> None:
    """The number of numbers to send is rounded down."""
    patch.setattr(TopK, "kept", lambda self, length: max(1, int(self.fraction * length)) if length else 0)


def forever_infinite(patch: Patch) -> None:
    """A sum that overflows stays in the memory as infinity."""

    def add(update: Vector, decay: float, left: Vector, out: Vector) -> None:
        with np.errstate(over="ignore"):
            out[:] = update + decay * left

    patch.setattr(worker, "_add", add)


def advanced_by_a_dropped_job(patch: Patch) -> None:
    """The memory advances though the server dropped the update."""
    settle = WorkerState.settle
    patch.setattr(WorkerState, "settle", lambda self, used: settle(self, True))


def never_advanced(patch: Patch) -> None:
    """What is left over is forgotten."""
    patch.setattr(WorkerState, "settle", lambda self, used: None)


def advanced_without_a_job(patch: Patch) -> None:
    """A verdict counts twice if no job came in between."""
    settle = WorkerState.settle

    def again(self: WorkerState, used: bool) -> None:
        message = self._message
        settle(self, used)
        self._message = message

    patch.setattr(WorkerState, "settle", again)


def decay_forgotten(patch: Patch) -> None:
    """What is left over does not fade."""
    add = worker._add
    patch.setattr(worker, "_add", lambda update, decay, left, out: add(update, 1.0, left, out))


def any_length(patch: Patch) -> None:
    """The length of a message is not compared."""
    patch.setattr(Compression, "check_size", lambda self, message, n, dtype: None)


def any_number(patch: Patch) -> None:
    """Infinity is written to the model."""

    def decode(self: BFloat16, message: Message, out: Vector) -> None:
        self.check_size(message, len(out), out.dtype)
        out[:] = (message.view(np.uint16).astype(np.uint32) << 16).view(np.float32)

    patch.setattr(BFloat16, "decode", decode)


def any_exponent(patch: Patch) -> None:
    """A scale that makes numbers infinite is taken."""
    patch.setattr(module, "LEAST_EXPONENT", -128)


def any_place(patch: Patch) -> None:
    """A place may lie beyond the end of its piece."""
    patch.setattr(TopK, "pieces", lambda self, n: [(0, 70_000, self.kept(n))])


def written_before_checked(patch: Patch) -> None:
    """The receiver's vector is cleared before the message is read."""
    decode = TopK.decode

    def early(self: TopK, message: Message, out: Vector) -> None:
        out[:] = 0
        decode(self, message, out)

    patch.setattr(TopK, "decode", early)


class _Numpy:
    """NumPy with some functions replaced."""

    def __init__(self, **others: Any) -> None:
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)


BUGS = {
    "ties_from_the_end": Bug(ties_from_the_end, "twin", "top_k of a third"),
    "scale_by_128": Bug(scale_by_128, "twin", "int8"),
    "cut_off": Bug(cut_off, "twin", "int4"),
    "upper_half_first": Bug(upper_half_first, "twin", "int4"),
    "one_number_too_few": Bug(one_number_too_few, "(twin|size)", "top_k"),
    "forever_infinite": Bug(forever_infinite, "finite", "float16"),
    "advanced_by_a_dropped_job": Bug(advanced_by_a_dropped_job, "sum", "int8"),
    "never_advanced": Bug(never_advanced, "sum", "top_k"),
    "advanced_without_a_job": Bug(advanced_without_a_job, "memory", "bfloat16"),
    "decay_forgotten": Bug(decay_forgotten, "memory", "top_k of a third"),
    "any_length": Bug(any_length, "hostile", "int8"),
    "any_number": Bug(any_number, "hostile", "bfloat16"),
    "any_exponent": Bug(any_exponent, "hostile", "float16"),
    "any_place": Bug(any_place, "hostile", "top_k"),
    "written_before_checked": Bug(written_before_checked, "hostile", "top_k"),
}
