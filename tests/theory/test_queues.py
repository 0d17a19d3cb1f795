"""Queues against brute force over all states, Buzen's generating function at full size, and simulated networks."""

from fractions import Fraction
from itertools import combinations_with_replacement

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.dispatch import Uniform
from asyncsgd.core.errors import BadParameter
from asyncsgd.simulation.schedule import schedule
from asyncsgd.theory import queued_times, queues
from asyncsgd.theory.queueing import Network

PAPER = [10.0] * 900 + [60.0] * 100


def brute_force(means, jobs):
    """Seconds for ``jobs`` gradients by the product form, summed over every way to place the jobs, in fractions."""

    def constant(k):
        total = Fraction(0)
        for places in combinations_with_replacement(means, k):
            product = Fraction(1)
            for mean in places:
                product *= mean
            total += product
        return total

    return float(jobs * constant(jobs) / constant(jobs - 1) / len(means))


@pytest.mark.parametrize("means", [[3], [1, 1], [1, 4], [2, 2, 5], [1, 2, 3, 4, 5]])
def test_exponential_durations_in_exact_arithmetic(means):
    found = queued_times([float(m) for m in means], range(1, 8), variability=1.0)
    assert found == pytest.approx([brute_force([Fraction(m) for m in means], jobs) for jobs in range(1, 8)], rel=1e-12)


def test_a_million_distinct_durations_and_ten_thousand_jobs():
    """Durations i/n: the power sums p_k of Buzen's generating function are known, and k G_k = Σ p_j G_{k-j}."""
    n, jobs = 10**6, 10**4
    k = np.arange(1, jobs + 1, dtype=float)
    # Faulhaber: Σ_i (i/n)^k; the next term is below 1e-9 of the sum for these n and k.
    power = n / (k + 1) + 0.5 + k / (12 * n) - k * (k - 1) * (k - 2) / (720 * n**3)
    scaled = np.ones(jobs + 1)  # G_k k! / p_1^k, which stays near 1
    log_power = np.log(power) - k * np.log(power[0])
    log_factorial = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, jobs + 1)))])
    for size in range(1, jobs + 1):
        reach = min(size, 400)  # further terms are below 1e-300
        weights = np.exp(log_power[:reach] + log_factorial[size - 1] - log_factorial[size - reach : size][::-1])
        scaled[size] = weights @ scaled[size - reach : size][::-1]
    seconds = power[0] / n * scaled[jobs] / scaled[jobs - 1]  # jobs G_jobs / (n G_{jobs-1})
    durations = np.random.default_rng(0).permutation(np.arange(1, n + 1) / n)
    assert queued_times(durations, [jobs], variability=1.0)[0] == pytest.approx(seconds, rel=1e-6)


@pytest.mark.parametrize("variability", [0.0, 0.3, 1.0])
def test_classes_change_nothing_that_matters(variability, monkeypatch):
    durations = np.random.default_rng(1).lognormal(0, 1, 3000)
    shared = queued_times(durations, [10, 300, 3000], variability=variability)
    assert len(Network.of(durations, variability).duration) < 2100
    monkeypatch.setitem(Network.of.__func__.__globals__, "ALONE", 10_000)  # the module is hidden by its function
    assert len(Network.of(durations, variability).duration) == 3000
    assert shared == pytest.approx(queued_times(durations, [10, 300, 3000], variability=variability), rel=1e-5)


def spread(kind, n):
    random = np.random.default_rng(n)
    return {
        "equal": np.ones(n),
        "near": random.uniform(0.9, 1.1, n),
        "two": np.where(np.arange(n) < -(-n // 10), 6.0, 1.0),
        "lognormal": np.exp(random.standard_normal(n)),
        "exponential": 0.05 + random.exponential(1.0, n),
    }[kind]


def simulated(durations, concurrency, iterations, seed=0):
    """Gradients per second in the second half of a simulated run, where every worker takes the same part of the jobs.

    In the long run n · (arrivals of worker i) / seconds is the same for all i, and the slow ones, who are nearly always
    busy, scatter least: workers count by the square of their mean duration.
    """
    plan = schedule(Uniform(concurrency), durations, iterations=iterations, seed=seed)
    half = iterations // 2
    arrivals = np.bincount(plan.job_worker[plan.arrival_job[half:]], minlength=durations.workers)
    weight = durations.means**2 / (durations.means**2).sum()
    return durations.workers * float(weight @ arrivals) / (plan.arrival_time[-1] - plan.arrival_time[half - 1])


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["equal", "near", "two", "lognormal", "exponential"])
def test_fixed_durations_against_simulations(kind):
    errors = []
    for n in (2, 3, 5, 10, 30, 100):
        tau = spread(kind, n)
        slow_to_settle = n >= 30 and kind not in ("equal", "near")
        iterations = 2_000_000 if slow_to_settle else 300_000
        for concurrency in sorted({1, 2, max(1, n // 3), n, 4 * n}):
            rate = simulated(asgd.durations.fixed(tau), concurrency, iterations)
            error = abs(queues(tau, concurrency).seconds * rate / concurrency - 1)
            # 3.1 % and 1 % by the docstring, and what a short simulation scatters
            assert error < (0.035 if n < 5 else 0.02), (
                n,
                concurrency,
            )
            errors.append(error)
    assert np.median(errors) < 0.004  # 0.04 % by the docstring, over longer simulations of more large networks


@pytest.mark.slow
@pytest.mark.parametrize(("variability", "allowed"), [(0.25, 0.015), (0.5, 0.015), (2.0, 0.03)])
def test_variable_durations_against_simulations(variability, allowed):
    for kind, n in (("equal", 2), ("two", 5), ("exponential", 10), ("equal", 30)):
        tau = spread(kind, n)
        for concurrency in (2, n, 3 * n):
            rate = simulated(asgd.durations.gamma(tau, 1 / variability), concurrency, 600_000)
            predicted = queues(tau, concurrency, variability=variability).seconds
            assert predicted * rate / concurrency == pytest.approx(1, abs=allowed), (kind, concurrency)


def test_durations_that_vary_wildly_are_rough_but_not_absurd():
    """The recursion alone gives 3.4 times the time of 3 workers with 2 jobs and c² = 50."""
    random = np.random.default_rng(0)
    samples = random.gamma(1 / 50, 50.0, (3, 4000)) + 1e-3
    tau, varied = samples.mean(axis=1), samples.var(axis=1) / samples.mean(axis=1) ** 2
    for concurrency in (2, 9):
        rate = simulated(asgd.durations.measured(samples), concurrency, 300_000)
        predicted = queues(tau, concurrency, variability=varied)
        assert predicted.seconds * rate / concurrency == pytest.approx(1, abs=0.31)
        assert (predicted.response >= tau * (1 - 1e-12)).all()
        assert predicted.length.sum() == pytest.approx(concurrency)
    rates = np.arange(1, 40) / queued_times([1.0, 2.0, 2.5], range(1, 40), variability=50.0)
    assert (np.diff(rates) >= -1e-12).all()  # one job more slows nobody down


@pytest.mark.parametrize(("concurrency", "expected"), [(10, 15.1), (100, 16.9), (300, 24.1), (1000, 63.4)])
def test_the_papers_workers_pile_up(concurrency, expected):
    assert queues(PAPER, concurrency).seconds == pytest.approx(expected, rel=0.006)


def test_two_equal_workers_and_two_jobs_by_hand():
    """In lock step the two jobs are on different workers half of the time: 3 gradients in 2 seconds, 4/3 s for two."""
    assert queues([1.0, 1.0], 2).seconds == pytest.approx(4 / 3, rel=0.032)


@pytest.mark.parametrize("variability", [0.0, 0.5, 1.0, 3.0])
def test_what_is_exact_for_all_durations(variability):
    assert queues([7.0], 9, variability=variability).seconds == pytest.approx(63.0)  # one worker: one after the other
    assert queues([1.0, 5.0, 6.0], 1, variability=variability).seconds == pytest.approx(4.0)  # one job waits for nobody
    full = queues([1.0, 1.5, 6.0], 500, variability=variability)
    assert full.seconds == pytest.approx(500 * 6 / 3, rel=1e-6)  # the slowest worker is always busy
    assert full.utilisation == pytest.approx([1 / 6, 1 / 4, 1], rel=1e-6)


def test_jobs_are_neither_lost_nor_made():
    random = np.random.default_rng(3)
    for concurrency in (1, 2, 7, 40, 300):
        tau, varied = random.exponential(1.0, 25), random.uniform(0, 2, 25)
        found = queues(tau, concurrency, variability=varied)
        assert found.length.sum() == pytest.approx(concurrency)
        assert found.response.mean() == pytest.approx(found.seconds)
        assert (found.response >= tau * (1 - 1e-12)).all()
        assert found.utilisation.max() <= 1 + 1e-12
        assert found.throughput == pytest.approx(concurrency / found.seconds)


def test_waiting_times_per_worker_against_a_simulation():
    tau = [1.0] * 8 + [5.0] * 2
    plan = schedule(Uniform(20), asgd.durations.fixed(tau), iterations=400_000)
    took = plan.arrival_time - plan.job_time[plan.arrival_job]
    who = plan.job_worker[plan.arrival_job]
    for worker, expected in enumerate(queues(tau, 20).response):
        assert took[who == worker][1000:].mean() == pytest.approx(expected, rel=0.1)


def test_without_the_factor_for_followers_the_slowest_worker_would_be_busy_twice(monkeypatch):
    """The deliberate bug: Reiser's recursion as published, which lets a saturated worker do more than it can."""

    def published(self, concurrencies):
        n, length, throughput = len(self.member), np.zeros_like(self.duration), 0.0
        for jobs in range(1, concurrencies[-1] + 1):
            response = self.duration * (1 + length - self.correction * throughput / n * self.duration)
            throughput = jobs / float(response @ self.share)
            length = throughput / n * response
        return [(jobs / throughput, response)]

    good = queues([1.0, 6.0], 4)
    monkeypatch.setattr(Network, "steps", published)
    bad = queues([1.0, 6.0], 4)
    assert good.utilisation.max() <= 1 < bad.utilisation.max()
    assert bad.seconds < 4 * 6 / 2 <= good.seconds * (1 + 1e-12)


def test_many_concurrencies_at_once_in_any_order():
    tau = [1.0, 2.0, 9.0]
    alone = [queues(tau, c).seconds for c in (5, 1, 5, 30)]
    assert queued_times(tau, [5, 1, 5, 30]).tolist() == alone
    assert queued_times(tau, np.array([5, 1, 5, 30])).tolist() == alone


@pytest.mark.parametrize("bad", [-0.1, float("nan"), [0.1, 0.2], "x"])
def test_bad_input_is_named(bad):
    with pytest.raises(BadParameter, match="variability"):
        queues([1.0, 2.0, 3.0], 2, variability=bad)
    with pytest.raises(BadParameter, match="concurrency = 0"):
        queues([1.0], 0)
    with pytest.raises(BadParameter, match=r"concurrency = 2\.5"):
        queued_times([1.0], [1, 2.5])
    with pytest.raises(BadParameter, match="concurrencies"):
        queued_times([1.0], [])
    with pytest.raises(BadParameter, match="durations"):
        queues([1.0, 0.0], 2)
