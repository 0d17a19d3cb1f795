"""The codes of `asyncsgd.core.compression`, compiled: the same bytes, without a temporary as long as the vector.

Each loop does one simple thing to a tile that stays in the nearest cache: compilers make vector code of such loops. A
tile is seen as float32 and as uint32 (``floats`` and ``bits``), because the bits of numbers compare as the numbers do,
and the largest of integers is found with vector code. A received message may begin at any address, so what is wider
than a byte is copied to aligned memory first: numbers of two bytes a tile at a time, scales and `TopK` if need be.

A function that decodes reads the whole message before it writes anything, and returns whether the message is one.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import DTypeLike, NDArray

from asyncsgd.compiled.jit import njit
from asyncsgd.compiled.kernels import read_only
from asyncsgd.core.compression import (
    CHUNK,
    LARGEST,
    LEAST_EXPONENT,
    MOST_EXPONENT,
    NAMES,
    BFloat16,
    Blocks,
    Compression,
    Float16,
    Message,
    TopK,
    scale_exponent,
)
from asyncsgd.core.vectors import Vector
from asyncsgd.core.worker import Codec

TILE = CHUNK
# A check of each divisor, as Python does it, would prevent vector code.
_compiled: Any = njit(cache=True, nogil=True, _nrt=False, error_model="numpy")
_SIGN, _MAGNITUDE = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_ONE, _16 = np.uint32(1), np.uint32(16)
_NOTHING, _SHORT, _MINUS = np.uint32(0), np.uint32(0x7FFF), np.uint32(0x8000)

Form = tuple[np.uint32, np.uint32, np.uint32, np.uint32, np.uint32]
"""A format of 16 bits: the bits that float32 has more, the difference of the exponents, the magnitude from which on
numbers are not sent as 0, the largest number, and the exponent of what is not finite."""
FLOAT16: Form = (np.uint32(13), np.uint32(0x38000000), np.uint32(0x38800000), np.uint32(0x7BFF), np.uint32(0x7C00))
BFLOAT16: Form = (_16, _NOTHING, _NOTHING, np.uint32(0x7F7F), np.uint32(0x7F80))


@_compiled
def _largest(vector: Any, floats: Any, bits: Any) -> Any:
    """Return the bits of the largest magnitude as float32."""
    largest = _NOTHING
    for start in range(0, len(vector), TILE):
        some = vector[start : start + TILE]
        for i in range(len(some)):
            floats[i] = some[i]
        for i in range(len(some)):
            largest = max(largest, bits[i] & _MAGNITUDE)
    return largest


@_compiled
def _to_halves(vector: Any, scale: float, form: Any, halves: Any, floats: Any, bits: Any) -> None:
    """Set ``halves`` to vector * scale, rounded by adding just under half of the last kept place and cutting off."""
    shift, between, least, most, _ = form
    scale = vector.dtype.type(scale)
    under_half = (_ONE << (shift - _ONE)) - _ONE
    for start in range(0, len(vector), TILE):
        some, sent = vector[start : start + TILE], halves[start : start + TILE]
        for i in range(len(some)):
            floats[i] = some[i] * scale
        for i in range(len(some)):
            a = bits[i] & _MAGNITUDE
            b = a - between
            short = min((b + under_half + ((b >> shift) & _ONE)) >> shift, most)
            sent[i] = ((bits[i] & _SIGN) >> _16) | short if a >= least else _NOTHING


@_compiled
def _from_halves(message: Any, scales: Any, form: Any, out: Any, tiles: Any) -> Any:
    """Set ``out`` to the numbers of 16 bits, times both scales, unless one of them is not finite."""
    shift, _, _, _, infinite = form
    halves, raw, floats, bits = tiles
    factor, first, second = np.uint32(_ONE << shift), np.float32(scales[0]), out.dtype.type(scales[1])
    largest = np.uint16(0)
    for write in range(2):
        for start in range(0, len(out), TILE):
            target, some = out[start : start + TILE], message[2 * start : 2 * (start + TILE)]
            for i in range(len(some)):
                raw[i] = some[i]
            if write == 0:
                for i in range(len(target)):
                    largest = max(largest, np.uint16(halves[i] & _SHORT))
            else:
                for i in range(len(target)):  # by multiplying: shifting by a variable takes numbers of 64 bits
                    half = np.uint32(halves[i])
                    bits[i] = ((half & _MINUS) << _16) | ((half & _SHORT) * factor)
                for i in range(len(target)):
                    target[i] = floats[i] * first * second
        if largest >= infinite:
            return False
    return True


@_compiled
def _to_units(vector: Any, block: Any, most: Any, parts: Any, floats: Any, bits: Any) -> None:
    """Set the scale of every block, and the numbers in units of it: a byte for each, or half a byte if most is 7."""
    scales, units = parts
    most = np.float32(most)
    for b in range(len(scales)):
        first, last = b * block, min((b + 1) * block, len(vector))
        largest = _NOTHING
        for start in range(first, last, TILE):
            some = vector[start : min(start + TILE, last)]
            for i in range(len(some)):
                floats[i] = some[i]
            for i in range(len(some)):
                largest = max(largest, bits[i] & _MAGNITUDE)
        bits[0] = largest
        scale = min(floats[0], LARGEST) / most
        scales[b] = scale
        divisor = scale if scale > 0 else np.float32(np.inf)  # then all units are 0
        for start in range(first, last, TILE):
            some = vector[start : min(start + TILE, last)]
            if most > 7:
                sent = units[start : min(start + TILE, last)]
                for i in range(len(some)):
                    sent[i] = np.int8(min(max(np.rint(np.float32(some[i]) / divisor), -most), most))
                continue
            for i in range(len(some)):
                bits[i] = np.int8(min(max(np.rint(np.float32(some[i]) / divisor), -most), most)) + 8
            odd = start % 2
            if odd:  # the block before this one ended with the first half of a byte
                units[start // 2] |= bits[0] << 4
            sent, pairs = units[(start + odd) // 2 :], (len(some) - odd) // 2
            nibbles = bits[odd:]
            for i in range(pairs):
                sent[i] = nibbles[2 * i] | (nibbles[2 * i + 1] << 4)
            if odd + 2 * pairs < len(some):
                sent[pairs] = nibbles[2 * pairs]


@_compiled
def _from_bytes(scales: Any, units: Any, block: int, out: Any) -> Any:
    """Set ``out`` to units of one byte times their scales, unless one of them is -128."""
    least = np.int8(0)
    for i in range(len(units)):
        least = min(least, units[i])
    if least == -128:
        return False
    for b in range(len(scales)):
        some, target, scale = units[b * block : (b + 1) * block], out[b * block : (b + 1) * block], scales[b]
        for i in range(len(target)):
            target[i] = np.float32(some[i]) * scale
    return True


@_compiled
def _from_nibbles(scales: Any, units: Any, block: int, out: Any) -> Any:
    """Set ``out`` to units of half a byte times their scales, unless one of them is -8."""
    n = len(out)
    wrong = n % 2 == 1 and units[n // 2] & 15 == 0
    for i in range(n // 2):
        wrong |= (units[i] & 15 == 0) | (units[i] >> 4 == 0)
    if wrong:
        return False
    for b in range(len(scales)):
        first, last, scale = b * block, min((b + 1) * block, n), scales[b]
        if first % 2:
            out[first] = np.float32(np.int32(units[first // 2] >> 4) - 8) * scale
            first += 1
        some, target = units[first // 2 :], out[first:last]
        for i in range(len(target) // 2):
            target[2 * i] = np.float32(np.int32(some[i] & 15) - 8) * scale
            target[2 * i + 1] = np.float32(np.int32(some[i] >> 4) - 8) * scale
        if len(target) % 2:
            target[len(target) - 1] = np.float32(np.int32(some[len(target) // 2] & 15) - 8) * scale
    return True


@_compiled
def _choose(vector: Any, patterns: Any, kept: Any, places: Any, values: Any, tile: Any) -> None:
    """Set the places and the values of the largest numbers of each piece.

    The magnitude of the last one to be sent is found by bisection: a pass counts the numbers from some magnitude on.
    It ends when as many numbers as wanted are left, or else at a magnitude that several numbers have. Such a pass is
    vector code without branches.
    """
    done = 0
    mask = np.iinfo(tile.dtype).max
    for start in range(0, len(vector), CHUNK):
        some, pattern = vector[start : start + CHUNK], patterns[start : start + CHUNK]
        k = kept[0] if len(some) == CHUNK else kept[1]
        high = tile.dtype.type(0)
        for i in range(len(some)):
            tile[i] = pattern[i] & mask
        for i in range(len(some)):
            high = max(high, tile[i])
        low, found = tile.dtype.type(0), len(some)
        while low < high and found != k:
            middle = tile.dtype.type(low + (high - low + 1) // 2)
            count = 0
            for i in range(len(some)):
                count += tile[i] >= middle
            if count >= k:
                low, found = middle, count
            else:
                high = tile.dtype.type(middle - 1)
        ties = k
        for i in range(len(some)):
            ties -= tile[i] > low
        for i in range(len(some)):
            if tile[i] > low or (tile[i] == low and ties > 0):
                ties -= tile[i] == low
                places[done], values[done] = i, some[i]
                done += 1


@_compiled
def _place(places: Any, values: Any, kept: Any, out: Any) -> Any:
    """Set ``out`` to the values at their places and to 0 elsewhere, if places ascend and values are finite."""
    wrong = False
    for i in range(len(values)):
        wrong |= not np.isfinite(values[i])
    for write in range(2):
        done = 0
        for start in range(0, len(out), CHUNK):
            some = out[start : start + CHUNK]
            k = kept[0] if len(some) == CHUNK else kept[1]
            if write == 0:
                wrong |= places[done + k - 1] >= len(some)
                for i in range(done + 1, done + k):
                    wrong |= places[i - 1] >= places[i]
            else:
                some[:] = 0
                for i in range(done, done + k):
                    some[places[i]] = values[i]
            done += k
        if wrong:
            return False
    return True


C = TypeVar("C", bound=Compression)


class _Compiled(ABC, Generic[C]):
    """A code in compiled form. It keeps the memory of its message and of tiles, so one thread may use it at a time."""

    def __init__(self, code: C) -> None:
        self._code = code
        self._memory: NDArray[np.uint8] = np.empty(0, np.uint8)
        self._floats = np.empty(TILE, np.float32)
        self._bits = self._floats.view(np.uint32)

    @abstractmethod
    def encode(self, vector: Vector) -> Message:
        """Return the message; the next call overwrites it."""

    def decode(self, message: Message, out: Vector) -> None:
        """Write the numbers of a message to ``out``. Raise `BadMessage`, with ``out`` unchanged, if it is not one."""
        self._code.check_size(message, len(out), out.dtype)
        if not self._written(read_only(message), out):
            self._code.decode(message, out)  # which raises the error that names what is wrong

    @abstractmethod
    def _written(self, message: Message, out: Vector) -> bool:
        """Write a message of the right length to ``out``; return False, with ``out`` unchanged, if it is not one."""

    def _message(self, n: int, dtype: DTypeLike, start: int = 0) -> Message:
        """Return memory for a message, which begins ``start`` bytes after an address that suits every dtype."""
        length = start + self._code.size(n, dtype)
        if len(self._memory) != length:
            self._memory = np.empty(length, np.uint8)
        return self._memory[start:]


class _Halves(_Compiled[Compression]):
    """float16, where the exponent of a scale comes first, and bfloat16."""

    def __init__(self, code: Compression) -> None:
        super().__init__(code)
        self._scaled = isinstance(code, Float16)
        self._form = FLOAT16 if self._scaled else BFLOAT16
        halves = np.empty(TILE, np.uint16)
        self._tiles = (halves, halves.view(np.uint8), self._floats, self._bits)

    def encode(self, vector: Vector) -> Message:
        vector = read_only(vector)
        exponent, lead = 0, int(self._scaled)
        message = self._message(len(vector), vector.dtype, lead)
        if self._scaled:
            exponent = scale_exponent(int(_largest(vector, self._floats, self._bits)))
            message[0] = exponent % 256
        _to_halves(vector, 2.0**exponent, self._form, message[lead:].view(np.uint16), self._floats, self._bits)
        return message

    def _written(self, message: Message, out: Vector) -> bool:
        if not self._scaled:
            return bool(_from_halves(message, (1.0, 1.0), self._form, out, self._tiles))
        exponent = int(message[:1].view(np.int8)[0])
        if not LEAST_EXPONENT <= exponent <= MOST_EXPONENT:
            return False
        return bool(_from_halves(message[1:], (2.0**112, 2.0**-exponent), self._form, out, self._tiles))


class _Units(_Compiled[Blocks]):
    """int8 and int4."""

    def encode(self, vector: Vector) -> Message:
        message, code = self._message(len(vector), vector.dtype), self._code
        cut = 4 * code.scales(len(vector))
        parts = (message[:cut].view(np.float32), message[cut:])
        _to_units(read_only(vector), code.block, code.most, parts, self._floats, self._bits)
        return message

    def _written(self, message: Message, out: Vector) -> bool:
        cut = 4 * self._code.scales(len(out))
        scales, units = _aligned(message[:cut], np.float32), message[cut:]
        if not self._code.in_range(scales):
            return False
        if self._code.most > 7:
            return bool(_from_bytes(scales, units.view(np.int8), self._code.block, out))
        return bool(_from_nibbles(scales, units, self._code.block, out))


class _Largest(_Compiled[TopK]):
    """top_k."""

    def encode(self, vector: Vector) -> Message:
        vector = read_only(vector)
        kept, cut = self._kept(len(vector))
        message = self._message(len(vector), vector.dtype, -cut % 8)  # so that the values are aligned
        patterns = vector.view(np.int32 if vector.itemsize == 4 else np.int64)
        places, values = message[:cut].view(np.uint16), message[cut:].view(vector.dtype)
        tile = np.empty(CHUNK, patterns.dtype)
        _choose(vector, patterns, kept, places, values, tile)
        return message

    def _written(self, message: Message, out: Vector) -> bool:
        kept, cut = self._kept(len(out))
        return bool(_place(_aligned(message[:cut], np.uint16), _aligned(message[cut:], out.dtype), kept, out))

    def _kept(self, n: int) -> tuple[tuple[int, int], int]:
        """Return how many numbers of a whole piece and of the last, shorter piece are sent, and the bytes of places."""
        whole, rest = divmod(n, CHUNK)
        kept = (self._code.kept(CHUNK), self._code.kept(rest))
        return kept, 2 * (whole * kept[0] + kept[1])


def _aligned(part: Message, dtype: DTypeLike) -> NDArray[Any]:
    """Return bytes as numbers of this dtype, copied if they lie across the addresses of such numbers."""
    numbers = part.view(dtype)
    return numbers if numbers.flags.aligned else read_only(numbers.copy())


def fast(code: Compression) -> Codec:
    """Return the compiled form of a code.

    It writes every message to the same memory, so copy a message that must outlive the next one.

    >>> from asyncsgd.core.compression import Int8
    >>> fast(Int8()).encode(np.array([1.0, -2.0])).tobytes() == Int8().encode(np.array([1.0, -2.0])).tobytes()
    True
    """
    if type(code) not in NAMES.values():  # a code of the user's own, which may be derived from one of ours
        return code
    match code:
        case Float16() | BFloat16():
            return _Halves(code)
        case Blocks():
            return _Units(code)
        case TopK():
            return _Largest(code)
        case _:
            return code
