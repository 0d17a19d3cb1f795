"""The random numbers of `asyncsgd.core.random`, compiled, and the numbers that are drawn from them.

A state is a uint64. Python passes small integers to compiled code as int64, so the functions convert them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import uint64

from asyncsgd.compiled.jit import njit
from asyncsgd.core import random as plain

GAMMA = np.uint64(plain.GAMMA)
M1 = np.uint64(0xBF58476D1CE4E5B9)
M2 = np.uint64(0x94D049BB133111EB)
S30, S27, S31, S32, S11 = (np.uint64(shift) for shift in (30, 27, 31, 32, 11))
LOW = np.uint64(0xFFFFFFFF)
ONE = np.uint64(1)
TWO32 = np.uint64(1 << 32)


@njit(cache=True)
def mix(z: Any) -> Any:
    """Scramble 64 bits, or those of every lane: SplitMix64, as `asyncsgd.core.random.mix`."""
    z = (z ^ (z >> S30)) * M1
    z = (z ^ (z >> S27)) * M2
    return z ^ (z >> S31)


@njit(cache=True)
def output(state: Any, k: Any) -> Any:
    """Output number k of the stream that starts at ``state``."""
    return mix(uint64(state) + GAMMA * (uint64(k) + ONE))


@njit(cache=True)
def derive(seed: Any, key: Any) -> Any:
    """The same as ``core.random.derive(seed, key)``."""
    return output(mix(uint64(seed) + GAMMA), key)


@njit(cache=True)
def below(state: Any, n: Any) -> Any:
    """(new state, an integer uniform on 0..n-1): the same as ``core.random.below``."""
    n64 = uint64(n)
    state = uint64(state) + GAMMA
    product = (mix(state) >> S32) * n64
    if (product & LOW) < n64:
        threshold = (TWO32 - n64) % n64
        while (product & LOW) < threshold:
            state = state + GAMMA
            product = (mix(state) >> S32) * n64
    return state, np.int64(product >> S32)


@njit(cache=True)
def uniform(state: Any) -> Any:
    """(new state, a number uniform on [0, 1) with 53 bits)."""
    state = uint64(state) + GAMMA
    return state, np.float64(mix(state) >> S11) * 2.0**-53


@njit(cache=True)
def normal_pair(state: Any) -> Any:
    """(new state, two independent standard normal numbers), by Box and Muller."""
    state, u = uniform(state)
    state, v = uniform(state)
    radius = math.sqrt(-2.0 * math.log1p(-u))
    angle = 2.0 * math.pi * v
    return state, radius * math.cos(angle), radius * math.sin(angle)
