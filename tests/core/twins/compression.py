"""Every code once more: the bytes of a message from lists, loops and `struct`, and the numbers that they stand for.

A number of a message is little-endian. All rounding is to nearest, ties to even.
"""

from __future__ import annotations

import math
import struct

LARGEST = 3e38
"""What int8 and int4 send for larger numbers."""
LARGEST_FLOAT32 = 2.0**128 - 2.0**104
PIECE = 4096


def rounded(x: float) -> float:
    """The nearest float32."""
    return struct.unpack("<f", struct.pack("<f", min(max(x, -LARGEST_FLOAT32), LARGEST_FLOAT32)))[0]


def float16(vector: list[float]) -> tuple[bytes, list[float]]:
    """An exponent, then float16 of the numbers times 2^exponent: the largest of them lies in [2^14, 2^15)."""
    largest = max(abs(rounded(x)) for x in vector)
    exponent = 120 if largest == 0 else max(-112, min(120, 15 - math.frexp(largest)[1]))
    message, numbers = struct.pack("<b", exponent), []
    for x in vector:
        scaled = rounded(math.ldexp(x, exponent))
        scaled = 0.0 if abs(scaled) < 2.0**-14 else min(max(scaled, -65504.0), 65504.0)
        half = struct.pack("<e", scaled)
        message += half
        numbers.append(math.ldexp(struct.unpack("<e", half)[0], -exponent))
    return message, numbers


def bfloat16(vector: list[float]) -> tuple[bytes, list[float]]:
    """The numbers with eight significant bits: the two upper bytes of such a float32."""
    message, numbers = b"", []
    for x in vector:
        mantissa, exponent = math.frexp(rounded(x))
        last = max(exponent, -125) - 8  # the place of the last bit; below 2^-126 it stays the same
        nearest = math.ldexp(round(math.ldexp(mantissa, exponent - last)), last)  # Python rounds ties to even
        numbers.append(math.copysign(min(abs(nearest), 2.0**128 - 2.0**120), x))
        message += struct.pack("<f", numbers[-1])[2:]
    return message, numbers


def _units(vector: list[float], block: int, most: int) -> tuple[list[float], list[int], list[float]]:
    scales, units, numbers = [], [], []
    for start in range(0, len(vector), block):
        some = [rounded(min(max(x, -LARGEST), LARGEST)) for x in vector[start : start + block]]
        scale = rounded(max(abs(x) for x in some) / most)
        scales.append(scale)
        for x in some:
            unit = round(rounded(x / scale)) if scale > 0 else 0
            units.append(max(-most, min(most, unit)))
            numbers.append(rounded(units[-1] * scale))
    return scales, units, numbers


def int8(vector: list[float], block: int) -> tuple[bytes, list[float]]:
    """The scales, largest / 127, then one signed byte per number."""
    scales, units, numbers = _units(vector, block, 127)
    return b"".join(struct.pack("<f", scale) for scale in scales) + struct.pack(f"<{len(units)}b", *units), numbers


def int4(vector: list[float], block: int) -> tuple[bytes, list[float]]:
    """The scales, largest / 7, then units + 8 in half a byte each, the first of two in the lower half."""
    scales, units, numbers = _units(vector, block, 7)
    message = b"".join(struct.pack("<f", scale) for scale in scales)
    for i in range(0, len(units), 2):
        upper = units[i + 1] + 8 if i + 1 < len(units) else 0
        message += bytes([units[i] + 8 + 16 * upper])
    return message, numbers


def top_k(vector: list[float], fraction: float, letter: str) -> tuple[bytes, list[float]]:
    """The places of the largest numbers of each piece, ascending, then their values; first places win ties."""
    places, values, numbers = b"", b"", [0.0] * len(vector)
    for start in range(0, len(vector), PIECE):
        inside = range(min(PIECE, len(vector) - start))
        k = math.ceil(fraction * len(inside))
        chosen = sorted((-abs(vector[start + i]), i) for i in inside)[:k]
        for i in sorted(i for _, i in chosen):
            places += struct.pack("<H", i)
            values += struct.pack(f"<{letter}", vector[start + i])
            numbers[start + i] = vector[start + i]
    return places + values, numbers
