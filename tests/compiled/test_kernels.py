"""The compiled passes of a server give the bits of NumPy's, with any number of threads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markers import examples

from asyncsgd.compiled import kernels as compiled
from asyncsgd.core.kernels import AdamNumbers, Kernels, pieces
from asyncsgd.core.layout import Ranges

SPECIAL = [0.0, -0.0, np.inf, -np.inf, np.nan, 1e-42, -1e-40, 3e38]


@pytest.fixture(autouse=True)
def short_blocks(monkeypatch):
    """Vectors of a few thousand numbers are cut into blocks for several threads."""
    monkeypatch.setattr(compiled, "BLOCK", 1000)
    monkeypatch.setattr(compiled, "LONG", 2500)


def vector(random, length, dtype, special):
    values = np.ldexp(random.standard_normal(length), random.integers(-30, 30, length)).astype(dtype)
    if special:
        places = random.random(length) < 0.05
        values[places] = random.choice(np.array(SPECIAL), places.sum()).astype(dtype)
    return values


def ranges_of(random, length, number) -> Ranges:
    bounds = np.unique(random.integers(0, length + 1, 2 * number))
    return tuple((int(a), int(b)) for a, b in zip(bounds[::2], bounds[1::2], strict=False))


def bits(values) -> bytes:
    """All bits, except that one NaN is like another."""
    values = np.atleast_1d(values)
    return np.where(np.isnan(values), values.dtype.type(np.nan), values).tobytes()


CASES = {
    "length": st.sampled_from([1, 2, 7, 999, 1024, 1025, 2049, 2500, 6001]),
    "dtype": st.sampled_from([np.float32, np.float64]),
    "threads": st.sampled_from([1, 2, 3]),
    "in_place": st.booleans(),
    "flag": st.booleans(),
    "special": st.booleans(),
    "seed": st.integers(0, 2**32),
}


@examples(200, deadline=None)
@given(**CASES, excluded=st.integers(0, 5), decay=st.sampled_from([0.0, 0.1, 1.0]))
def test_adamw(length, dtype, threads, in_place, flag, special, seed, excluded, decay):
    random = np.random.default_rng(seed)
    d = vector(random, length, dtype, special)
    d.flags.writeable = bool(seed % 2)
    x, m, v, largest = (vector(random, length, dtype, special) for _ in range(4))
    ranges = ranges_of(random, length, excluded)
    ends = []
    for kernels in (Kernels(), compiled.CompiledKernels(threads)):
        now, memory = x.copy(), (m.copy(), np.abs(v), np.abs(largest) if flag else None)
        for count in (1, 2):
            step = 0.01 * count
            numbers = AdamNumbers(0.9, 0.999, 1e-8, 1 - 0.9**count, 1 - 0.999**count, step, 1 - step * decay)
            out = now if in_place else np.empty_like(now)
            view = now.view()
            view.flags.writeable = False
            with np.errstate(all="ignore"):
                kernels.adamw(view, d, memory, numbers, ranges, out)
            now = out
        ends.append([now, *(array for array in memory if array is not None)])
    for mine, theirs in zip(*ends, strict=True):
        assert bits(mine) == bits(theirs)


@examples(100, deadline=None)
@given(**CASES)
def test_momentum(length, dtype, threads, in_place, flag, special, seed):
    random = np.random.default_rng(seed)
    x, d, m = (vector(random, length, dtype, special) for _ in range(3))
    ends = []
    for kernels in (Kernels(), compiled.CompiledKernels(threads)):
        now, mean = x.copy(), m.copy()
        for step in (0.1, 1 / 3):
            out = now if in_place else np.empty_like(now)
            with np.errstate(all="ignore"):
                kernels.momentum(now, d, mean, step, 0.9, flag, out)
            now = out
        ends.append([now, mean])
    for mine, theirs in zip(*ends, strict=True):
        assert bits(mine) == bits(theirs)


@examples(100, deadline=None)
@given(**CASES)
def test_subtract_scale_and_norm(length, dtype, threads, in_place, flag, special, seed):
    random = np.random.default_rng(seed)
    x, g = vector(random, length, dtype, special), vector(random, length, dtype, flag)
    ends = []
    for kernels in (Kernels(), compiled.CompiledKernels(threads)):
        x1, x2 = x.copy(), x.copy()
        with np.errstate(all="ignore"):
            kernels.subtract(x1, 1 / 3, g, x1 if in_place else x2)
            scaled = g.copy() if in_place else np.empty_like(g)
            kernels.scale(scaled if in_place else g, 1 / 7, scaled)
            ends.append([x1, x2, scaled, kernels.norm(g)])
    for mine, theirs in zip(*ends, strict=True):
        assert bits(mine) == bits(theirs)


def test_the_norm_of_huge_and_of_no_numbers():
    kernels = compiled.CompiledKernels(2)
    assert kernels.norm(np.array([3e200, 4e200])) == Kernels().norm(np.array([3e200, 4e200]))
    assert kernels.norm(np.zeros(0)) == 0.0


def test_pieces_cover_the_vector():
    assert [(part.start, part.stop, decays) for part, decays in pieces(10, ((0, 2), (5, 10)))] == [
        (0, 2, False), (2, 5, True), (5, 10, False),
    ]  # fmt: skip


def test_an_error_in_a_helper_thread_is_raised():
    kernels = compiled.CompiledKernels(2)

    def fail(part, tile):
        raise ValueError("too bad")

    with pytest.raises(ValueError, match="too bad"):
        kernels._spread(8, fail, np.dtype(np.float32))


def test_every_part_is_computed_once_by_any_number_of_threads():
    for threads in (1, 2, 4):
        kernels, seen = compiled.CompiledKernels(threads), []
        kernels._spread(50, lambda part, tile, seen=seen: seen.append(part), np.dtype(np.float64))
        assert sorted(seen) == list(range(50))


@examples(200, deadline=None)
@given(
    CASES["length"], CASES["dtype"], CASES["special"], CASES["seed"], st.sampled_from([1, 100, 1000, 1024, 4096, 9999])
)
def test_the_norm_of_a_growing_vector(length, dtype, special, seed, step):
    g = vector(np.random.default_rng(seed), length, dtype, special)
    part = np.full(length, np.nan, dtype)
    norm = compiled.GrowingNorm(part)
    with np.errstate(all="ignore"):
        for start in range(0, length, step):
            stop = min(start + step, length)
            part[start:stop] = g[start:stop]
            norm.written(stop)
        found = norm.length()
        assert bits(found) == bits(Kernels().norm(g))
    assert not np.isfinite(found) or np.isfinite(g).all()
