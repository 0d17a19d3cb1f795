"""Updates in 16 bits: rounded as the formats say, nothing lost for good, nothing but finite numbers."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.engines.compression import TRANSPORTS, Rounding, Unpacking, check_transport

DTYPES = (np.float32, np.float64)


def sent(rounding: Rounding, kind: str, g: NDArray[np.floating]) -> NDArray[np.floating]:
    out = np.empty_like(g)
    Unpacking(kind)(rounding.pack(g), out)
    return out


def to_bfloat16(x: NDArray[np.float32]) -> NDArray[np.float32]:
    """To the nearest number of 8 bits of precision, ties to even: by exact arithmetic, one by one."""
    rounded = []
    for value in x.astype(np.float64):
        mantissa, exponent = math.frexp(value)
        rounded.append(math.ldexp(round(mantissa * 256), exponent - 8))  # Python rounds ties to even
    return np.array(rounded, np.float32)


def some(seed: int, n: int, dtype: type) -> NDArray[np.floating]:
    """Numbers of many magnitudes."""
    random = np.random.default_rng(seed)
    return (random.standard_normal(n) * 10.0 ** random.uniform(-12, 8, n)).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
def test_float16_is_numpys_own_of_the_scaled_numbers(dtype: type) -> None:
    for seed, n in ((0, 1), (1, 4095), (2, 4096), (3, 10_001)):
        g = some(seed, n, dtype)
        parcel = Rounding("float16", n, dtype).pack(g)
        scaled = (g * dtype(2.0**parcel.exponent)).astype(np.float32)
        expected = scaled.astype(np.float16)
        assert 2**14 <= np.abs(scaled).max() < 2**15
        expected[np.abs(scaled) < 2.0**-14] = 0  # subnormal: made up for later
        got = parcel.halves.view(np.float16)
        assert (np.abs(got) == np.abs(expected)).all()
        assert (np.signbit(got) == np.signbit(scaled)).all()


def test_bfloat16_rounds_to_nearest_even() -> None:
    g = np.concatenate([some(4, 5000, np.float32), np.array([1.00390625, 1.01171875, -1.00390625], np.float32)])
    assert (sent(Rounding("bfloat16", len(g), np.float32), "bfloat16", g) == to_bfloat16(g)).all()


@pytest.mark.parametrize("kind", TRANSPORTS)
@given(
    seed=st.integers(0, 10_000), n=st.integers(1, 300), wide=st.booleans(), used=st.lists(st.booleans(), max_size=12)
)
def test_what_is_left_over_is_added_to_the_next(kind: str, seed: int, n: int, wide: bool, used: list[bool]) -> None:
    """After any history, the sum of what was used and of the rest is the sum of the updates that were."""
    dtype = np.float64 if wide else np.float32
    rounding = Rounding(kind, n, dtype)
    total, arrived = np.zeros(n), np.zeros(n)
    for k, fine in enumerate(used):
        g = np.random.default_rng((seed, k)).standard_normal(n).astype(dtype)
        out = sent(rounding, kind, g)
        rounding.settle(used=fine)
        if fine:
            total += g
            arrived += out
    assert np.abs(total - arrived - rounding._left).max() <= 1e-5 * max(1.0, np.abs(total).max())


@pytest.mark.parametrize("kind", TRANSPORTS)
def test_the_rest_is_a_function_of_what_was_used(kind: str) -> None:
    """Jobs that were lost or cancelled in between leave no trace: that is what a replay relies on."""
    plain, eventful = Rounding(kind, 500, np.float32), Rounding(kind, 500, np.float32)
    for k in range(6):
        g = some(k, 500, np.float32)
        for unused in range(k % 3):
            eventful.pack(some(100 + unused, 500, np.float32))
            eventful.settle(used=False)
        eventful.settle(used=True)  # nothing was packed since: says nothing
        assert sent(plain, kind, g).tobytes() == sent(eventful, kind, g).tobytes()
        plain.settle(used=True)
        eventful.settle(used=True)


@pytest.mark.parametrize("kind", TRANSPORTS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_the_largest_and_the_smallest_stay_finite(kind: str, dtype: type) -> None:
    info = np.finfo(dtype)
    for values in ([info.max, -info.max, 0.0], [info.smallest_subnormal, 0.0, -info.tiny], [0.0, 0.0, -0.0]):
        g = np.array(values, dtype)
        out = sent(Rounding(kind, 3, dtype), kind, g)
        assert np.isfinite(out).all()
        assert (np.abs(out) <= np.abs(g)).all()


@pytest.mark.parametrize(("kind", "bits"), [("float16", 11), ("bfloat16", 8)])
def test_precision(kind: str, bits: int) -> None:
    g = np.random.default_rng(0).uniform(0.5, 1.0, 20_000).astype(np.float32)
    error = np.abs(sent(Rounding(kind, len(g), np.float32), kind, g) - g).max()
    assert 0.4 * 2.0**-bits < error <= 0.5 * 2.0**-bits


def test_a_transport_that_is_none() -> None:
    check_transport(None)
    with pytest.raises(BadParameter, match=r"transport = 'float8' is unknown; pass one of float16, bfloat16, or None"):
        check_transport("float8")
