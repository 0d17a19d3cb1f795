"""The vector functions against long double, and the vector random numbers against those of the core."""

import math

import numpy as np
import pytest
from numba import njit

from asyncsgd.compiled import elementary
from asyncsgd.compiled.lanes import load, store
from asyncsgd.core import random as plain

WIDTHS = (1, 4, 8)
RNG = np.random.default_rng(0)


def apply(function, x, width=8):
    zeros = (0,) * width

    @njit
    def loop(x, out):
        for i in range(0, len(x), width):
            store(out, i, function(load(x, i, zeros)))

    padded = np.concatenate([x, np.ones(-len(x) % width, x.dtype)])
    out = np.empty_like(padded)
    loop(padded, out)
    return out[: len(x)]


def ulps(found, expected):
    with np.errstate(all="ignore"):
        gap = np.spacing(np.abs(expected.astype(np.float64)))
    return float(np.max(np.abs(found - expected) / gap))


EDGES = np.array(
    [0.0, -0.0, 1e-320, -1e-300, 1.0, -1.0, 709.782712893384, -708.3964185322641, -708.4, -745.1332191019411]
)


def test_exp_is_accurate_to_one_ulp():
    x = np.concatenate([RNG.uniform(-745, 709.78, 200_000), RNG.uniform(-1, 1, 100_000), EDGES])
    assert ulps(apply(elementary.exp, x), np.exp(x.astype(np.longdouble))) < 1.0
    against = np.array([math.exp(value) for value in x])
    assert ulps(apply(elementary.exp, x), against) <= 1.0


def test_exp_at_the_ends():
    x = np.array([np.inf, 709.7827128933841, 1e300, 710.0, -745.2, -750.0, -1e300, -np.inf])
    assert apply(elementary.exp, x).tolist() == [np.inf] * 4 + [0.0] * 4
    assert np.isnan(apply(elementary.exp, np.array([np.nan]))).all()


def test_exp_normal_is_exp():
    x = RNG.uniform(-708, 709, 50_000)
    assert (apply(elementary.exp_normal, x) == apply(elementary.exp, x)).all()


def test_log():
    x = np.concatenate([RNG.random(100_000) + 2.0**-53, 2.0 ** RNG.integers(-999, 999, 999), 1 + RNG.random(50_000)])
    assert ulps(apply(elementary.log, x), np.log(x.astype(np.longdouble))) < 2
    assert apply(elementary.log, np.array([1.0])).tolist() == [0.0]


def test_sigmoid_and_softplus():
    x = RNG.uniform(-40, 40, 100_000)
    wide = x.astype(np.longdouble)
    assert ulps(apply(elementary.sigmoid, x), 1 / (1 + np.exp(-wide))) < 3
    assert ulps(apply(elementary.softplus, x), np.logaddexp(np.longdouble(0), wide)) < 4
    far = np.array([-1e9, -800.0, 800.0, 1e9, np.inf, -np.inf])
    assert apply(elementary.sigmoid, far) == pytest.approx([0, 0, 1, 1, 1, 0])
    assert apply(elementary.softplus, far) == pytest.approx([0, 0, 800, 1e9, np.inf, 0])
    assert np.isnan(apply(elementary.sigmoid, np.array([np.nan]))).all()
    assert np.isnan(apply(elementary.softplus, np.array([np.nan]))).all()


@pytest.mark.parametrize("name", ["exp", "log", "sigmoid", "softplus"])
def test_bits_do_not_depend_on_the_width(name):
    x = RNG.uniform(0.1, 40, 64)
    first, *others = (apply(getattr(elementary, name), x, width) for width in WIDTHS)
    assert all((first == other).all() for other in others)


def test_mix_is_that_of_the_core():
    x = RNG.integers(0, 2**64, 64, dtype=np.uint64)
    assert apply(elementary.mix, x).tolist() == [plain.mix(int(value)) for value in x]


def test_normal_pairs_are_box_and_muller_of_the_cores_stream():
    zeros = (0,) * 4

    @njit
    def draw(states, k, out):
        a, b = elementary.normal_pair(load(states, 0, zeros), k)
        store(out, 0, a)
        store(out, 4, b)

    states = RNG.integers(0, 2**64, 4, dtype=np.uint64)
    for k in range(200):
        out = np.empty(8)
        draw(states, k, out)
        for lane, state in enumerate(states.tolist()):
            u = 1 - (plain.output(state, 2 * k) >> 12) / 2**52
            angle = 2 * math.pi * (plain.output(state, 2 * k + 1) >> 12) / 2**52
            radius = math.sqrt(-2 * math.log(u))
            assert out[lane] == pytest.approx(radius * math.cos(angle), abs=1e-13)
            assert out[4 + lane] == pytest.approx(radius * math.sin(angle), abs=1e-13)
