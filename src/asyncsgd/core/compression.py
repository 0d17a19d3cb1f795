"""How a vector is encoded on its way between the server and a worker: values, and their codes in NumPy.

A message has a length that follows from the vector's, so the receiver refuses any other length before it allocates
anything. `asyncsgd.compiled.compression` has the same codes in compiled code, with the same bytes; a test compares the
two. Every code is deterministic, so that a replay repeats it: numbers are rounded to nearest, ties to even, and among
equal numbers `TopK` takes the first ones.

>>> import asyncsgd as asgd
>>> asgd.async_sgd(0.1).compressed("int8", down="bfloat16").up
Int8(block=256)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncsgd.core.errors import BadMessage, BadParameter
from asyncsgd.core.validate import count, is_number, nearest, plain
from asyncsgd.core.vectors import Vector

Message = NDArray[np.uint8]
LARGEST = np.float32(3e38)
"""Larger numbers are sent as this one, so that rounding up never gives infinity."""
LEAST_EXPONENT, MOST_EXPONENT = -112, 120
"""The powers of two by which `Float16` scales: its largest number, 65504, divided by 2^-112 is still a float32."""
CHUNK = 4096
"""`TopK` chooses the largest numbers of each piece of this length, so that an index fits into two bytes."""


@dataclass(frozen=True)
class Compression(ABC):
    """How a vector is encoded. Everything is a function of the vector: what rounding left over is the sender's matter.

    Error feedback is in `asyncsgd.core.worker`: the sender adds what was left over, times `decay`, to its next vector.

    See docs/guides/far-apart.md for what each code costs and loses.
    """

    decay = 1.0  # without a type, or else it would come first among the options of `TopK`
    for_models: ClassVar[bool] = True
    """Whether a model may be sent in this code: all of its numbers are needed, and nothing makes up for errors."""

    @property
    def name(self) -> str:
        """The name under which `asyncsgd.Method.compressed` knows the code."""
        return next((name for name, kind in NAMES.items() if kind is type(self)), type(self).__name__)

    @abstractmethod
    def size(self, n: int, dtype: DTypeLike) -> int:
        """Return the bytes of a message with n numbers of this dtype."""

    @abstractmethod
    def encode(self, vector: Vector) -> Message:
        """Return the message."""

    @abstractmethod
    def decode(self, message: Message, out: Vector) -> None:
        """Write the numbers of a message to ``out``. Raise `BadMessage`, with ``out`` unchanged, if it is not one."""

    def check_size(self, message: Any, n: int, dtype: DTypeLike) -> None:
        """Raise `BadMessage` unless the message has the length of one with n numbers."""
        array = isinstance(message, np.ndarray)
        if not array or message.dtype != np.uint8 or message.ndim != 1 or not message.flags.c_contiguous:
            shown = f"{message.dtype} of shape {message.shape}" if array else type(message).__name__
            raise BadMessage(f"a message in {self.name} is {shown}, not a contiguous vector of uint8; send bytes")
        found, wanted = len(message), self.size(n, dtype)
        if found != wanted:
            fix = "compress with the same options as the server"
            raise BadMessage(f"a message in {self.name} for {n} numbers has {found} bytes, not {wanted}; {fix}")


@dataclass(frozen=True)
class Float16(Compression):
    """One byte for the exponent of a power of two that scales all numbers, then two bytes per number."""

    def size(self, n: int, dtype: DTypeLike) -> int:
        return 1 + 2 * n

    def encode(self, vector: Vector) -> Message:
        with np.errstate(over="ignore"):
            exponent = scale_exponent(int(np.abs(vector).astype(np.float32).max().view(np.uint32)))
            scaled = (vector * vector.dtype.type(2.0**exponent)).astype(np.float32)
        halves = np.clip(scaled, -65504, 65504).astype(np.float16)
        halves[np.abs(scaled) < 2.0**-14] = 0  # a subnormal has few bits: error feedback makes up for it
        return np.concatenate([np.array([exponent], np.int8).view(np.uint8), halves.view(np.uint8)])

    def decode(self, message: Message, out: Vector) -> None:
        self.check_size(message, len(out), out.dtype)
        exponent, halves = int(message[:1].view(np.int8)[0]), message[1:].copy()
        if not LEAST_EXPONENT <= exponent <= MOST_EXPONENT or ((halves.view(np.uint16) & 0x7C00) == 0x7C00).any():
            raise BadMessage("a message in float16 holds NaN, infinity or a wrong exponent; send finite numbers")
        out[:] = halves.view(np.float16).astype(out.dtype) * out.dtype.type(2.0**-exponent)


@dataclass(frozen=True)
class BFloat16(Compression):
    """Two bytes per number: the first half of a float32."""

    def size(self, n: int, dtype: DTypeLike) -> int:
        return 2 * n

    def encode(self, vector: Vector) -> Message:
        with np.errstate(over="ignore"):
            bits = vector.astype(np.float32).view(np.uint32)
        magnitude = bits & np.uint32(0x7FFFFFFF)
        short = np.minimum((magnitude + 0x7FFF + ((magnitude >> 16) & 1)) >> 16, 0x7F7F)
        halves: NDArray[np.uint16] = (((bits >> 16) & 0x8000) | short).astype(np.uint16)
        return halves.view(np.uint8)

    def decode(self, message: Message, out: Vector) -> None:
        self.check_size(message, len(out), out.dtype)
        halves = message.view(np.uint16)
        if ((halves & 0x7F80) == 0x7F80).any():
            raise BadMessage("a message in bfloat16 holds NaN or infinity; send finite numbers")
        out[:] = (halves.astype(np.uint32) << 16).view(np.float32)


@dataclass(frozen=True)
class Blocks(Compression):
    """A float32 scale for each block of numbers, then the numbers as integers of -most..most times that scale."""

    block: int = 256
    most: ClassVar[int] = 127

    def __post_init__(self) -> None:
        plain(self)
        count("block", self.block)

    def scales(self, n: int) -> int:
        """Return the number of blocks."""
        return -(-n // self.block)

    def quantise(self, vector: Vector) -> tuple[NDArray[np.float32], NDArray[np.int8]]:
        """Return the scale of every block, and every number in units of its scale."""
        with np.errstate(over="ignore"):
            values = np.clip(vector.astype(np.float32), -LARGEST, LARGEST)
        scales = np.zeros(self.scales(len(values)), np.float32)
        codes = np.zeros(len(values), np.int8)
        for b in range(len(scales)):
            some = values[b * self.block : (b + 1) * self.block]
            scales[b] = np.abs(some).max() / np.float32(self.most)
            if scales[b] > 0:
                codes[b * self.block : (b + 1) * self.block] = np.clip(np.rint(some / scales[b]), -self.most, self.most)
        return scales, codes

    def in_range(self, scales: NDArray[np.float32]) -> bool:
        """Return whether all scales are such that no number overflows. As integers, negative numbers and NaN are large.

        Comparing integers also makes no temporary and, unlike comparing NaN, no warning.
        """
        return bool(scales.view(np.uint32).max() <= (LARGEST / np.float32(self.most)).view(np.uint32))

    def expand(self, scales: NDArray[np.float32], codes: NDArray[np.int8], out: Vector) -> None:
        """Write the numbers to ``out``, or raise."""
        if not self.in_range(scales):
            raise BadMessage(f"a message in {self.name} has a scale that is not in range; send finite numbers")
        out[:] = codes.astype(np.float32) * np.repeat(scales, self.block)[: len(out)]


@dataclass(frozen=True)
class Int8(Blocks):
    """One byte per number, and a scale of four bytes per block: the largest of the block is 127 units."""

    def size(self, n: int, dtype: DTypeLike) -> int:
        return 4 * self.scales(n) + n

    def encode(self, vector: Vector) -> Message:
        scales, codes = self.quantise(vector)
        return np.concatenate([scales.view(np.uint8), codes.view(np.uint8)])

    def decode(self, message: Message, out: Vector) -> None:
        self.check_size(message, len(out), out.dtype)
        cut = 4 * self.scales(len(out))
        codes = message[cut:].view(np.int8)
        if (codes == -128).any():
            raise BadMessage("a message in int8 holds -128; send units of -127..127")
        self.expand(message[:cut].copy().view(np.float32), codes, out)


@dataclass(frozen=True)
class Int4(Blocks):
    """Half a byte per number, and a scale of four bytes per block: the largest of the block is 7 units.

    A half holds the units plus 8. The first of two numbers is in the lower half.
    """

    block: int = 64
    most: ClassVar[int] = 7

    def size(self, n: int, dtype: DTypeLike) -> int:
        return 4 * self.scales(n) + (n + 1) // 2

    def encode(self, vector: Vector) -> Message:
        scales, codes = self.quantise(vector)
        nibbles = np.zeros(2 * ((len(codes) + 1) // 2), np.uint8)
        nibbles[: len(codes)] = codes + 8
        return np.concatenate([scales.view(np.uint8), nibbles[0::2] | (nibbles[1::2] << 4)])

    def decode(self, message: Message, out: Vector) -> None:
        n = len(out)
        self.check_size(message, n, out.dtype)
        cut = 4 * self.scales(n)
        packed = message[cut:]
        nibbles = np.stack([packed & 15, packed >> 4], axis=1).reshape(-1)[:n]
        if (nibbles == 0).any():
            raise BadMessage("a message in int4 holds -8; send units of -7..7")
        self.expand(message[:cut].copy().view(np.float32), nibbles.astype(np.int8) - np.int8(8), out)


@dataclass(frozen=True)
class TopK(Compression):
    """The largest numbers of each piece of 4096, each with its place in two bytes; the other numbers are 0.

    Values are sent as they are, so that with a fraction of 1 nothing is lost.
    """

    fraction: float = 0.01
    decay: float = 1.0  # an option here, a constant of the other codes
    for_models: ClassVar[bool] = False

    def __post_init__(self) -> None:
        plain(self)
        if not is_number(self.fraction) or not 0 < self.fraction <= 1:
            raise BadParameter("fraction", self.fraction, "is not a share of the numbers", "pass 0 < fraction <= 1")
        if not is_number(self.decay) or not 0 <= self.decay <= 1:
            raise BadParameter("decay", self.decay, "must lie in [0, 1]", "pass 0 <= decay <= 1")

    def kept(self, length: int) -> int:
        """Return how many numbers of a piece of this length are sent."""
        return min(length, math.ceil(self.fraction * length))

    def pieces(self, n: int) -> Iterator[tuple[int, int, int]]:
        """Yield the first place of each piece, the place after its last, and how many of its numbers are sent."""
        for start in range(0, n, CHUNK):
            stop = min(start + CHUNK, n)
            yield start, stop, self.kept(stop - start)

    def size(self, n: int, dtype: DTypeLike) -> int:
        whole, rest = divmod(n, CHUNK)
        sent = whole * self.kept(CHUNK) + self.kept(rest)
        return sent * (2 + np.dtype(dtype).itemsize)

    def encode(self, vector: Vector) -> Message:
        places, values = [], []
        for start, stop, k in self.pieces(len(vector)):
            some = vector[start:stop]
            chosen = np.sort(np.argsort(-np.abs(some), kind="stable")[:k])
            places.append(chosen.astype(np.uint16))
            values.append(some[chosen])
        return np.concatenate([np.concatenate(places).view(np.uint8), np.concatenate(values).view(np.uint8)])

    def decode(self, message: Message, out: Vector) -> None:
        self.check_size(message, len(out), out.dtype)
        sent = len(message) // (2 + out.itemsize)
        places = message[: 2 * sent].copy().view(np.uint16).astype(np.int64)
        values = message[2 * sent :].copy().view(out.dtype)
        begin, found = 0, []
        for start, stop, k in self.pieces(len(out)):
            some = start + places[begin : begin + k]
            if (np.diff(some) <= 0).any() or some[-1] >= stop:
                raise BadMessage(
                    "a message in top_k has places that do not ascend within a piece; send each place once"
                )
            found.append(some)
            begin += k
        if not np.isfinite(values).all():
            raise BadMessage("a message in top_k holds NaN or infinity; send finite numbers")
        out[:] = 0
        out[np.concatenate(found)] = values


NAMES: dict[str, type[Compression]] = {
    "float16": Float16,
    "bfloat16": BFloat16,
    "int8": Int8,
    "int4": Int4,
    "top_k": TopK,
}


def scale_exponent(largest: int) -> int:
    """Return the exponent of the power of two that scales a vector, given its largest magnitude: the bits of a float32.

    The largest number comes just below 2^15. That uses the range of float16, and rounding up does not overflow.
    """
    above = (largest >> 23) - 127
    return max(LEAST_EXPONENT, min(MOST_EXPONENT, 14 - above + (above >= 127)))


def as_compression(argument: str, given: Any) -> Compression:
    """Return the compression that a name stands for, or the compression itself."""
    if isinstance(given, Compression):
        return given
    if not isinstance(given, str) or given not in NAMES:
        raise BadParameter(argument, given, "is not a code", nearest(given, NAMES))
    return NAMES[given]()


def as_down(given: Any) -> Compression:
    """Return the compression for models on the way to workers."""
    found = as_compression("down", given)
    if not found.for_models:
        fix = 'pass down="bfloat16"'
        raise BadParameter("down", given, "leaves out most numbers of the model that a worker starts from", fix)
    return found
