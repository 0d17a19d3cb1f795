"""Compute exp, the logistic function and normal numbers for lanes.

The C library's functions take one number at a time, and differ from system to system. These take a whole vector
register, and give the same bits for every width. Polynomials: interpolation at Chebyshev nodes in 70 digits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from asyncsgd.compiled.jit import njit
from asyncsgd.compiled.lanes import bits, floats, splat, sqrt, where
from asyncsgd.compiled.random import GAMMA, mix

MAGIC = 1.5 * 2.0**52
"""Adding it rounds to the nearest integer, and leaves that integer in the lowest bits."""
LOG2E = 1.0 / math.log(2.0)
LN2_HIGH, LN2_LOW = float.fromhex("0x1.62e42feep-1"), float.fromhex("0x1.a39ef35793c76p-33")
S52 = np.uint64(52)
ONE_BITS = np.uint64(0x3FF0000000000000)
MANTISSA = np.uint64((1 << 52) - 1)
ROOT_HALF_BITS = np.uint64(0x3FE6A09E667F3BCD)
TWO52_BITS = np.uint64(0x4330000000000000)
S12 = np.uint64(12)
S62 = np.uint64(62)
ONE = np.uint64(1)
TWO = np.uint64(2)


@njit(cache=True, nogil=True, error_model="numpy")
def _reduced_exp(x: Any) -> Any:
    """(e^r, k) with x = k·ln 2 + r and r at most ln(2)/2 in size."""
    k = (x * LOG2E + MAGIC) - MAGIC
    r = (x - k * LN2_HIGH) - k * LN2_LOW
    s = r * r
    even = 0.041666666666666664 + s * (
        0.0013888888888886552 + s * (2.4801587317144498e-05 + s * (2.755728296954995e-07 + s * 2.0911236630261545e-09))
    )
    odd = 0.16666666666666669 + s * (
        0.008333333333330062 + s * (0.00019841269863053618 + s * (2.7557268459997064e-06 + s * 2.510038549551032e-08))
    )
    return 1.0 + (r + s * (0.5 + (r * odd + s * even))), k


@njit(cache=True, nogil=True, error_model="numpy")
def _power(k: Any) -> Any:
    """2^k for integers k in -1022..1023."""
    return floats((bits(k + MAGIC) << S52) + ONE_BITS)


@njit(cache=True, nogil=True, error_model="numpy")
def exp(x: Any) -> Any:
    """e^x to within 1 ulp, subnormal results, 0, infinity and NaN included."""
    x = where(x < -750.0, splat(-750.0, x), x)
    x = where(x > 710.0, splat(710.0, x), x)
    y, k = _reduced_exp(x)
    half = (k * 0.5 + MAGIC) - MAGIC
    return y * _power(half) * _power(k - half)


@njit(cache=True, nogil=True, error_model="numpy")
def exp_normal(x: Any) -> Any:
    """The same as `exp` for x in -708..709 (and NaN), where no result is subnormal."""
    y, k = _reduced_exp(x)
    return y * _power(k)


@njit(cache=True, nogil=True, error_model="numpy")
def sigmoid(z: Any) -> Any:
    """1/(1 + e^-z) without overflow; below -708 it stays at e^-708."""
    size = where(z > 0.0, 0.0 - z, z)
    e = exp_normal(where(size < -708.0, splat(-708.0, z), size))
    return where(z > 0.0, splat(1.0, z), e) / (1.0 + e)


@njit(cache=True, nogil=True, error_model="numpy")
def log(x: Any) -> Any:
    """The natural logarithm of normal positive numbers, to 2 ulp."""
    shifted = bits(x) - ROOT_HALF_BITS
    k = floats((shifted >> S52) | TWO52_BITS) - 2.0**52
    k = where(k > 2048.0, k - 4096.0, k)
    mantissa = floats((shifted & MANTISSA) + ROOT_HALF_BITS)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    w = s * s
    tail = 0.666666666666667 + w * (
        0.399999999998992
        + w
        * (
            0.2857142862611452
            + w * (0.22222211112104948 + w * (0.1818289077802613 + w * (0.15331666676597175 + w * 0.146171283998073)))
        )
    )
    return k * LN2_HIGH + (2.0 * s + (s * w * tail + k * LN2_LOW))


@njit(cache=True, nogil=True, error_model="numpy")
def softplus(z: Any) -> Any:
    """log(1 + e^z) without overflow."""
    size = where(z > 0.0, 0.0 - z, z)
    e = exp_normal(where(size < -708.0, splat(-708.0, z), size))
    u = 1.0 + e
    # The ratio corrects the rounding error of 1 + e (Kahan).
    tail = where(u == 1.0, e, log(u) * e / (u - 1.0))
    return where(z > 0.0, z, splat(0.0, z)) + tail


@njit(cache=True, nogil=True, error_model="numpy")
def normal_pair(state: Any, k: Any) -> Any:
    """Pair k of independent standard normal numbers of the streams ``state``, by Box and Muller."""
    first = state + GAMMA * (TWO * np.uint64(k) + ONE)
    # 52 random bits as the mantissa of a number in [1, 2).
    u = 2.0 - floats((mix(first) >> S12) | ONE_BITS)
    turns = 4.0 * (floats((mix(first + GAMMA) >> S12) | ONE_BITS) - 1.0)
    radius = sqrt(-2.0 * log(u))
    shifted = turns + MAGIC
    t = turns - (shifted - MAGIC)
    w = t * t
    sine = t * (
        1.5707963267948966
        + w
        * (
            -0.6459640975062443
            + w
            * (
                0.07969262624604301
                + w
                * (
                    -0.004681754132340976
                    + w * (0.0001604411507421909 + w * (-3.59864335298231e-06 + w * 5.633933781537854e-08))
                )
            )
        )
    )
    cosine = 1.0 + w * (
        -1.2337005501361697
        + w
        * (
            0.2536695079010467
            + w
            * (
                -0.02086348076331121
                + w
                * (
                    0.0009192602741831558
                    + w * (-2.520203677046026e-05 + w * (4.710609726757823e-07 - w * 6.321256869628588e-09))
                )
            )
        )
    )
    # The angle is (quadrant + t)·π/2.
    quadrant = bits(shifted)
    odd = (quadrant & ONE) == ONE
    a = bits(where(odd, sine, cosine)) ^ (((quadrant + ONE) & TWO) << S62)
    b = bits(where(odd, cosine, sine)) ^ ((quadrant & TWO) << S62)
    return radius * floats(a), radius * floats(b)
