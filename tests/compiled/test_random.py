import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from asyncsgd.compiled import random as compiled
from asyncsgd.core import random as plain

words = st.integers(0, 2**64 - 1)


@given(words, words)
def test_streams_are_those_of_the_core(state, key):
    assert int(compiled.mix(np.uint64(state))) == plain.mix(state)
    assert int(compiled.output(np.uint64(state), np.uint64(key))) == plain.output(state, key)
    assert int(compiled.derive(np.uint64(state), np.uint64(key))) == plain.derive(state, key)


@given(words, st.integers(1, 2**32 - 1))
def test_bounded_draws_are_those_of_the_core(state, n):
    after, k = compiled.below(np.uint64(state), n)
    assert (int(after), int(k)) == plain.below(state, n)


def test_normal_numbers_are_standard_normal():
    state, values = np.uint64(3), []
    for _ in range(20_000):
        state, a, b = compiled.normal_pair(np.uint64(state))
        values += [a, b]
    z = np.array(values)
    assert abs(z.mean()) < 5 / np.sqrt(len(z))
    assert abs(z.var() - 1) < 5 * np.sqrt(2 / len(z))
    assert abs((z**4).mean() - 3) < 5 * np.sqrt(96 / len(z))
    assert abs(np.corrcoef(z[::2], z[1::2])[0, 1]) < 5 / np.sqrt(len(z) / 2)
