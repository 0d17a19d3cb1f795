"""What holds for any durations: units, symmetry, the advice against its own table."""

import re
from decimal import Decimal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markers import examples

import asyncsgd as asgd
from asyncsgd.planning.advice import WORTH
from asyncsgd.planning.candidates import SIMPLEST_FIRST, concurrencies, on_everybody
from asyncsgd.planning.terminal import cells
from asyncsgd.planning.workers import GROUPS, measured_workers

few = examples(8)
seconds = st.integers(1, 64).map(lambda k: k / 8)
fixed = st.lists(seconds, min_size=2, max_size=6)
measured = st.lists(st.lists(seconds, min_size=1, max_size=4), min_size=2, max_size=5)

TIMES = ("seconds_per_gradient", "standard_error", "lemma", "queued", "floor", "seconds_to_target")
TIMES += ("guaranteed_seconds",)


def facts(plan):
    return [row.to_dict(None) for row in plan.rows]


def scaled(value, factor):
    return None if value is None else value * factor


@pytest.mark.slow
@given(measured, st.sampled_from([2.0**-10, 0.5, 2.0, 1024.0]), st.booleans())
@few
def test_all_times_have_the_unit_of_the_durations(samples, factor, heterogeneous):
    """Powers of two, so that rounding and ties stay as they are."""
    plan = asgd.plan(samples, heterogeneous=heterogeneous)
    other = asgd.plan([[factor * s for s in own] for own in samples], heterogeneous=heterogeneous)
    for one, two in zip(facts(plan), facts(other), strict=True):
        for key, value in one.items():
            assert two[key] == (scaled(value, factor) if key in TIMES else value), key
    assert other.limit.ratio == plan.limit.ratio
    assert other.limit.seconds == plan.limit.seconds * factor
    assert other.recommended.candidate == plan.recommended.candidate


@given(fixed, st.randoms())
@few
def test_no_formula_depends_on_the_order_of_workers(tau, random):
    shuffled = random.sample(tau, len(tau))
    one, two = asgd.plan(tau), asgd.plan(shuffled)
    assert np.isclose(one.limit.seconds, two.limit.seconds, rtol=1e-12)
    assert one.limit.workers == two.limit.workers
    for mine, theirs in zip(one.rows, two.rows, strict=True):
        if mine.candidate != theirs.candidate:  # the goal of over-selection comes from simulated rounds
            assert mine.candidate.method == "fedavg"
            continue
        for name in ("lemma", "queued", "floor"):
            a, b = getattr(mine.formula, name), getattr(theirs.formula, name)
            assert (a is None and b is None) or np.isclose(a, b, rtol=1e-9)


@given(measured, st.sampled_from([0.0, 1.0, 1000.0]), st.booleans())
@few
def test_the_recommended_row_is_the_best_by_the_figures_of_the_table(samples, noise, heterogeneous):
    plan = asgd.plan(samples, noise=noise, heterogeneous=heterogeneous)
    open_to_choice = [r for r in plan.rows if r.accuracy is not None and r.settled]
    figure = {row: Decimal(cells(plan, row)[-1].removesuffix(" ×").replace(",", "")) for row in open_to_choice}
    best, kept = min(figure.values()), Decimal(str(1 - WORTH))
    chosen = plan.recommended
    assert chosen in open_to_choice
    assert figure[chosen] * kept <= best
    rank = SIMPLEST_FIRST.index
    for row in open_to_choice:
        if rank(row.candidate.method) < rank(chosen.candidate.method):
            assert figure[row] * kept > best
    said = re.search(r"reaches the same accuracy ([\d.,]+) times sooner", plan.reason)
    if said and figure[chosen] > Decimal("0.1"):
        assert abs(Decimal(said[1]) - 1 / figure[chosen]) <= Decimal("0.0500001")
    assert plan.reason.endswith(".")
    assert "\n" not in plan.reason


@given(measured)
@few
def test_what_every_row_must_obey(samples):
    plan = asgd.plan(samples)
    slowest, n = plan.workers.means.max(), plan.workers.count
    for row in plan.rows:
        seen = row.simulated
        assert abs(sum(group.share for group in seen.groups) - 1) < 1e-9
        assert sum(group.workers for group in seen.groups) == row.candidate.workers
        assert max(group.maximum_delay or 0 for group in seen.groups) >= seen.delays.maximum
        assert 0 < row.accuracy.step <= 0.5
        assert row.accuracy.guaranteed >= row.accuracy.gradients  # constants of at least 1
        if not row.candidate.rounds:
            assert abs(seen.delays.average - (row.concurrency - 1)) < 0.02 * row.concurrency
        if row.candidate.method == "federated_async_sgd":
            assert row.seconds >= slowest / n * 0.9  # the floor, up to the noise of a simulation
            assert row.seconds >= plan.workers.means.mean() / row.concurrency * 0.95
        if row.candidate.method == "minibatch_sgd" and row.concurrency == n:
            assert row.seconds >= slowest / n * 0.98  # the mean of the largest is no less than the largest mean


@given(st.integers(2, 10**6))
def test_the_concurrencies_that_are_tried(workers):
    tried = concurrencies(workers)
    assert tried[0] == 1
    assert tried[-1] == workers
    assert tried == sorted(set(tried))
    assert len(tried) <= 7


@given(st.integers(2, 40), st.lists(st.integers(1, 80), min_size=1, max_size=4))
def test_only_algorithm_2_has_more_jobs_in_flight_than_workers(workers, wanted):
    for candidate in on_everybody(workers, wanted):
        assert candidate.concurrency <= workers or candidate.method == "federated_async_sgd"
        assert candidate.build().dispatch.limit(workers) == candidate.concurrency
    assert {c.concurrency for c in on_everybody(workers, wanted) if c.method == "federated_async_sgd"} == set(wanted)


@given(measured, st.data())
def test_the_fastest_workers_keep_their_own_durations(samples, data):
    everybody = measured_workers(samples)
    count = data.draw(st.integers(1, len(samples)))
    some = everybody.fastest(count)
    assert some.workers == count
    assert sorted(some.means) == sorted(everybody.means)[:count]
    low = some.durations.lowered
    own = [low.samples[a:b].tolist() for a, b in zip(low.sample_bounds, low.sample_bounds[1:], strict=False)]
    assert all(kept in samples for kept in own)
    assert some.median == everybody.median


sizes = st.floats(0.05, 20.0)
clusters = st.lists(
    st.tuples(st.sampled_from([0.1, 0.4, 1.0, 2.1, 8.0, 30.0]), st.integers(1, 9)), min_size=1, max_size=4
)


@given(clusters, st.floats(0.0, 0.2), st.randoms())
def test_workers_that_take_about_as_long_are_in_one_group(clusters, jitter, random):
    """Jitter up to 20 % either way is far from a gap of 1.5, wherever it lies; clusters are twice apart or more."""
    tau, member = [], []
    for centre, many in dict(clusters).items():
        tau += [centre * (1 + jitter * random.uniform(-1, 1)) for _ in range(many)]
        member += [centre] * many
    tau, member = [*tau, member[0]], [*member, member[0]]
    group = measured_workers(tau).group
    for centre in set(member):
        assert len({int(group[i]) for i in range(len(tau)) if member[i] == centre}) == 1


@given(st.lists(sizes, min_size=2, max_size=30), st.data())
def test_groups_follow_the_order_and_all_workers(tau, data):
    everybody = measured_workers(tau)
    order = np.argsort(everybody.means, kind="stable")
    names = everybody.group[order]
    assert (np.diff(names) >= 0).all(), "a slower worker is in the same group or in a slower one"
    ratio = everybody.means[order] / everybody.median
    for place, (low, high) in enumerate([(0, 0.5), (0.5, 2.0), (2.0, 8.0), (8.0, np.inf)]):
        own = ratio[names == place]
        if len(own):
            assert own.min() < high * (1 + 1e-9) * 4, GROUPS[place]
            assert own.max() > low / 4, GROUPS[place]
    some = everybody.fastest(data.draw(st.integers(1, len(tau))))
    assert sorted(some.group.tolist()) == names[: some.workers].tolist()


def test_variability_is_that_of_the_samples():
    samples = np.random.default_rng(0).gamma(2.0, 1.0, (3, 500))
    found = measured_workers(samples)
    np.testing.assert_allclose(found.variability, samples.var(axis=1) / samples.mean(axis=1) ** 2)
    assert found.shortest.tolist() == samples.min(axis=1).tolist()
    assert found.longest.tolist() == samples.max(axis=1).tolist()
    assert not measured_workers([1.0, 2.0]).variability.any()
    drawn = measured_workers(asgd.durations.exponential([1.0, 1.0, 1.0, 5.0])).variability
    assert 0.5 < drawn.mean() < 1.5
