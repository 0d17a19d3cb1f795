from itertools import combinations

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.dispatch import FirstOf
from asyncsgd.core.errors import BadParameter
from asyncsgd.simulation.schedule import schedule
from asyncsgd.theory import over_selection_time


def test_against_every_subset_ties_included():
    random = np.random.default_rng(0)
    for _ in range(20):
        tau = [float(t) for t in random.integers(1, 6, random.integers(1, 9))]
        asked = int(random.integers(1, len(tau) + 1))
        goal = int(random.integers(1, asked + 1))
        rounds = [sorted(chosen)[goal - 1] for chosen in combinations(tau, asked)]
        assert over_selection_time(tau, goal, asked) == pytest.approx(np.mean(rounds), rel=1e-12)


def test_a_million_workers_against_a_known_mean():
    """The k-th of m drawn from 1, ..., n has mean k (n + 1) / (m + 1)."""
    n, asked, goal = 10**6, 13_000, 10_000
    tau = np.arange(n, 0, -1.0)
    assert over_selection_time(tau, goal, asked) == pytest.approx(goal * (n + 1) / (asked + 1), rel=1e-9)


def test_against_a_simulation():
    tau = np.random.default_rng(1).lognormal(0, 1, 40)
    plan = schedule(FirstOf(6, 9), asgd.durations.fixed(tau), iterations=120_000)
    rounds = np.diff(plan.arrival_time[5::6], prepend=0.0)
    expected = over_selection_time(tau, 6, 9)
    assert abs(rounds.mean() - expected) < 5 * rounds.std() / np.sqrt(len(rounds))


def test_everybody_waits_for_the_slowest():
    assert over_selection_time([3.0, 1.0, 2.0], 3, 3) == 3.0
    assert over_selection_time([3.0, 1.0, 2.0], 1, 3) == 1.0


@pytest.mark.parametrize(("goal", "asked"), [(2, 1), (1, 4), (0, 2), (1, 0)])
def test_bad_input_is_named(goal, asked):
    with pytest.raises(BadParameter, match=r"asked|goal"):
        over_selection_time([1.0, 2.0, 3.0], goal, asked)
