"""Random numbers that are the same on every machine, in Python and in compiled code.

SplitMix64 (Steele, Lea and Flood, 2014): the whole state is one integer, so saving it is exact and the compiled
schedule repeats it in three lines. NumPy's generators promise neither the same stream across versions nor a
state that compiled code can share, which is why this file exists (docs/decisions/0003-random-numbers.md).
"""

from __future__ import annotations

MASK = (1 << 64) - 1
GAMMA = 0x9E3779B97F4A7C15


def mix(z: int) -> int:
    """Scramble 64 bits: a bijection whose outputs look independent."""
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def output(state: int, k: int) -> int:
    """Return output number k of the stream that starts at ``state``, without drawing those before it."""
    return mix((state + GAMMA * (k + 1)) & MASK)


def derive(seed: int, *keys: int) -> int:
    """Return a separate 64-bit seed for (seed, keys): job k of a run draws from ``derive(run_seed, k)``.

    >>> derive(0, 1) == derive(0, 1), derive(0, 1) != derive(1, 0), derive(0, 1) != derive(0, 1, 0)
    (True, True, True)
    """
    state = mix((seed + GAMMA) & MASK)
    for key in keys:
        state = output(state, key)
    return state


def below(state: int, n: int) -> tuple[int, int]:
    """Return (new state, an integer exactly uniform on 0..n-1) (Lemire 2019), for n < 2^32.

    >>> state, counts = derive(0, 7), [0, 0, 0]
    >>> for _ in range(3000):
    ...     state, k = below(state, 3)
    ...     counts[k] += 1
    >>> counts
    [1038, 970, 992]
    """
    state = (state + GAMMA) & MASK
    product = (mix(state) >> 32) * n
    if product & 0xFFFFFFFF < n:
        threshold = ((1 << 32) - n) % n
        while product & 0xFFFFFFFF < threshold:
            state = (state + GAMMA) & MASK
            product = (mix(state) >> 32) * n
    return state, product >> 32
