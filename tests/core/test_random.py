"""The random numbers: the published generator, golden values, uniform."""

import math
from itertools import count

import numpy as np
import pytest

from asyncsgd.core.random import GAMMA, MASK, below, derive, mix


def test_the_generator_is_splitmix64():
    """The published first outputs for the seed 1234567."""
    state, outputs = 1234567, []
    for _ in range(5):
        state = (state + GAMMA) & MASK
        outputs.append(mix(state))
    assert outputs == [
        6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431, 16408922859458223821,
    ]  # fmt: skip


def draws(seed, n, how_many):
    state, values = seed, []
    for _ in range(how_many):
        state, k = below(state, n)
        values.append(k)
    return values


def test_the_stream_never_changes():
    """Golden values: if these change, every recorded run is lost."""
    assert draws(0, 10, 12) == [8, 4, 0, 9, 1, 3, 1, 7, 2, 9, 3, 7]
    assert draws(42, 1000, 8) == [741, 159, 278, 344, 38, 868, 218, 800]
    assert draws(7, 2**31 + 1, 4) == [36052587, 1934368832, 1251833272, 1004921424]
    assert derive(0) == 16294208416658607535
    assert derive(0, 1) == 12935080325729570654
    assert derive(2**64 - 1, 5, 6) == 356994415815278390


@pytest.mark.parametrize("n", [1, 2, 3, 7, 10, 100])
def test_draws_are_uniform(n):
    """Chi-square with n - 1 degrees of freedom: mean n - 1, variance 2(n - 1); five deviations allowed."""
    how_many = 20_000
    counts = np.bincount(draws(derive(1, n), n, how_many), minlength=n)
    assert len(counts) == n
    chi_square = float(((counts - how_many / n) ** 2).sum() / (how_many / n))
    assert chi_square <= n - 1 + 5 * math.sqrt(2 * (n - 1))


def test_draws_reject_what_would_bias_them():
    """n just above 2^31: a product alone would give about half the numbers twice as often as the others."""
    n = (1 << 31) + 1
    values = draws(3, n, 4000)
    assert max(values) < n
    assert sum(value % 2 for value in values) / 4000 == pytest.approx(0.5, abs=0.04)
    assert sum(value < n // 2 for value in values) / 4000 == pytest.approx(0.5, abs=0.04)


def naive_below(state, n):
    """Lemire's method with the rejection written out: take 32 bits; refuse those past the last full multiple."""
    for step in count(1):
        high = mix((state + step * GAMMA) & MASK) >> 32
        if (high * n) % (1 << 32) >= (1 << 32) % n:
            return (state + step * GAMMA) & MASK, high * n >> 32
    raise AssertionError


def test_below_equals_lemires_method_written_out():
    for n in (1, 3, 10, 1000, (1 << 31) + 1, 3 * (1 << 30), (1 << 32) - 1):
        state = derive(n)
        for _ in range(300):
            expected = naive_below(state, n)
            assert below(state, n) == expected
            state = expected[0]
