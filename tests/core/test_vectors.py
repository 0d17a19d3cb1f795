"""The norm, clipping and x - scale·g, against plain loops."""

import math

import numpy as np
import pytest
from core.twins import ledger

from asyncsgd.core.transforms import Clip
from asyncsgd.core.vectors import BLOCK, norm, subtract_scaled


def true_norm(g):
    return math.sqrt(math.fsum(float(value) ** 2 for value in g))


def test_clipping_keeps_the_norm_and_the_direction():
    random = np.random.Generator(np.random.Philox(key=4))
    for dim in [1, 2, 3, 10, 1000, 5000] * 5:
        g = random.standard_normal(dim) * 10.0 ** random.integers(-5, 6)
        bound = 10.0 ** random.uniform(-3, 3)
        clipped = Clip(bound).apply({}, g, None)
        if true_norm(g) <= bound:
            assert clipped is g
        else:
            assert bound * (1 - 1e-14) <= true_norm(clipped) <= bound * (1 + 1e-15)
            np.testing.assert_allclose(clipped / bound, g / true_norm(g), rtol=1e-14)


def test_clipping_a_huge_update_leaves_its_direction():
    """The squares overflow, the norm does not: the update is clipped, not wiped out."""
    assert norm(np.array([3e200, 4e200])) == pytest.approx(5e200, rel=1e-15)
    assert Clip(10.0).apply({}, np.array([3e200, -4e200]), None) == pytest.approx([6.0, -8.0])
    assert norm(np.array([math.inf, 1.0])) == math.inf


def test_the_norm_is_exact_to_1e_15_and_folds_as_stated():
    random = np.random.Generator(np.random.Philox(key=5))
    lengths = [0, 1, 2, 3, 1023, 1024, 1025, 2047, 2048, 2049, 5000, *random.integers(0, 5001, 20).tolist()]
    for length in lengths:
        g = random.standard_normal(length)
        assert norm(g) == ledger.norm(g.tolist())
        assert norm(g) == pytest.approx(true_norm(g), rel=1e-15, abs=0.0)
        single = g.astype(np.float32)
        assert norm(single) == ledger.norm(single.tolist())


def test_the_norm_of_more_than_one_block_of_rows_folds_as_stated():
    g = np.random.Generator(np.random.Philox(key=6)).standard_normal(16 * 1024 + 1500)
    assert norm(g) == ledger.norm(g.tolist())


@pytest.mark.parametrize("length", [0, 1, 1000, BLOCK - 1, BLOCK, BLOCK + 1, 2 * BLOCK])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_subtract_scaled_is_a_plain_loop(length, dtype):
    random = np.random.Generator(np.random.Philox(key=length))
    x, g = random.standard_normal(length).astype(dtype), random.standard_normal(length).astype(dtype)
    scale = dtype(0.3)
    expected = np.array([a - scale * b for a, b in zip(x, g, strict=True)], dtype=dtype)
    out, before = np.full(length, np.nan, dtype=dtype), x.copy()
    subtract_scaled(x, 0.3, g, out)
    assert out.tobytes() == expected.tobytes()
    assert x.tobytes() == before.tobytes()
    subtract_scaled(x, 0.3, g, x)
    assert x.tobytes() == expected.tobytes()
