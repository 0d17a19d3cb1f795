"""Plans whose answer is known beforehand."""

import io
import math
import re
from dataclasses import replace

import numpy as np
import pytest
from rich.console import Console

import asyncsgd as asgd
from asyncsgd.planning import terminal
from asyncsgd.planning.advice import WORTH, advise
from asyncsgd.planning.workers import measured_workers
from asyncsgd.theory import async_delays, limits, over_selection_time

PAPER = [10.0] * 900 + [60.0] * 100


def rows_of(plan, method):
    return {row.concurrency: row for row in plan.at(method)}


@pytest.fixture(scope="module")
def paper():
    return asgd.plan(PAPER, concurrency=[10, 100, 300, 1000], heterogeneous=True)


def test_the_papers_example_by_lemma_with_queues_and_simulated(paper):
    """The simulated times, for as many gradients as jobs in flight, are those of an independent simulation."""
    found = rows_of(paper, "federated_async_sgd")
    for jobs, simulated, queued in ((10, 15.1, 15.1), (100, 16.9, 16.9), (300, 24.1, 24.2), (1000, 62.0, 63.7)):
        row = found[jobs]
        assert row.formula.lemma * jobs == pytest.approx(15.0)
        assert row.formula.queued * jobs == pytest.approx(queued, abs=0.05)
        assert row.seconds * jobs == pytest.approx(simulated, rel=0.03)
        assert row.formula.floor * jobs == pytest.approx(jobs * 60 / 1000)
    batch = rows_of(paper, "minibatch_sgd")[10]
    assert batch.formula.lemma * 10 == pytest.approx(42.566, abs=1e-3)
    assert batch.seconds * 10 == pytest.approx(over_selection_time(PAPER, 10, 10), rel=0.01)


def test_with_few_jobs_in_flight_and_data_that_differ_algorithm_2_wins():
    plan = asgd.plan(PAPER, concurrency=10, heterogeneous=True)
    assert plan.recommended.candidate.method == "federated_async_sgd"
    assert "constant step" in plan.reason
    assert "2.3 times faster than mini-batch SGD with 10 workers per batch" in plan.reason


def test_with_data_that_differ_what_favours_the_fast_is_shown_and_never_recommended(paper):
    shown = {row.candidate.method for row in paper.rows}
    assert shown == {"minibatch_sgd", "fedavg", "async_sgd", "delay_adaptive", "federated_async_sgd"}
    for row in paper.rows:
        fair = row.candidate.method in ("minibatch_sgd", "federated_async_sgd") or row.candidate.goal == row.concurrency
        assert (row.accuracy is not None) == fair
    assert paper.recommended.candidate.method == "minibatch_sgd"
    assert "10% slow ones would give 2% of the gradients" in paper.reason
    alike = asgd.plan(PAPER)
    assert alike.recommended.seconds_to_target < paper.recommended.seconds_to_target
    assert alike.reason != paper.reason


@pytest.mark.parametrize("workers", [2, 3, 8, 50])
def test_equal_workers_have_nothing_to_gain_and_are_told_so(workers):
    plan = asgd.plan([0.3] * workers)
    assert plan.recommended.candidate.method == "minibatch_sgd"
    assert plan.recommended.concurrency == workers
    assert "asynchrony would not pay here, as workers wait only 0% of the time" in plan.reason
    assert "no other method reaches the same accuracy sooner" in plan.reason
    assert plan.limit.ratio == pytest.approx(1.0)
    busy, batch = rows_of(plan, "async_sgd")[workers], rows_of(plan, "minibatch_sgd")[workers]
    assert busy.seconds == pytest.approx(batch.seconds)
    assert busy.seconds_to_target == pytest.approx(batch.seconds_to_target)


def test_a_straggler_that_never_changes_is_best_left_out():
    plan = asgd.plan([1.0] * 9 + [10.0])
    assert (plan.recommended.candidate.method, plan.recommended.candidate.workers) == ("minibatch_sgd", 9)
    assert "a batch takes 1 s without the slowest worker and 10 s with" in plan.reason


def test_like_workers_are_one_group_wherever_they_lie():
    """Eight workers of 8 ± 0.4 s beside sixteen of 1 s lay on both sides of a border at 8 times the median."""
    tau = [1.0] * 16 + np.linspace(7.6, 8.4, 8).tolist()
    plan = asgd.plan(tau, concurrency=24)
    assert [(group.name, group.workers) for group in plan.baseline.simulated.groups] == [("typical", 16), ("slow", 8)]
    assert plan.to_dict()["groups"] == {"fast": 0, "typical": 16, "slow": 8, "straggling": 0}
    for centre in (2.0, 4.0, 8.0, 16.0):
        assert len(set(measured_workers([1.0] * 16 + [centre - 0.1, centre, centre + 0.1]).group[16:])) == 1
    assert len(set(measured_workers([0.49, 0.51] + [1.0] * 16).group[:2])) == 1


def test_a_spread_without_gaps_is_still_divided():
    """Otherwise fast and slow workers would be one group, whose share is always fair."""
    group = measured_workers(np.geomspace(0.05, 20.0, 60)).group
    assert np.unique(group).tolist() == [0, 1, 2, 3]
    plan = asgd.plan(np.geomspace(0.5, 8.0, 12).tolist(), concurrency=12, heterogeneous=True)
    assert rows_of(plan, "async_sgd")[12].biased


def test_the_figures_of_the_table_do_not_contradict_the_sentence_beside_them():
    """0.1875 and 0.1737 were shown as 0.19 and 0.17, beside "no other method would be more than 10% faster"."""
    plan = asgd.plan([1.2, 1.5, 1.4, 1.5, 9.0], noise=5.0, concurrency=5)
    assert "no other method would save more than 10% of the time" in plan.reason
    figures = [float(row[-1].removesuffix(" ×")) for row in terminal.best(plan)]
    assert figures[plan.best().index(plan.recommended)] * (1 - WORTH) <= min(figures)
    shown = Console(width=90, file=io.StringIO())
    shown.print(plan)
    assert re.search(r"→ mini-batch, 4 fastest .* 0\.188 ×", shown.file.getvalue())
    assert re.search(r"0\.174 ×", shown.file.getvalue())


def test_a_simulation_that_had_not_settled_does_not_contradict_the_sentence():
    plan = asgd.plan([1.0] * 7 + [1e6])
    rows = [row for row in plan.rows if not row.settled]
    assert rows
    quicker = replace(rows[0], simulated=replace(rows[0].simulated, seconds=plan.recommended.seconds / 10))
    said = advise([quicker, *(row for row in plan.rows if row is not rows[0])], plan.workers, heterogeneous=False)
    assert said.row is plan.recommended
    assert "no other method whose simulation settled would save more than 10% of the time" in said.reason
    assert "no other method would save" in plan.reason


def test_a_method_that_no_theorem_covers_gets_no_step():
    plan = asgd.plan([1.0, 1.0, 4.0], heterogeneous=True, concurrency=3)
    (row,) = plan.at("delay_adaptive")
    with pytest.raises(asgd.errors.UsageError, match="no theorem covers delay-adaptive if the data differ"):
        row.method(smoothness=2.0)


def test_what_a_plan_takes_for_granted_about_the_data_is_said():
    assert "data that are alike on all workers" in terminal.assumptions(asgd.plan([1.0, 2.0], concurrency=2))
    assert "alike" not in terminal.assumptions(asgd.plan([1.0, 2.0], concurrency=2, heterogeneous=True))


def test_random_durations_of_like_workers_make_asynchrony_pay():
    samples = np.random.default_rng(0).exponential(1.0, (20, 200))
    plan = asgd.plan(samples)
    assert plan.recommended.candidate.method in ("async_sgd", "delay_adaptive")
    assert plan.recommended.concurrency == 20
    batch = rows_of(plan, "minibatch_sgd")[20]
    expected = sum(1 / k for k in range(1, 21)) / 20  # the mean of the largest of 20 exponentials, per gradient
    assert batch.seconds == pytest.approx(expected, rel=0.05)
    assert plan.recommended.seconds == pytest.approx(1 / 20, rel=0.05)


def test_without_noise_one_worker_is_enough():
    plan = asgd.plan([1.0, 1.5, 4.0], noise=0.0)
    assert plan.recommended.candidate.workers == plan.recommended.concurrency == 1
    assert plan.recommended.accuracy.gradients == pytest.approx(100)  # A = L r0 / ε and nothing else
    assert plan.limit.workers == 1
    assert plan.limit.ratio == pytest.approx(1.0)


def test_why_one_worker_is_enough_is_the_true_reason():
    assert "at this noise" in asgd.plan([1.0, 1.5, 4.0], noise=0.0).reason
    assert "all others together would give only 2% of the gradients" in asgd.plan([1.0, 100.0, 100.0]).reason
    assert "only one job may be in flight" in asgd.plan([1.0, 3.0], concurrency=1).reason
    plain = asgd.plan([1.0] * 3, noise=0.0)
    assert plain.reason.startswith("Use plain SGD, one gradient at a time, on a worker drawn for each:")


def test_the_recommended_row_is_shown_although_another_is_a_little_faster():
    """A batch of 5 is within 10% of a batch of 12 where there is hardly any noise."""
    plan = asgd.plan([1.0] * 12, noise=1.0)
    assert plan.recommended.concurrency == 5
    assert plan.recommended in plan.best()
    shown = Console(width=80, file=io.StringIO())
    shown.print(plan)
    assert re.search(r"→ mini-batch +5 ", shown.file.getvalue())


def test_wild_durations_are_not_taken_for_queues_that_still_fill():
    """A formula with queues that is too long says nothing about the simulated run."""
    wild = [0.02] * 30 + [1.5]
    plan = asgd.plan([wild, wild, [0.01] * 20], concurrency=[1, 2, 3], heterogeneous=True)
    assert plan.workers.variability.max() > 4
    assert all(row.settled for row in plan.at("federated_async_sgd"))
    assert plan.rows[-1].formula.least <= plan.rows[-1].formula.queued
    assert any("trust the simulated one" in note for note in plan.notes())


def test_a_worker_that_hardly_ever_answers_is_not_recommended():
    plan = asgd.plan([1.0] * 7 + [1e6])
    loose = [row for row in plan.rows if not row.settled]
    assert {row.candidate.method for row in loose} >= {"async_sgd", "delay_adaptive"}
    assert plan.recommended.settled
    assert plan.recommended.candidate.workers == 7
    assert any("had not settled" in note for note in plan.notes())


def test_queues_that_are_still_filling_are_not_taken_for_the_long_run():
    """One worker 200 times slower among 2000: its queue takes some million gradients to fill."""
    plan = asgd.plan([1.0] * 1999 + [200.0], concurrency=[1, 500], heterogeneous=True)
    alone, crowded = plan.at("federated_async_sgd")
    assert alone.settled
    assert crowded.seconds < crowded.formula.floor
    assert not crowded.settled
    assert not crowded.to_dict(None)["settled"]
    assert plan.recommended is not crowded


def test_fixed_durations_give_the_known_complexities():
    """The orders of `theory.limits`, derived from bounds and simulated delays here, from closed forms there."""
    tau, noise = np.array([1.0, 1.3, 1.7, 2.0, 2.2, 3.1, 8.0, 9.5]), 30.0
    plan = asgd.plan(list(tau), noise=noise, epsilon=0.001)
    known = limits(tau, smoothness=1.0, gap=1000.0, epsilon=1.0, noise_variance=noise)
    everybody = len(tau)
    assert rows_of(plan, "minibatch_sgd")[everybody].seconds_to_target == pytest.approx(known.minibatch, rel=1e-9)
    busy = rows_of(plan, "async_sgd")[everybody]
    assert busy.seconds == pytest.approx(1 / (1 / tau).sum(), rel=2e-3)
    assert busy.seconds_to_target == pytest.approx(known.constant_step, rel=0.05)
    adaptive = rows_of(plan, "delay_adaptive")[everybody]
    assert known.delay_adaptive * 0.99 <= adaptive.seconds_to_target <= 4 / 3 * known.delay_adaptive
    assert plan.limit.seconds == pytest.approx(known.optimum)
    fastest = [row for row in plan.rows if row.candidate.workers == known.best_synchronous_workers]
    fastest = [row for row in fastest if row.candidate.method == "minibatch_sgd"]
    assert min(row.seconds_to_target for row in fastest) == pytest.approx(known.best_synchronous, rel=1e-9)
    assert plan.recommended.seconds_to_target * (1 - WORTH) <= 1.01 * min(
        row.seconds_to_target for row in plan.rows if row.settled
    )


def test_delays_and_steps_are_those_of_the_theorems():
    tau = [1.0, 1.0, 1.0, 4.5]
    plan = asgd.plan(tau, noise=5.0)
    busy = rows_of(plan, "async_sgd")[4]
    expected = async_delays(tau)
    assert busy.simulated.delays.average == pytest.approx(3.0, abs=0.01)
    assert busy.simulated.delays.maximum == expected.maximum
    assert busy.accuracy.step == pytest.approx(1 / (2 * math.sqrt(4 * expected.maximum)))
    assert rows_of(plan, "delay_adaptive")[4].accuracy.step == pytest.approx(1 / 16)
    assert rows_of(plan, "minibatch_sgd")[4].accuracy.step == pytest.approx(1 / (2 * math.sqrt(12)))
    typical, slow = busy.simulated.groups
    assert (typical.name, typical.workers, slow.name, slow.workers) == ("typical", 3, "slow", 1)
    assert slow.share == pytest.approx((1 / 4.5) / (3 + 1 / 4.5), rel=0.01)
    assert slow.average_delay == pytest.approx(expected.per_worker[3], rel=0.01)
    assert typical.average_delay == pytest.approx(expected.per_worker[0], rel=0.01)


def test_the_heterogeneous_bound_counts_noise_and_differences():
    """Theorem 3 up to constants: A (√(τ_C τ_max) + σ²/ε + (4/3) ζ²/ε + √(τ_C mean(ζ² (τ_i+1))/ε))."""
    plan = asgd.plan([1.0, 2.0, 3.0, 6.0], heterogeneous=True, noise=7.0, heterogeneity=3.0, epsilon=0.1)
    for row in plan.at("federated_async_sgd"):
        delays = row.simulated.delays
        own = np.mean([3.0 * (delays.per_worker[i] + 1) for i in range(4)])
        drift = math.sqrt(delays.concurrency * own)
        lead = max(1.0, math.sqrt(delays.concurrency * (delays.maximum + 1)))
        assert row.accuracy.gradients == pytest.approx(10 * (lead + 7 + 4 * 3 / 3 + drift))
        assert row.accuracy.theorem == "Theorem 3"
    batch = rows_of(plan, "minibatch_sgd")
    assert batch[4].accuracy.gradients == pytest.approx(10 * (4 + 7))  # everybody: no difference is left
    assert batch[2].accuracy.gradients == pytest.approx(10 * (2 + 7 + 3 * 2 / 3))


def test_the_best_fraction_of_over_selection_is_best_among_all():
    tau = sorted(np.random.default_rng(3).lognormal(0, 1, 12))
    plan = asgd.plan(tau, noise=20.0)
    for row in plan.at("fedavg"):
        asked = row.concurrency
        least = math.ceil(asked / 2)
        times = [over_selection_time(tau, goal, asked) * (1 + 20.0 / goal) for goal in range(least, asked + 1)]
        assert times[row.candidate.goal - least] <= min(times) * 1.02  # chosen from simulated rounds
        assert row.seconds == pytest.approx(row.formula.lemma, rel=0.02)


def test_the_recommended_method_can_be_built_and_its_recipe_says_the_same():
    plan = asgd.plan([1.0, 1.1, 1.2, 9.0])
    for row in plan.rows:
        made = eval(row.candidate.recipe(row.accuracy.step), {"asgd": asgd, "L": 2.0})
        built = row.method(smoothness=2.0)
        assert built.step.stepsize == pytest.approx(made.step.stepsize, rel=5e-3)
        assert built.dispatch == made.dispatch
        assert built.name == made.name
    assert plan.recipe == plan.recommended.candidate.recipe(plan.recommended.accuracy.step)


def test_every_kind_of_source_gives_the_same_plan(tmp_path):
    samples = [[1.0, 1.25], [2.0], [1.5, 1.5, 3.0]]
    csv = tmp_path / "d.csv"
    csv.write_text("worker,duration\n" + "".join(f"{w},{s}\n" for w, own in enumerate(samples) for s in own))
    wide = tmp_path / "w.csv"
    wide.write_text("a,b,c\n1.0,2.0,1.5\n1.25,,1.5\n,,3.0\n")
    expected = asgd.plan(asgd.durations.measured(samples)).to_dict()
    for source in (csv, str(wide), samples, dict(enumerate(samples))):
        found = asgd.plan(source).to_dict()
        assert {**found, "source": ""} == {**expected, "source": ""}


def test_the_trace_of_a_run_is_a_source_as_file_log_and_object(tmp_path):
    speeds = asgd.durations.fixed([1.0, 1.0, 3.0])
    run = asgd.simulate(asgd.tasks.quadratic(workers=3), asgd.async_sgd(0.1), speeds, iterations=60)
    run.trace.write(tmp_path / "trace.parquet")
    expected = measured_workers([1.0, 1.0, 3.0]).means
    for source in (run.trace, tmp_path / "trace.parquet"):
        assert measured_workers(source).means == pytest.approx(expected)
    renamed = tmp_path / "trace.csv"  # the first bytes count, not the name
    renamed.write_bytes((tmp_path / "trace.parquet").read_bytes())
    assert measured_workers(renamed).means == pytest.approx(expected)


def test_communication_is_part_of_a_job():
    plain = asgd.plan(asgd.durations.fixed([1.5, 2.5]))
    split = asgd.plan(asgd.durations.fixed([1.0, 2.0]).with_communication(down=0.25, up=0.25))
    assert split.workers.means.tolist() == [1.5, 2.5]
    batch = rows_of(split, "minibatch_sgd")[2]
    assert batch.seconds == pytest.approx(rows_of(plain, "minibatch_sgd")[2].seconds)


def test_few_samples_are_said():
    assert any("1 of 2 workers were measured fewer than 5 times" in n for n in asgd.plan([[1.0] * 9, [2.0]]).notes())
    assert asgd.plan([[1.0] * 9, [2.0] * 9]).notes() == []


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"concurrency": 0}, "concurrency = 0 must be an integer"),
        ({"concurrency": []}, r"concurrency = \[\] is empty"),
        ({"concurrency": 10**6}, "is far more than 2 workers"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"epsilon": 3.0}, "every start is accurate enough"),
        ({"epsilon": float("nan")}, "epsilon"),
        ({"noise": -1.0}, "noise"),
        ({"noise": 1e300}, "too large"),
        ({"noise": 1e9, "epsilon": 1e-9}, "epsilon = 1e-09 at noise = 1e\\+09 asks for more than 1e\\+15 gradients"),
        ({"heterogeneity": 1.0}, "pass heterogeneous=True too"),
        ({"heterogeneous": True, "heterogeneity": -1.0}, "heterogeneity"),
        ({"seed": 1.5}, "seed = 1.5 is not an integer"),
    ],
)
def test_bad_arguments_are_named(arguments, says):
    with pytest.raises(asgd.errors.BadParameter, match=says):
        asgd.plan([1.0, 2.0], **arguments)


@pytest.mark.parametrize(
    ("durations", "says"),
    [
        ([1.0], "only one worker, so there is nothing to compare"),
        ([], "has no worker"),
        ([1.0, 0.0], "is not a duration"),
        ([1.0, 1e-300], r"has mean 1e-300 for worker 1"),
        (asgd.durations.pareto(1.0, shape=[3.0, 1.0]), "has mean inf for worker 1"),
        ("nowhere.csv", "does not exist"),
        (3, "seconds"),
    ],
)
def test_bad_durations_are_named(durations, says):
    with pytest.raises(asgd.errors.BadParameter, match=says):
        asgd.plan(durations)
