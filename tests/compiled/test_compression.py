"""The compiled codes have the bytes of the NumPy codes, for any vector at any address."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from core.code_checks import CODES, DTYPES, some, vectors
from hypothesis import given
from hypothesis import strategies as st
from markers import examples

from asyncsgd.compiled.compression import fast
from asyncsgd.core.compression import BFloat16, Compression, Float16, Int4, Int8, TopK
from asyncsgd.core.vectors import Vector


def compare(code: Compression, vector: Vector, offset: int = 0) -> None:
    codec = fast(code)
    vector.flags.writeable = False
    expected, message = code.encode(vector), codec.encode(vector)
    assert message.tobytes() == expected.tobytes()
    memory = np.zeros(offset + len(message), np.uint8)  # a network puts a message at any address
    memory[offset:] = expected
    first, second, third = (np.full_like(vector, np.nan) for _ in range(3))
    code.decode(expected, first)
    codec.decode(message, second)
    codec.decode(memory[offset:], third)
    assert first.tobytes() == second.tobytes() == third.tobytes()


@pytest.mark.parametrize("dtype", DTYPES)
@examples(200)
@given(data=st.data(), block=st.integers(1, 90), fraction=st.floats(0, 1, exclude_min=True), offset=st.integers(0, 7))
def test_any_short_vector(dtype: type, data: st.DataObject, block: int, fraction: float, offset: int) -> None:
    vector = data.draw(vectors(dtype))
    for code in (Float16(), BFloat16(), Int8(block), Int4(block), TopK(fraction)):
        compare(code, vector.copy(), offset)


@examples(150)
@given(
    n=st.integers(1, 13_000),
    dtype=st.sampled_from(DTYPES),
    block=st.integers(1, 10_000),
    fraction=st.sampled_from([1e-6, 0.01, 0.1, 0.5, 0.999, 1.0]),
    ties=st.integers(0, 40),
    seed=st.integers(0, 2**32),
)
def test_any_long_vector(n: int, dtype: type, block: int, fraction: float, ties: int, seed: int) -> None:
    """With ties: few different magnitudes, so that the last one to be sent is one of many."""
    vector = some(seed, n, dtype, spread=20.0)
    if ties:
        random = np.random.default_rng(seed)
        vector = (random.integers(0, ties, n) * random.choice([-0.25, 0.25], n)).astype(dtype)
    for code in (Float16(), BFloat16(), Int8(block), Int4(block), TopK(fraction)):
        compare(code, vector.copy())


@pytest.mark.parametrize("code", CODES)
def test_one_codec_takes_vectors_of_several_lengths_and_dtypes(code: str) -> None:
    codec = fast(CODES[code])
    for n, dtype in ((3, np.float32), (5000, np.float64), (5000, np.float32), (4, np.float64)):
        vector = some(n, n, dtype)
        assert codec.encode(vector).tobytes() == CODES[code].encode(vector).tobytes()


@pytest.mark.parametrize("code", ["float16", "bfloat16", "int8", "int4", "top_k"])
def test_no_memory_as_long_as_the_vector(code: str) -> None:
    codec, g = fast(CODES[code]), some(0, 1_000_000, np.float32)
    out = np.empty_like(g)
    message = codec.encode(g)
    codec.decode(message, out)
    tracemalloc.start()
    try:
        assert codec.encode(g).ctypes.data == message.ctypes.data
        codec.decode(message, out)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
