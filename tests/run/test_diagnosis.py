"""Why does it not learn? What the record says, and that it says so only where it is so."""

from dataclasses import replace

import numpy as np
import pytest

import asyncsgd as asgd
from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.steps import Constant
from asyncsgd.core.transforms import Clip
from asyncsgd.run.diagnosis import Observed, diagnose
from asyncsgd.run.journal import Faults
from asyncsgd.theory import coverage as safety
from asyncsgd.theory.coverage import estimate_smoothness


def look(method, durations=(1.0, 1.0, 1.0, 1.0), iterations=400, faults=None, **task):
    problem = asgd.tasks.quadratic(dim=8, workers=len(durations), **task)
    run = asgd.simulate(problem, method, asgd.durations.fixed(durations), iterations=iterations, every=iterations)
    return diagnose(Observed(run.trace, run.metrics, faults or Faults(), method, problem, run.x))


def words(lines):
    return "\n".join(lines)


def test_a_run_that_learns_has_facts_and_no_problems():
    seen = look(asgd.delay_adaptive(0.05))
    assert seen.problems == ()
    assert "3 on average" in seen.facts[0] or "2.9" in seen.facts[0]
    assert "4 jobs in flight" in seen.facts[0]
    assert "each of the 4 workers gave the same share" in words(seen.facts)


def test_l_is_found_on_a_quadratic():
    task = asgd.tasks.quadratic(dim=8, eigenvalues=(1.0, 5.0), workers=3, noise=0.3)
    assert estimate_smoothness(task, task.initial(), [0, 1, 2]) == pytest.approx(5.0, rel=0.02)
    assert task.smoothness == pytest.approx(5.0)


def test_the_safe_step_is_that_of_the_theorem():
    seen = look(asgd.async_sgd(0.05), noise=0.1)
    assert seen.smoothness == pytest.approx(2.0, rel=0.02)
    assert seen.safe_step == pytest.approx(1 / (2 * seen.smoothness * np.sqrt(4 * 3)))
    adaptive = look(asgd.delay_adaptive(0.05), noise=0.1)
    assert adaptive.safe_step == pytest.approx(1 / (4 * adaptive.smoothness * 4))


def test_buffers_and_momentum_are_reduced_to_plain_steps():
    plain = look(asgd.async_sgd(0.05), noise=0.1)
    moving = look(asgd.async_sgd(0.005).using(optimizer=asgd.optimizers.momentum(0.9)), noise=0.1)
    assert moving.safe_step == pytest.approx(0.1 * plain.safe_step, rel=0.01)
    buffered = look(asgd.async_sgd(0.05).using(aggregation=Buffer(3)), noise=0.1)
    assert buffered.safe_step == pytest.approx(3 / (2 * buffered.smoothness * np.sqrt(6 * 5)))
    rounds = look(asgd.fedavg(0.05, clients=4, ask=4), noise=0.1)
    assert rounds.safe_step == pytest.approx(4 / (2 * rounds.smoothness * np.sqrt(4 * 3)))
    assert "momentum is counted as a step of η/(1 - β), which no theorem here covers" in moving.conditions
    assert (plain.conditions, buffered.conditions) == ((), ())


@pytest.mark.parametrize(("durations", "size"), [((1.0,), 100), ((1.0,) * 4, 40), ((1.0, 1.0, 1.0, 20.0), 40)])
def test_the_safe_step_of_a_buffer_is_safe(durations, size):
    """What waits in a buffer makes gradients later; without counting that, a step was called safe at 50/L."""
    seen = look(asgd.async_sgd(1e-6).using(aggregation=Buffer(size)), durations)
    problem = asgd.tasks.quadratic(dim=8, workers=len(durations))
    method = asgd.async_sgd(seen.safe_step).using(aggregation=Buffer(size))
    run = asgd.simulate(problem, method, asgd.durations.fixed(durations), iterations=8000, every=8000)
    assert run.diverged is None
    assert run.metrics["loss"][-1] < 1e-6 * run.metrics["loss"][0]


def test_a_threshold_above_the_concurrency_lowers_the_safe_step_and_says_so():
    """Theorem 2 asks η_t <= 1/(4L max(τ_C, τ_t)); a threshold gives late updates the whole step."""
    speeds = (1.0, 1.0, 1.0, 20.0)
    scaled = look(asgd.delay_adaptive(0.01), speeds)
    assert (scaled.safe_step, scaled.conditions) == (pytest.approx(1 / (4 * scaled.smoothness * 4)), ())
    dropped = look(asgd.delay_adaptive(0.01, rule="drop"), speeds)
    assert dropped.safe_step == pytest.approx(scaled.safe_step / 2)
    [condition] = dropped.conditions
    assert condition == "updates with a delay of up to 8 get the whole step, for which Theorem 2 asks η <= 1/(4L·8)"
    assert f"and these delays; {condition})" in words(dropped.facts)
    at_most = look(asgd.delay_adaptive(0.01, rule="drop", threshold=10**6), speeds)
    longest = int(at_most.conditions[0].split("up to ")[1].split()[0])
    assert 50 < longest < 100, "no longer than the longest delay"
    assert at_most.safe_step == pytest.approx(1 / (4 * at_most.smoothness * longest))
    below = look(asgd.delay_adaptive(0.01, rule="drop", threshold=2), speeds)
    assert (below.safe_step, below.conditions) == (pytest.approx(scaled.safe_step), ())


@pytest.mark.parametrize("beta", [0.0, 0.5])
@pytest.mark.parametrize("size", [1, 5])
def test_the_condition_of_a_threshold_is_the_safe_step(size, beta):
    """What waits in a buffer is late, and a step of the model is the mean of its updates."""
    method = asgd.delay_adaptive(0.01, rule="drop").using(
        aggregation=Buffer(size), optimizer=asgd.optimizers.momentum(beta)
    )
    seen = look(method, (1.0, 1.0, 1.0, 20.0))
    [asked] = [condition for condition in seen.conditions if "Theorem 2 asks" in condition]
    left, right = asked.partition("Theorem 2 asks ")[2].split(" <= ")
    many, late = right.removesuffix(")").split("/(4L·")
    asks = int(many) / (4 * seen.smoothness * float(late))
    assert left == "η/(1 - β)"
    assert seen.safe_step == pytest.approx((1 - beta) * asks)
    assert ("in the buffer" in asked) == (size > 1)


def test_what_the_theorems_do_not_speak_about_is_said():
    for method, why in (
        (asgd.async_sgd(0.01).using(optimizer=asgd.optimizers.adamw()), "Adam chooses its own scale"),
        (asgd.async_sgd(0.01).using(transforms=(Clip(1.0),)), "Clip changes the updates"),
        (asgd.methods.staleness_aware(0.01), "no theorem is about DivideByStaleness"),
    ):
        seen = look(method)
        assert f"the step cannot be judged: {why}" in seen.facts
        assert seen.safe_step is None


def test_a_step_that_is_too_large_or_too_small():
    task = asgd.tasks.quadratic(dim=8, workers=4, noise=0.1)
    run = asgd.simulate(task, asgd.async_sgd(0.05), asgd.durations.fixed([1.0] * 4), iterations=100, every=100)
    grown = {**run.metrics, "loss": np.array([1.0, 50.0])}
    large = diagnose(Observed(run.trace, grown, Faults(), asgd.async_sgd(5.0), task, run.x))
    assert "the loss grew: from 1 to 50" in words(large.problems)
    assert "the step is too large: try stepsize=0.07" in words(large.problems)
    flat = {**run.metrics, "loss": np.array([1.0, 0.999])}
    small = diagnose(Observed(run.trace, flat, Faults(), asgd.async_sgd(1e-06), task, run.x))
    assert "hardly changed" in words(small.problems)
    assert "smaller than necessary" in words(small.problems)
    fine = diagnose(Observed(run.trace, run.metrics, Faults(), asgd.async_sgd(5.0), task, run.x))
    assert fine.problems == (), "a large step that learns is no problem"


def test_the_step_that_callbacks_left_is_judged():
    task = asgd.tasks.quadratic(dim=8, workers=4, noise=0.1)
    run = asgd.simulate(task, asgd.async_sgd(0.05), asgd.durations.fixed([1.0] * 4), iterations=100, every=100)

    def seen(loss, method, *changes):
        metrics = {**run.metrics, "loss": np.array([1.0, loss])}
        return diagnose(Observed(run.trace, metrics, Faults(), method, task, run.x, step_changes=changes))

    plain = seen(50.0, asgd.async_sgd(0.05))
    assert plain.safe_step == pytest.approx(0.072, abs=0.001)
    assert "step" not in words(plain.problems)
    assert "callbacks" not in words(plain.facts)
    grown = seen(50.0, asgd.async_sgd(0.05), (10, 4.0), (20, 10.0), (30, 0.01))
    assert "step size: 2 (the largest: callbacks multiplied steps by 0.4 to 40) is 28 times the" in words(grown.facts)
    assert "the step is too large: try stepsize=0.001 to 0.005" in words(grown.problems)
    shrunk = seen(0.999, asgd.async_sgd(0.05), (1, 1e-4))
    assert "is 69% of the worst-case safe limit" in words(shrunk.facts)
    advice = "the step is smaller than necessary: try stepsize=0.07, or scale it less: its mean factor was 0.01"
    assert advice in shrunk.problems
    # The schedule is below a hundredth when the factor comes, so the largest step is that of the start.
    late = seen(50.0, asgd.async_sgd(asgd.schedules.linear(2.0)).bind(4, 100), (99, 8.0))
    assert "with the peak 2 (the largest: callbacks multiplied steps by 1 to 8)" in words(late.facts)


@pytest.mark.parametrize("stepsize", [5.0, 1e-6])
def test_the_step_to_try_is_not_above_the_safe_one(stepsize):
    """The safe step of these tasks is 0.18 or so, which would round to 0.2."""
    task = asgd.tasks.quadratic(dim=8, eigenvalues=(0.1, 0.8), workers=4)
    run = asgd.simulate(task, asgd.async_sgd(0.01), asgd.durations.fixed([1.0] * 4), iterations=100, every=100)
    metrics = {**run.metrics, "loss": np.array([1.0, 50.0 if stepsize > 1 else 0.999])}
    seen = diagnose(Observed(run.trace, metrics, Faults(), asgd.async_sgd(stepsize), task, run.x))
    assert seen.safe_step == pytest.approx(0.18, abs=0.005)
    [advice] = [problem for problem in seen.problems if "try stepsize=" in problem]
    assert float(advice.split("try stepsize=")[1].split()[0]) <= seen.safe_step


def test_a_straggler_with_a_constant_step():
    seen = look(asgd.async_sgd(0.01), durations=(1.0, 1.0, 1.0, 100.0), iterations=2000)
    assert "worker 3 is far behind" in words(seen.problems)
    assert "times smaller than without it; delay_adaptive(...) does not" in words(seen.problems)
    assert "far behind" not in words(look(asgd.delay_adaptive(0.01), (1.0, 1.0, 1.0, 100.0), 2000).problems)


@pytest.mark.filterwarnings("ignore::asyncsgd.BiasWarning")
@pytest.mark.parametrize(
    ("method", "remedy"),
    [
        (asgd.async_sgd(0.001), "federated_async_sgd(...) with few jobs in flight keeps delays short"),
        (asgd.federated_async_sgd(0.001, concurrency=4), "fewer jobs in flight make delays shorter"),
    ],
)
def test_with_data_that_differ_nothing_biased_is_recommended(method, remedy):
    speeds = (1.0,) * 39 + (400.0,)
    problem = asgd.tasks.quadratic(dim=8, workers=40, heterogeneity=1.0)
    run = asgd.simulate(problem, method, asgd.durations.fixed(speeds), iterations=20_000, every=20_000)
    grown = {**run.metrics, "loss": np.array([1.0, 50.0])}
    large = replace(method, step=Constant(5.0))
    seen = diagnose(Observed(run.trace, grown, Faults(), large, problem, run.x))
    assert "is far behind" in words(seen.problems)
    assert remedy in words(seen.problems)
    assert "the step is too large: try stepsize=" in words(seen.problems)
    assert "delay_adaptive" not in words(seen.problems)


def test_the_condition_is_said_where_nothing_is_known_about_the_data():
    class Silent:
        """Does not say whether its data differ."""

        def __init__(self, task):
            self.initial, self.update, self.evaluate = task.initial, task.update, task.evaluate

    problem = asgd.tasks.quadratic(dim=8, workers=4)
    speeds = asgd.durations.fixed((1.0, 1.0, 1.0, 200.0))
    run = asgd.simulate(problem, asgd.async_sgd(0.001), speeds, iterations=4000, every=4000)
    grown = {**run.metrics, "loss": np.array([1.0, 50.0])}
    for task, condition in ((problem, ""), (Silent(problem), ", if the data of all workers are alike")):
        seen = diagnose(Observed(run.trace, grown, Faults(), asgd.async_sgd(5.0), task, run.x))
        assert any(line.endswith(f"delay_adaptive(...) does not{condition}") for line in seen.problems)
        assert any(line.endswith(f"delay_adaptive(...), which allows more{condition}") for line in seen.problems)


def test_delay_adaptive_steps_are_recommended_only_where_they_are_larger():
    """1/(4Lτ_C) exceeds 1/(2L√(τ_C τ_max)) only from τ_max = 4τ_C on."""
    problem = asgd.tasks.quadratic(dim=8, workers=4)
    for slow, helps in ((2.0, False), (9.0, True)):
        speeds = asgd.durations.fixed((1.0, 1.0, 1.0, slow))
        run = asgd.simulate(problem, asgd.async_sgd(0.001), speeds, iterations=400, every=400)
        assert run.trace.delays.maximum > 4
        grown = {**run.metrics, "loss": np.array([1.0, 50.0])}
        seen = diagnose(Observed(run.trace, grown, Faults(), asgd.async_sgd(5.0), problem, run.x))
        assert ("delay_adaptive(...), which allows more" in words(seen.problems)) == helps


@pytest.mark.filterwarnings("ignore::asyncsgd.BiasWarning")
def test_the_safe_step_says_that_its_theorem_is_for_data_that_are_alike():
    condition = "the theorem assumes that all workers have similar data, and here the data differ"
    for method, said in (
        (asgd.async_sgd(0.01), True),
        (asgd.delay_adaptive(0.01), True),
        (asgd.federated_async_sgd(0.01, concurrency=3), False),
        (asgd.minibatch_sgd(0.01), False),
    ):
        assert (condition in look(method, (1.0, 1.0, 4.0), heterogeneity=1.0).conditions) == said
        assert condition not in look(method, (1.0, 1.0, 4.0)).conditions


def test_too_many_dropped():
    seen = look(asgd.delay_adaptive(0.01, rule="drop", threshold=2), durations=(1.0,) * 8)
    assert "of the updates were dropped" in words(seen.problems)
    assert "twice the concurrency (16)" in words(seen.problems)


def test_who_dominates_matters_where_data_differ():
    with pytest.warns(asgd.BiasWarning):
        biased = look(asgd.async_sgd(0.01), durations=(1.0, 8.0, 8.0), heterogeneity=1.0)
    assert "worker 0 dominates" in words(biased.problems)
    assert "dominates" not in words(look(asgd.async_sgd(0.01), durations=(1.0, 8.0, 8.0)).problems)


def test_code_that_raises_here_costs_no_run():
    class Elsewhere:
        def initial(self):
            return np.zeros(3)

        def update(self, x, worker, seed):
            raise OSError("only on the cluster")

    run = asgd.simulate(asgd.tasks.quadratic(dim=3), asgd.async_sgd(0.1), asgd.durations.fixed([1.0]), iterations=10)
    seen = diagnose(Observed(run.trace, run.metrics, Faults(), asgd.async_sgd(0.1), Elsewhere(), run.x))
    assert "only on the cluster" in words(seen.facts)
    assert seen.safe_step is None


def test_faults_are_told():
    seen = look(asgd.async_sgd(0.05), faults=Faults(rejected=1, exceptions=2, deaths=3, retired=(1,)))
    assert "3 workers replaced, 2 exceptions in your code, without worker 1 at the end" in words(seen.facts)


def test_a_run_that_diverged_between_two_evaluations_is_told_why():
    """The loss was finite, and fell, whenever it was measured."""
    task = asgd.tasks.quadratic(dim=8, workers=4, noise=0.1)
    run = asgd.simulate(task, asgd.async_sgd(0.05), asgd.durations.fixed([1.0] * 4), iterations=100, every=100)
    nowhere = np.full_like(run.x, np.nan)
    for rows in (1, 2):
        metrics = {name: values[:rows] for name, values in run.metrics.items()}
        seen = diagnose(Observed(run.trace, metrics, Faults(), asgd.async_sgd(5.0), task, nowhere, diverged=True))
        assert f"not finite any more; its last value before that was {metrics['loss'][-1]:.4g}" in words(seen.problems)
        assert "the step is too large: try stepsize=0.07" in words(seen.problems)
    silent = diagnose(Observed(run.trace, {}, Faults(), asgd.async_sgd(5.0), task, nowhere, diverged=True))
    assert silent.problems[0] == "the loss is not finite any more"


def test_a_negative_loss_that_rises_is_no_learning():
    task = asgd.tasks.quadratic(dim=8, workers=4)
    run = asgd.simulate(task, asgd.async_sgd(0.05), asgd.durations.fixed([1.0] * 4), iterations=100, every=100)
    for losses, said in (([-1.0, -0.985], "hardly changed"), ([-1.0, -0.5], "grew"), ([-1.0, -2.0], "")):
        seen = diagnose(Observed(run.trace, {**run.metrics, "loss": np.array(losses)}, Faults(), None, None, run.x))
        assert bool(seen.problems) == bool(said)
        assert said in words(seen.problems)


class Overflows:
    """½‖x‖² whose gradient overflows far away."""

    def initial(self):
        return np.ones(3)

    def update(self, x, worker, seed):
        return x if abs(x[0]) < 1e3 else np.full_like(x, np.nan)


def test_l_is_found_at_the_start_where_the_end_has_no_gradient():
    assert estimate_smoothness(Overflows(), np.full(3, 1e6), [0, 1]) == pytest.approx(1.0, rel=0.01)


@pytest.mark.parametrize(("seconds", "most"), [(60.0, 3), (0.5, 5)])
def test_gradients_that_take_long_are_not_waited_for(monkeypatch, seconds, most):
    """With a clock that moves only while a gradient is computed."""
    calls = []

    class Slow(Overflows):
        def update(self, x, worker, seed):
            calls.append(seconds)
            return super().update(x, worker, seed)

    monkeypatch.setattr("asyncsgd.theory.coverage.time.monotonic", lambda: float(np.sum(calls)))
    task = asgd.tasks.quadratic(dim=3, workers=2)
    run = asgd.simulate(task, asgd.async_sgd(0.1), asgd.durations.fixed([1.0, 1.0]), iterations=10)
    seen = diagnose(Observed(run.trace, run.metrics, Faults(), asgd.async_sgd(0.1), Slow(), run.x))
    assert len(calls) <= most
    assert seen.safe_step is None
    assert "the step cannot be judged: gradients take too long here" in words(seen.facts)


def test_the_estimate_of_l_does_not_depend_on_how_busy_the_machine_is(monkeypatch):
    """A search that would take too long is not begun; one that was cut short would find a smaller L."""
    rows = np.random.default_rng(0).standard_normal((200, 20))
    problem = asgd.tasks.least_squares(rows, rows[:, 0], workers=4)
    found = {}
    for seconds in (1e-6, 1e-3, 0.03, 1.0):

        class Timed:
            clock = 0.0
            initial = staticmethod(problem.initial)

            def update(self, x, worker, seed, seconds=seconds):
                Timed.clock += seconds
                return problem.update(x, worker, seed)

        monkeypatch.setattr("asyncsgd.theory.coverage.time.monotonic", lambda timed=Timed: timed.clock)
        found[seconds] = safety.estimate_smoothness(Timed(), problem.initial(), [0, 1, 2, 3])
    assert found[1.0] is None
    assert found[1e-6] == found[1e-3] == found[0.03] > 0
