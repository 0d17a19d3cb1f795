"""Speeds that change: `finish` against a slow twin in exact fractions, and the modifiers that build profiles."""

import math
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markers import examples
from numba import njit
from scipy import stats

from asyncsgd.core.errors import BadParameter
from asyncsgd.simulation import durations as du
from asyncsgd.simulation.durations import kernels


class Twin:
    """A step function, looked up anew for every piece; no skipping of periods."""

    def __init__(self, times, speeds, period=None):
        self.times, self.speeds = [Fraction(t) for t in times], [Fraction(s) for s in speeds]
        self.period = None if period is None else Fraction(period)

    def piece(self, time):
        """(speed at this time, when the next piece begins)."""
        base = Fraction(0) if self.period is None else time // self.period * self.period
        speed, until = Fraction(1), None if self.period is None else base + self.period
        for begin, value in zip(self.times, self.speeds, strict=True):
            if base + begin <= time:
                speed = value
            else:
                return speed, base + begin
        return speed, until

    def never(self, time):
        if self.period is not None:
            edges = [Fraction(0), *self.times, self.period]
            return all(self.piece((a + b) / 2)[0] == 0 for a, b in pairwise(edges) if a < b)
        return self.piece(time)[1] is None and self.piece(time)[0] == 0

    def finish(self, begin, work):
        time, left = Fraction(begin), Fraction(work)
        while not self.never(time):
            speed, until = self.piece(time)
            if speed and (until is None or time + left / speed <= until):
                return float(time + left / speed)
            left -= (until - time) * speed
            time = until
        return math.inf

    def done(self, end):
        """The work done from 0 to end."""
        time, total, end = Fraction(0), Fraction(0), Fraction(end)
        if self.period is not None and end >= self.period:
            return end // self.period * self.per_period() + self.done(end % self.period)
        while time < end:
            speed, until = self.piece(time)
            until = end if until is None else min(until, end)
            total += (until - time) * speed
            time = until
        return total

    def per_period(self):
        """The work done in one period."""
        edges = [Fraction(0), *self.times, self.period]
        return sum((b - a) * speed for (a, b), speed in zip(pairwise(edges), [1, *self.speeds], strict=True))


# Quarters and powers of two: every operation in `finish` is then exact, so the twin must agree to the bit.
quarters = st.integers(0, 60).map(lambda k: k / 4)
powers = st.sampled_from([0.0, 0.0, 0.25, 0.5, 1.0, 2.0, 4.0])
profiles = st.dictionaries(quarters, powers, min_size=1, max_size=6).map(lambda d: dict(sorted(d.items())))
period_after = st.integers(1, 40).map(lambda k: k / 4)
work = st.integers(1, 400).map(lambda k: k / 4)

moments = st.integers(0, 10**8).map(lambda k: k / 1e6)  # no piece so short that the work would take for ever


def with_profile(profile, period=None):
    return du.fixed([1.0, 1.0]).with_speeds(1, list(profile), list(profile.values()), period)


@given(profiles, quarters, work)
def test_finish_agrees_with_the_twin(profile, begin, work):
    durations, twin = with_profile(profile), Twin(profile, profile.values())
    assert durations.finish(1, begin, work) == twin.finish(begin, work)
    assert durations.finish(0, begin, work) == begin + work


@given(profiles, period_after, st.integers(0, 400).map(lambda k: k / 4), work)
def test_finish_agrees_with_the_twin_when_speeds_repeat(profile, more, begin, work):
    period = max(profile) + more
    durations, twin = with_profile(profile, period), Twin(profile, profile.values(), period)
    assert durations.finish(1, begin, work) == twin.finish(begin, work)


@examples(300)
@given(
    st.dictionaries(moments, st.sampled_from([0.0, 0.3, 1.0, 1.7, 1e-3, 50.0]), min_size=1, max_size=6),
    st.none() | st.floats(0.01, 50),
    st.floats(0, 500),
    st.floats(1e-3, 500),
)
def test_the_work_done_until_then_is_the_work(profile, more, begin, work):
    profile = dict(sorted(profile.items()))
    period = None if more is None else max(profile) + more
    twin = Twin(profile, profile.values(), period)
    end = with_profile(profile, period).finish(1, begin, work)
    if math.isinf(end):
        assert twin.never(max([begin, *profile])) or twin.never(begin)
        return
    # A step of rounding in `end` is worth up to 50 times as much work.
    allowed = 1e-9 * work + 200 * math.ulp(end)
    assert float(twin.done(end) - twin.done(begin)) == pytest.approx(work, rel=0, abs=allowed)
    assert end >= begin


@given(st.floats(0, 1e6), st.floats(1e-6, 1e3))
def test_at_speed_1_it_is_that_one_addition(begin, work):
    durations = with_profile({3e6: 0.5}, period=4e6)
    assert durations.finish(1, begin, work) == begin + work
    assert du.fixed([1.0]).finish(0, begin, work) == begin + work


@pytest.mark.parametrize("period", [None, 1e-12, 1.0, 1e300])
@pytest.mark.parametrize("begin", [0.0, 1.0, 1e18, 1e305, math.inf])
@pytest.mark.parametrize("work", [5e-324, 1e-9, 1.0, 1e18, 1e305, math.inf])
def test_extreme_numbers_end(period, begin, work):
    scale = period or 1.0
    times = [0.0, 0.5 * scale, 0.5 * scale * (1 + 1e-9)]
    durations = du.fixed([1.0]).with_speeds(0, times, [0.0, 1e-3, 0.0], period)
    end = durations.finish(0, begin, work)
    assert end >= begin
    if math.inf in (begin, work):
        assert end == math.inf


def test_a_worker_stopped_for_good_never_finishes():
    stopped = du.fixed([1.0]).with_speeds(0, [5.0], [0.0])
    assert stopped.finish(0, 3.0, 2.0) == 5.0
    assert stopped.finish(0, 3.0, 2.1) == math.inf
    assert stopped.finish(0, math.inf, 1.0) == math.inf
    assert du.fixed([1.0]).with_speeds(0, [0.0], [0.0], period=2.0).finish(0, 3.0, 1.0) == math.inf
    assert du.fixed([1.0]).offline(0, [(2.0, math.inf)]).finish(0, 1.0, 1.5) == math.inf


def test_days_and_nights():
    day = du.fixed([1.0]).with_speeds(0, [8.0, 20.0], [0.25, 1.0], period=24.0)
    assert day.finish(0, 0.0, 8.0) == 8.0
    assert day.finish(0, 8.0, 3.0) == 20.0
    assert day.finish(0, 0.0, 15.0) == 24.0
    assert day.finish(0, 0.0, 15.0 * 1000 + 4.0) == 24_004.0
    assert day.finish(0, 24.0 * 5 + 21.0, 4.0) == 24.0 * 5 + 25.0


def test_compiled_code_finishes_at_the_same_time():
    durations = with_profile({1.0: 0.3, 2.0: 0.0, 3.0: 1.7}, period=3.7)

    @njit
    def finish(lowered, begin, work):
        return kernels.finish(lowered, 1, begin, work)

    for begin in np.linspace(0, 20, 37):
        for amount in (0.1, 1.0, 33.3):
            assert durations.finish(1, begin, amount) == finish(durations.lowered, begin, amount)


# ------------------------------------------------------------------------- modifiers


@given(
    st.lists(st.tuples(quarters, st.integers(1, 20)).map(lambda w: (w[0], w[0] + w[1] / 4)), min_size=1, max_size=6),
    quarters,
    work,
)
def test_offline_windows_add_up_whatever_their_order(windows, begin, work):
    """The work is done when the time outside the windows amounts to it; walked in quarters of a second."""
    end = du.fixed([1.0]).offline(0, windows).finish(0, begin, work)
    time, left = begin, work
    while left > 0:
        left -= 0.0 if any(a <= time < b for a, b in windows) else 0.25
        time += 0.25
    assert end == time


@given(profiles, profiles, quarters, work)
def test_profiles_multiply(one, two, begin, work):
    both = with_profile(one).with_speeds(1, list(two), list(two.values()))
    product = {t: Twin(one, one.values()).piece(Fraction(t))[0] * Twin(two, two.values()).piece(Fraction(t))[0]
               for t in sorted({**one, **two})}  # fmt: skip
    assert both.finish(1, begin, work) == Twin(product, product.values()).finish(begin, work)
    assert both.finish(0, begin, work) == begin + work


def test_equal_periods_multiply():
    both = du.fixed([1.0]).with_speeds(0, [1.0], [0.5], period=2.0).with_speeds(0, [0.0, 1.0], [2.0, 1.0], period=2.0)
    assert both.finish(0, 0.0, 2.5) == 2.0
    assert both.finish(0, 0.0, 25.0) == 20.0


def test_several_workers_at_once():
    durations = du.fixed(1.0, workers=4).with_speeds([1, 3], [2.0], [0.0]).offline(range(2), [(0.0, 1.0)])
    assert [durations.finish(w, 0.0, 2.0) for w in range(4)] == [3.0, math.inf, 2.0, 2.0]
    assert durations.lowered.profile_bounds.tolist() == [0, 2, 5, 5, 6]


def windows_of(durations, worker):
    low = durations.lowered
    own = slice(low.profile_bounds[worker], low.profile_bounds[worker + 1])
    assert low.speeds[own].tolist() == [0.0, 1.0] * (len(low.speeds[own]) // 2)
    return low.times[own].reshape(-1, 2)


def test_outages_are_exponential():
    durations = du.fixed(1.0, workers=3).with_outages(every=[10.0, 10.0, 50.0], lasting=2.0, until=60_000.0, seed=4)
    for worker, every in enumerate([10.0, 10.0, 50.0]):
        begin, end = windows_of(durations, worker).T
        gaps = np.concatenate([begin[:1], begin[1:] - end[:-1]])
        assert stats.kstest(gaps, stats.expon(scale=every).cdf).pvalue > 1e-3
        assert stats.kstest(end - begin, stats.expon(scale=2.0).cdf).pvalue > 1e-3
        assert begin[-1] < 60_000.0
        assert len(begin) == pytest.approx(60_000 / (every + 2.0), rel=0.1)


def test_outages_belong_to_a_worker():
    one = du.fixed(1.0, workers=3).with_outages(10.0, 2.0, until=1000.0)
    two = du.exponential(9.0, workers=5).with_outages([10.0, 3.0, 10.0, 1.0, 1.0], [2.0, 3.0, 2.0, 1.0, 1.0], 1000.0)
    for worker in (0, 2):
        np.testing.assert_array_equal(windows_of(one, worker), windows_of(two, worker))
    assert not np.array_equal(windows_of(one, 0), windows_of(one, 1))
    other = du.fixed(1.0, workers=3).with_outages(10.0, 2.0, until=1000.0, seed=1)
    assert not np.array_equal(windows_of(one, 0), windows_of(other, 0))


def test_outages_later_do_not_move_those_before():
    short, long = (du.fixed([1.0]).with_outages(10.0, 2.0, until=until) for until in (100.0, 1000.0))
    first = windows_of(short, 0)
    np.testing.assert_array_equal(windows_of(long, 0)[: len(first)], first)


def test_rare_outages_may_not_come_at_all():
    assert du.fixed([1.0]).with_outages(1e12, 1.0, until=1.0).finish(0, 0.0, 1.0) == 1.0


def test_outages_and_slow_downs_multiply():
    outages = du.fixed([1.0]).with_outages(5.0, 5.0, until=200.0)
    slow = outages.with_speeds(0, [0.0], [0.5])
    for begin in (0.0, 17.0, 60.0):
        assert slow.finish(0, begin, 10.0) == pytest.approx(outages.finish(0, begin, 20.0))


# ------------------------------------------------------------------------- bad input

TWO = du.fixed([1.0, 1.0])
DAILY = TWO.with_speeds(0, [1.0], [0.5], period=2.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TWO.with_speeds(2, [1.0], [1.0]), r"worker = 2 does not exist; pass one of 0..1"),
        (lambda: TWO.with_speeds(-1, [1.0], [1.0]), "worker = -1 does not exist"),
        (lambda: TWO.with_speeds(0.0, [1.0], [1.0]), "worker = 0.0 is not a worker"),
        (lambda: TWO.with_speeds("0", [1.0], [1.0]), "worker = '0' is not a worker"),
        (lambda: TWO.with_speeds([], [1.0], [1.0]), r"worker = \[\] is not a worker"),
        (lambda: TWO.with_speeds([1, 1], [1.0], [1.0]), r"worker = \[1, 1\] names a worker twice"),
        (lambda: TWO.with_speeds(0, [1.0, 2.0], [1.0]), r"speeds = \[1.0\] has 1 values, but times has 2"),
        (lambda: TWO.with_speeds(0, [], []), r"times = \[\] is empty"),
        (lambda: TWO.with_speeds(0, [2.0, 1.0], [1.0, 1.0]), r"times\[1\] = 1.0 is not after the one before"),
        (lambda: TWO.with_speeds(0, [1.0, 1.0], [1.0, 1.0]), r"times\[1\] = 1.0 is not after the one before"),
        (lambda: TWO.with_speeds(0, [-1.0], [1.0]), r"times\[0\] = -1.0"),
        (lambda: TWO.with_speeds(0, [1.0], [-1.0]), r"speeds\[0\] = -1.0"),
        (lambda: TWO.with_speeds(0, [math.nan], [1.0]), r"times\[0\] = nan"),
        (lambda: TWO.with_speeds(0, [1.0], [math.inf]), r"speeds\[0\] = inf"),
        (lambda: TWO.with_speeds(0, ["noon"], [1.0]), r"times = \['noon'\] is not made of numbers"),
        (lambda: TWO.with_speeds(0, [1.0], [1.0], period=0.0), "period = 0.0"),
        (lambda: TWO.with_speeds(0, [1.0], [1.0], period=-2.0), "period = -2.0"),
        (lambda: TWO.with_speeds(0, [0.0, 2.0], [1.0, 1.0], period=2.0), r"times\[1\] = 2.0 lies outside the period"),
        (lambda: DAILY.with_speeds(0, [1.0], [1.0]), "worker = 0 has speeds that repeat every 2 s, .* do not repeat"),
        (lambda: DAILY.with_speeds(0, [1.0], [1.0], period=3.0), "repeat every 2 s, .* repeat every 3 s; write the"),
        (lambda: DAILY.offline(0, [(1.0, 2.0)]), "worker = 0 has speeds that repeat"),
        (lambda: TWO.offline(0, []), r"windows = \[\] is not a list of windows"),
        (lambda: TWO.offline(0, 3.0), "windows = 3.0 is not a list of windows"),
        (lambda: TWO.offline(0, (1.0, 2.0)), r"windows\[0\] = 1.0 is not a window"),
        (lambda: TWO.offline(0, [(2.0, 1.0)]), r"windows\[0\] = \(2.0, 1.0\) is not a window; pass a list of \(begin"),
        (lambda: TWO.offline(0, [(0.0, 1.0), (1.0, 1.0)]), r"windows\[1\]"),
        (lambda: TWO.offline(0, [(-1.0, 1.0)]), r"windows\[0\]"),
        (lambda: TWO.offline(0, [(0.0, math.nan)]), r"windows\[0\]"),
        (lambda: TWO.offline(0, [(math.inf, math.inf)]), r"windows\[0\]"),
        (lambda: TWO.offline(0, [(0.0, 1.0, 2.0)]), r"windows\[0\]"),
        (lambda: TWO.offline(5, [(0.0, 1.0)]), "worker = 5 does not exist"),
        (lambda: TWO.with_outages(0.0, 1.0, 10.0), "every = 0.0"),
        (lambda: TWO.with_outages(1.0, -1.0, 10.0), "lasting = -1.0"),
        (lambda: TWO.with_outages([1.0] * 3, 1.0, 10.0), "every = .* has 3 values, but workers = 2"),
        (lambda: TWO.with_outages(1.0, 1.0, math.inf), "until = inf"),
        (lambda: TWO.with_outages(1.0, 1.0, 1e12), r"until = 1000000000000.0 would make about 1.0e\+12 outages"),
        (lambda: TWO.with_outages(1.0, 1.0, 10.0, seed=0.5), "seed = 0.5 is not an integer"),
    ],
)
def test_bad_input_is_named_with_the_fix(call, message):
    with pytest.raises(BadParameter, match=message):
        call()
