"""Every distribution against its exact law, and what a draw may depend on."""

import math
import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numba import njit
from scipy import stats

import asyncsgd as asgd
from asyncsgd.core import random as plain
from asyncsgd.simulation import durations as du
from asyncsgd.simulation.durations import kernels

DRAWS = 40_000


@njit
def draw_many(lowered, worker, count, seed):
    values = np.empty(count)
    for k in range(count):
        values[k] = kernels.draw(lowered, worker, k, seed)
    return values


@njit
def finish_one(lowered, worker, begin, work):
    return kernels.finish(lowered, worker, begin, work)


def sample(durations, worker=0, count=DRAWS, seed=1):
    return draw_many(durations.lowered, worker, count, np.uint64(seed))


LAWS = {
    "exponential": (du.exponential([2.5]), stats.expon(scale=2.5)),
    "gamma": (du.gamma([2.0], 3.0), stats.gamma(3.0, scale=2.0 / 3.0)),
    "gamma, shape 1": (du.gamma([2.0], 1.0), stats.gamma(1.0, scale=2.0)),
    "gamma, small shape": (du.gamma([2.0], 0.3), stats.gamma(0.3, scale=2.0 / 0.3)),
    "gamma, large shape": (du.gamma([2.0], 400.0), stats.gamma(400.0, scale=2.0 / 400.0)),
    "lognormal": (du.lognormal([3.0], 0.7), stats.lognorm(0.7, scale=3.0)),
    "uniform": (du.uniform([0.5], 2.0), stats.uniform(0.5, 1.5)),
    "uniform from 0": (du.uniform(0.0, [2.0]), stats.uniform(0.0, 2.0)),
    "truncated normal": (du.truncated_normal([1.0], 0.8), stats.truncnorm(-1.25, np.inf, loc=1.0, scale=0.8)),
    "half normal, nearly": (du.truncated_normal([0.01], 1.0), stats.truncnorm(-0.01, np.inf, loc=0.01, scale=1.0)),
    "Pareto": (du.pareto([2.0], 6.0), stats.pareto(6.0, scale=2.0)),
}


@pytest.mark.parametrize("name", LAWS)
def test_draws_follow_the_law(name):
    durations, law = LAWS[name]
    values = sample(durations)
    assert (values > 0).all()
    assert stats.kstest(values, law.cdf).pvalue > 1e-3
    mean, variance, kurtosis = law.stats("mvk")
    assert abs(values.mean() - mean) < 5 * np.sqrt(variance / DRAWS)
    assert abs(values.var() - variance) < 5 * variance * np.sqrt((kurtosis + 2) / DRAWS)
    assert durations.means == pytest.approx([mean], rel=1e-12)


@pytest.mark.parametrize("name", LAWS)
def test_draws_are_independent_from_job_to_job_and_worker_to_worker(name):
    durations, law = LAWS[name]
    one, two = sample(du.concatenate([durations] * 2), 0), sample(du.concatenate([durations] * 2), 1)
    for a, b in ((one[:-1], one[1:]), (one, two), (one, sample(durations, seed=2))):
        assert abs(stats.spearmanr(a, b).statistic) < 5 / np.sqrt(DRAWS)
    assert stats.kstest(two, law.cdf).pvalue > 1e-3


def test_fixed_is_fixed():
    durations = du.fixed([1.0, 16.0])
    assert [durations.draw(w, k, seed=k) for w in (0, 1) for k in range(3)] == [1.0] * 3 + [16.0] * 3
    assert durations.means.tolist() == [1.0, 16.0]


@pytest.mark.parametrize(
    "durations",
    [
        du.lognormal([3.0], 0.0),
        du.uniform(3.0, [3.0]),
        du.truncated_normal([3.0], 0.0),
        du.measured([[3.0]]),
    ],
)
def test_without_spread_they_are_fixed(durations):
    assert set(sample(durations, count=100)) == {3.0}
    assert durations.means.tolist() == [3.0]


def test_heavy_tails_have_infinite_means():
    assert du.pareto(1.0, [0.5, 1.0, 2.0]).means.tolist() == [np.inf, np.inf, 2.0]
    assert du.lognormal(1.0, [100.0]).means.tolist() == [np.inf]


def test_measured_draws_each_sample_equally_often():
    durations = du.measured([[1.0, 2.0, 2.0, 5.0], [7.0]])
    values, counts = np.unique(sample(durations), return_counts=True)
    assert values.tolist() == [1.0, 2.0, 5.0]
    assert stats.chisquare(counts, DRAWS * np.array([0.25, 0.5, 0.25])).pvalue > 1e-3
    assert set(sample(durations, 1, 50)) == {7.0}
    assert durations.means.tolist() == [2.5, 7.0]


def test_measured_takes_dicts_lists_and_arrays():
    assert du.measured({2: [1.0], 0: (2.0, 4.0), 1: np.array([5])}).means.tolist() == [3.0, 5.0, 1.0]
    assert du.measured({"slow": [9.0], "fast": [1.0]}).means.tolist() == [9.0, 1.0]
    assert du.measured(np.array([[1.0, 3.0], [5.0, 7.0]])).means.tolist() == [2.0, 6.0]


# ------------------------------------------------------------------------- what a draw depends on

parts = st.sampled_from(
    [durations for durations, _ in LAWS.values()] + [du.fixed([2.0]), du.measured([[1.0, 2.0, 3.0]])]
)


@given(st.lists(parts, min_size=2, max_size=6), st.data(), st.integers(-(2**70), 2**70), st.integers(0, 2**40))
def test_changing_one_worker_leaves_the_others_alone(several, data, seed, k):
    changed = data.draw(st.integers(0, len(several) - 1))
    other = [*several]
    other[changed] = data.draw(parts)
    before, after = du.concatenate(several), du.concatenate(other).with_communication(up=1.0).offline(changed, [(0, 1)])
    for worker in set(range(len(several))) - {changed}:
        assert before.draw(worker, k, seed) == after.draw(worker, k, seed)


@given(parts, st.permutations(range(12)))
def test_the_order_of_draws_does_not_matter(durations, order):
    expected = sample(durations, count=12, seed=5)
    assert {k: durations.draw(0, k, 5) for k in order} == dict(enumerate(expected))


@given(st.sampled_from(sorted(LAWS)), st.integers(0, 2**64 - 1))
def test_python_and_compiled_code_draw_the_same(name, seed):
    durations = LAWS[name][0]
    assert [durations.draw(0, k, seed) for k in range(5)] == sample(durations, count=5, seed=seed).tolist()
    assert durations.finish(0, 0.1, 0.2) == finish_one(durations.lowered, 0, 0.1, 0.2) == 0.1 + 0.2


@given(st.integers(0, 2**64 - 1), st.integers(0, 2**20), st.integers(0, 2**40))
def test_streams_are_those_of_the_core(seed, worker, k):
    """The twin spells out how (seed, worker, k) becomes a number; a change here changes everybody's results."""
    state = plain.derive(seed, 0xD07A, worker, k)
    u = (plain.mix((state + plain.GAMMA) & plain.MASK) >> 11) * 2.0**-53
    assert HERE.draw(worker, k, seed) == pytest.approx(-math.log(1 - u), rel=1e-12)
    assert int(MEASURED.draw(worker, k, seed)) == plain.below(state, 5)[1] + 1


HERE = du.exponential(1.0, workers=2**20 + 1)
MEASURED = du.measured(np.tile(np.arange(1.0, 6.0), (2**20 + 1, 1)))


def test_seeds_count_modulo_2_to_the_64_and_large_numbers_are_fine():
    durations = du.exponential([1.0])
    assert durations.draw(0, 3, -1) == durations.draw(0, 3, 2**64 - 1)
    assert durations.draw(0, 3, 0) != durations.draw(0, 3, 1)


# ------------------------------------------------------------------------- the class


def test_scalars_broadcast():
    assert du.fixed(2.0, workers=3).lowered.p[:, 0].tolist() == [2.0] * 3
    assert du.gamma([1.0, 2.0], 3).lowered.p.tolist() == [[1.0, 3.0, 0.0], [2.0, 3.0, 0.0]]
    assert du.gamma(1.0, [2.0, 3.0], workers=2).workers == 2
    assert du.fixed(range(1, 4)).means.tolist() == [1.0, 2.0, 3.0]
    assert du.fixed(np.array([1, 2], np.int8)).means.tolist() == [1.0, 2.0]


def test_concatenate_keeps_everything():
    a = du.measured([[1.0, 2.0], [3.0]]).with_speeds(1, [5.0], [0.5]).with_communication(down=1.0)
    b = du.exponential(2.0, workers=2).with_speeds(0, [1.0, 2.0], [0.0, 1.0], period=4.0)
    c = du.measured([[9.0]]).offline(0, [(3.0, 4.0)]).with_communication(up=[2.0])
    whole = du.concatenate([a, b, c])
    assert whole.workers == 5
    assert whole.means.tolist() == [1.5, 3.0, 2.0, 2.0, 9.0]
    assert whole.lowered.down.tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert whole.lowered.up.tolist() == [0.0, 0.0, 0.0, 0.0, 2.0]
    starts = [0, 2, 4]
    for part, start in zip((a, b, c), starts, strict=True):
        for worker in range(part.workers):
            for begin in (0.0, 1.5, 3.5, 7.0):
                assert whole.finish(start + worker, begin, 2.5) == part.finish(worker, begin, 2.5)
    assert set(sample(whole, 1, 20)) == {3.0}
    assert set(sample(whole, 4, 20)) == {9.0}


def test_values_do_not_change_behind_our_back():
    given_values = np.array([1.0, 2.0])
    samples = np.array([[1.0, 2.0]])
    durations, measured = du.fixed(given_values), du.measured(samples)
    given_values[0] = samples[0, 0] = 9.0
    assert durations.draw(0, 0, 0) == 1.0
    assert measured.means.tolist() == [1.5]
    changed = durations.with_communication(up=1.0).with_speeds(0, [0.0], [2.0])
    assert not durations.lowered.up.any()
    assert durations.finish(0, 0.0, 1.0) == 1.0
    assert changed.finish(0, 0.0, 1.0) == 0.5
    for one in (durations, changed, pickle.loads(pickle.dumps(changed)), du.concatenate([changed, durations])):
        assert all(array.flags.c_contiguous and not array.flags.writeable for array in one.lowered)
        with pytest.raises(ValueError, match="read-only"):
            one.means[0] = 0.0
    with pytest.raises(AttributeError):
        durations.lowered = None


def test_a_pickle_draws_the_same():
    durations = du.gamma([1.0, 2.0], 0.5).with_outages(5.0, 1.0, until=100.0)
    again = pickle.loads(pickle.dumps(durations))
    assert again.draw(1, 4, 2) == durations.draw(1, 4, 2)
    assert again.finish(1, 4.0, 20.0) == durations.finish(1, 4.0, 20.0)


def test_repr_is_short():
    assert repr(du.fixed([1.0])) == "<Durations: 1 worker, fixed>"
    mixed = du.concatenate([du.fixed(1.0, workers=2), du.pareto([1.0], 2.0)]).offline([0, 1], [(1.0, 2.0)])
    assert repr(mixed) == "<Durations: 3 workers (2 fixed, 1 Pareto), 2 changing speeds>"


def test_importing_asyncsgd_loads_neither_numba_nor_pyarrow():
    code = (
        "import sys, asyncsgd as a; a.durations.fixed([1.0]).with_communication(up=1.0).means; "
        "print([m for m in ('numba', 'pyarrow', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, encoding="utf-8", check=True)
    assert done.stdout.strip() == "[]"


# ------------------------------------------------------------------------- bad input

SECONDS = "pass positive finite seconds"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: du.fixed([1.0, -2.0]), rf"seconds\[1\] = -2.0 is not a duration; {SECONDS}"),
        (lambda: du.fixed([0.0]), rf"seconds\[0\] = 0.0 is not a duration; {SECONDS}"),
        (lambda: du.fixed(0, workers=2), rf"seconds = 0.0 is not a duration; {SECONDS}"),
        (lambda: du.fixed([np.nan]), r"seconds\[0\] = nan"),
        (lambda: du.fixed([1.0, np.inf]), r"seconds\[1\] = inf"),
        (lambda: du.fixed([]), r"seconds = \[\] has no worker"),
        (lambda: du.fixed([], workers=2), r"seconds = \[\] has no worker"),
        (lambda: du.fixed(1.0), "seconds = 1.0 does not give the number of workers; .*workers=8"),
        (lambda: du.fixed(1.0, workers=0), "workers = 0 must be an integer of at least 1"),
        (lambda: du.fixed(1.0, workers=2.0), "workers = 2.0 must be an integer"),
        (lambda: du.fixed([1.0, 2.0], workers=3), "seconds = .* has 2 values, but workers = 3; pass one value per"),
        (lambda: du.fixed("1.0"), "seconds = '1.0' is not made of numbers"),
        (lambda: du.fixed(["1.0", "2.0"]), r"seconds = \['1.0', '2.0'\] is not made of numbers"),
        (lambda: du.fixed([True]), "is not made of numbers"),
        (lambda: du.fixed([1.0, None]), "is not made of numbers"),
        (lambda: du.fixed(None), "seconds = None is not made of numbers"),
        (lambda: du.fixed([1j]), "is not made of numbers"),
        (lambda: du.fixed({0: 1.0}), "is not made of numbers"),
        (lambda: du.fixed([[1.0], [2.0]]), r"seconds = 'array of shape \(2, 1\)' has too many dimensions"),
        (lambda: du.fixed([[1.0], [2.0, 3.0]]), "is not a flat list of numbers"),
        (lambda: du.fixed(["x"] * 10**5), r"seconds = \['x', 'x', 'x', '...', 'x', 'x'\]"),
        (lambda: du.exponential([1.0, -1.0]), r"means\[1\] = -1.0"),
        (lambda: du.gamma([1.0, 2.0, 3.0], [1.0, 2.0]), "shape = .* has 2 values, but means has 3"),
        (lambda: du.gamma([1.0], 0.0), "shape = 0.0 is not a positive finite number; pass shape > 0"),
        (lambda: du.gamma([0.0], 1.0), r"means\[0\] = 0.0"),
        (lambda: du.lognormal([1.0], -0.5), "sigma = -0.5 is negative or not finite; pass finite sigma >= 0"),
        (lambda: du.lognormal([0.0], 1.0), r"medians\[0\] = 0.0"),
        (lambda: du.uniform([1.0, 3.0], 2.0), r"high\[1\] = 2.0 is below low; swap them \(low = 3.0"),
        (lambda: du.uniform(0.0, [0.0]), r"high\[0\] = 0.0"),
        (lambda: du.uniform(-1.0, [1.0]), "low = -1.0"),
        (lambda: du.truncated_normal([-1.0], 1.0), r"means\[0\] = -1.0"),
        (lambda: du.truncated_normal([1.0], np.nan), "std = nan"),
        (lambda: du.pareto([1.0], -1.0), "shape = -1.0"),
        (lambda: du.pareto([1.0], [1.0, 2.0]), "shape = .* has 2 values, but scale has 1"),
        (lambda: du.pareto(0.0, [1.0]), "scale = 0.0"),
        (lambda: du.measured([]), r"samples = \[\] has no worker"),
        (lambda: du.measured({}), r"samples = \{\} has no worker"),
        (lambda: du.measured([[1.0], []]), r"samples\[1\] = \[\] holds no sample"),
        (lambda: du.measured([1.0, 2.0]), r"samples\[0\] = 1.0 holds no sample; pass one sequence of seconds per"),
        (lambda: du.measured([[1.0], [2.0, -3.0]]), r"samples\[1\]\[1\] = -3.0 is not a duration"),
        (lambda: du.measured({"a": [np.nan]}), r"samples\['a'\]\[0\] = nan"),
        (lambda: du.measured([["x"]]), r"samples\[0\] = \['x'\] is not made of numbers"),
        (lambda: du.measured(np.zeros((0, 3))), "samples = .* is neither a dict nor a list"),
        (lambda: du.measured(np.array([[1.0, 0.0]])), r"samples\[1\] = 0.0"),
        (lambda: du.measured("abc"), "samples = 'abc' is neither a dict nor a list"),
        (lambda: du.concatenate([]), r"parts = \[\] is not a list of durations"),
        (lambda: du.concatenate(du.fixed([1.0])), "parts = .* is not a list of durations"),
        (lambda: du.concatenate([du.fixed([1.0]), [2.0]]), r"parts\[1\] = \[2.0\] is not durations"),
        (lambda: du.fixed([1.0]).with_communication(down=-1.0), "down = -1.0"),
        (lambda: du.fixed([1.0]).with_communication(up=[1.0, 2.0]), "up = .* has 2 values, but workers = 1"),
        (lambda: du.fixed([1.0]).with_communication(up=np.inf), "up = inf"),
        (lambda: du.fixed([1.0]).draw(1, 0, 0), "worker = 1 does not exist; pass one of 0..0"),
        (lambda: du.fixed([1.0]).draw(-1, 0, 0), "worker = -1 does not exist"),
        (lambda: du.fixed([1.0]).finish(7, 0.0, 1.0), "worker = 7 does not exist"),
    ],
)
def test_bad_input_is_named_with_the_fix(call, message):
    with pytest.raises(asgd.errors.BadParameter, match=message) as caught:
        call()
    assert len(str(caught.value)) < 400
