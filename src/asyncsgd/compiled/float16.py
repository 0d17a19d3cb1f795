"""Encode updates in 16 bits per number: float16 and bfloat16, rounded to nearest, ties to even, no infinities.

A float32 of magnitude bits a is rounded by adding just under half of the last kept place and cutting off. A number
beyond the largest of a format is sent as the largest; a number that is subnormal in float16 is sent as 0. The caller
adds the rounding error to the next update, so nothing is lost for good.

Each loop does one simple thing to a block that stays in the nearest cache: compilers make vector code of such loops.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncsgd.compiled.jit import borrowing

BLOCK = 4096

_SIGN, _MAGNITUDE = np.uint32(0x80000000), np.uint32(0x7FFFFFFF)
_ONE, _13, _16, _23 = np.uint32(1), np.uint32(13), np.uint32(16), np.uint32(23)
_LEAST_HALF, _SHIFTED = np.uint32(0x38800000), np.uint32(0x38000000)  # 2^-14; between the two exponents
_LARGEST_HALF, _LARGEST_BFLOAT = np.uint32(0x7BFF), np.uint32(0x7F7F)
_UNDER_HALF_13, _UNDER_HALF_16 = np.uint32(0xFFF), np.uint32(0x7FFF)
_NOTHING, _SHORT = np.uint32(0), np.uint32(0x7FFF)


@borrowing
def add_and_measure(g: Any, left: Any, total: Any, floats: Any, bits: Any) -> Any:
    """Compute ``total = g + left`` and return the exponent of its largest element, -127 if that is nearly 0.

    ``floats`` and ``bits`` are one block of memory seen as float32 and as uint32, here and below.
    """
    largest = _NOTHING
    for start in range(0, len(total), BLOCK):
        rest, gradient, old = total[start : start + BLOCK], g[start : start + BLOCK], left[start : start + BLOCK]
        for i in range(len(rest)):
            rest[i] = gradient[i] + old[i]
        for i in range(len(rest)):
            floats[i] = rest[i]
        for i in range(len(rest)):
            largest = max(largest, bits[i] & _MAGNITUDE)
    return np.int64(largest >> _23) - 127


@borrowing
def to_float16(total: Any, scale: float, halves: Any, floats: Any, bits: Any) -> None:
    """Set ``halves`` to total * scale in 16 bits and ``total`` to the rounding error; scale is a power of two."""
    there, back = total.dtype.type(scale), total.dtype.type(1.0 / scale)
    for start in range(0, len(total), BLOCK):
        rest, sent = total[start : start + BLOCK], halves[start : start + BLOCK]
        for i in range(len(rest)):
            floats[i] = rest[i] * there
        for i in range(len(rest)):
            a = bits[i] & _MAGNITUDE
            b = a - _SHIFTED
            short = min((b + _UNDER_HALF_13 + ((b >> _13) & _ONE)) >> _13, _LARGEST_HALF)
            bits[i] = (bits[i] & _SIGN) | ((short << _13) + _SHIFTED if a >= _LEAST_HALF else _NOTHING)
        for i in range(len(rest)):
            a = bits[i] & _MAGNITUDE
            sent[i] = ((bits[i] & _SIGN) >> _16) | ((a - _SHIFTED) >> _13 if a else _NOTHING)
        for i in range(len(rest)):
            rest[i] -= floats[i] * back


@borrowing
def to_bfloat16(total: Any, scale: float, halves: Any, floats: Any, bits: Any) -> None:
    """Do the same as `to_float16` with more range and three bits less."""
    there, back = total.dtype.type(scale), total.dtype.type(1.0 / scale)
    for start in range(0, len(total), BLOCK):
        rest, sent = total[start : start + BLOCK], halves[start : start + BLOCK]
        for i in range(len(rest)):
            floats[i] = rest[i] * there
        for i in range(len(rest)):
            a = bits[i] & _MAGNITUDE
            short = min((a + _UNDER_HALF_16 + ((a >> _16) & _ONE)) >> _16, _LARGEST_BFLOAT)
            bits[i] = (bits[i] & _SIGN) | (short << _16)
        for i in range(len(rest)):
            sent[i] = bits[i] >> _16
        for i in range(len(rest)):
            rest[i] -= floats[i] * back


@borrowing
def from_float16(halves: Any, scale: float, out: Any, floats: Any, bits: Any) -> None:
    """Set ``out`` to the numbers in ``halves``, divided by the scale, in the dtype of the model."""
    back = out.dtype.type(1.0 / scale)
    for start in range(0, len(out), BLOCK):
        said, sent = out[start : start + BLOCK], halves[start : start + BLOCK]
        for i in range(len(said)):
            half = np.uint32(sent[i])
            short = half & _SHORT
            bits[i] = ((half << _16) & _SIGN) | ((short << _13) + _SHIFTED if short else _NOTHING)
        for i in range(len(said)):
            said[i] = floats[i] * back


@borrowing
def from_bfloat16(halves: Any, scale: float, out: Any, floats: Any, bits: Any) -> None:
    """Do the same as `from_float16` for bfloat16."""
    back = out.dtype.type(1.0 / scale)
    for start in range(0, len(out), BLOCK):
        said, sent = out[start : start + BLOCK], halves[start : start + BLOCK]
        for i in range(len(said)):
            bits[i] = np.uint32(sent[i]) << _16
        for i in range(len(said)):
            said[i] = floats[i] * back
