"""The compiled replay gives the bits of the core, and a lane gives the bits of a single run."""

import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markers import examples
from simulation.plain_clock import drive

import asyncsgd as asgd
from asyncsgd.core import dispatch as rules
from asyncsgd.core import steps
from asyncsgd.core.aggregation import Buffer, Each
from asyncsgd.core.method import Method
from asyncsgd.core.optimizers import SGD, Momentum
from asyncsgd.core.transforms import Clip, Interpolate
from asyncsgd.core.work import Gradient, LocalSteps
from asyncsgd.simulation import compiled_replay
from asyncsgd.simulation import durations as times
from asyncsgd.simulation._simulate import arrivals_of
from asyncsgd.simulation.compiled_replay import Measure
from asyncsgd.simulation.lowering import lower, share, weigh
from asyncsgd.trace.replay import replay_core

WORKERS = 4
TASKS = {
    "quadratic": asgd.tasks.quadratic(dim=7, workers=WORKERS, noise=0.3, heterogeneity=0.5),
    "exact quadratic": asgd.tasks.paper_quadratic(workers=WORKERS),
    "logistic": asgd.tasks.logistic(m=40, dim=5, workers=WORKERS, batch=4),
}

sizes = st.sampled_from(
    [
        0.05,
        asgd.schedules.constant(0.05, warmup=7),
        asgd.schedules.linear(0.05, warmup=3, total=50, final=0.1),
        asgd.schedules.cosine(0.05, total=60),
        asgd.schedules.cosine(0.05, warmup=30, total=70, final=0.3),
        asgd.schedules.inverse_sqrt(0.05, warmup=5),
        asgd.schedules.warmup_stable_decay(0.05, warmup=4, decay=20, total=64),
        asgd.schedules.custom(lambda t: 0.97**t, peak=0.05),
    ]
)
rules_of_steps = st.sampled_from(
    [
        steps.Constant,
        steps.DelayAdaptive,
        lambda size: steps.DropAbove(size, 2),
        steps.DivideAbove,
        steps.WorkersOverDelay,
        steps.Polynomial,
        lambda size: steps.DropStale(size, 2),
    ]
)
methods = st.builds(
    Method,
    name=st.just("any"),
    step=st.builds(lambda rule, size: rule(size), rules_of_steps, sizes),
    dispatch=st.one_of(
        st.builds(rules.AlwaysBusy, st.none() | st.integers(1, 4), sample_early=st.booleans()),
        st.just(rules.Batch()),
        st.builds(rules.Uniform, st.integers(1, 6), st.booleans()),
        st.builds(rules.Shuffled, st.integers(1, 6)),
        st.builds(rules.FirstOf, st.integers(1, 3)),
    ),
    work=st.just(Gradient())
    | st.builds(LocalSteps, st.integers(1, 3), st.just(0.05), st.booleans(), st.sampled_from([0.0, 0.2])),
    transforms=st.sampled_from([(), (Clip(0.4),), (Interpolate(),), (Interpolate(), Clip(0.4))]),
    aggregation=st.just(Each()) | st.builds(Buffer, st.integers(1, 4)),
    optimizer=st.just(SGD()) | st.builds(Momentum, st.just(0.8), st.booleans()),
)


def through_server(task, method, durations, iterations, seed):
    return drive(task, method, durations, iterations, seed)[0].x


@examples(120)
@given(methods, st.sampled_from(sorted(TASKS)), st.integers(1, 80), st.integers(0, 3))
def test_the_same_bits_as_the_server_and_as_every_lane(method, name, iterations, seed):
    task, durations = TASKS[name], times.exponential([1.0, 1.0, 2.0, 7.0])
    arrivals = arrivals_of(durations, method, iterations, seed)
    assert lower(method, task).numbers
    alone = compiled_replay.replay_lanes(arrivals, task, method, [(0.05, seed)], Measure(every=5))
    update, weighed, used, diverged, _ = replay_core(arrivals, task, method, seed=seed)
    assert diverged is None
    assert np.array_equal(alone.x[:, 0], update.output)
    assert np.array_equal(alone.x[:, 0], through_server(task, method, durations, iterations, seed))
    assert np.array_equal(alone.weighed.weight, weighed.weight)
    assert np.array_equal(alone.weighed.version, weighed.version)
    assert np.array_equal(share(method, weighed.weight), used)
    lanes = [(0.01, seed), (0.05, seed), (0.02, seed + 1)] * 4
    many = compiled_replay.replay_lanes(arrivals, task, method, lanes, Measure(every=5))
    for lane in (1, 4, 10):
        assert np.array_equal(many.x[:, lane], alone.x[:, 0])
        for metric in alone.metrics:
            assert np.array_equal(many.metrics[metric][:, lane], alone.metrics[metric][:, 0])


def test_points_are_kept_only_while_somebody_will_read_them():
    method = asgd.fedbuff(0.1, concurrency=6, buffer=3)
    arrivals = arrivals_of(times.exponential([1.0, 1.0, 2.0, 7.0]), method, 2000, 0)
    _, slots, _ = compiled_replay._path(arrivals, weigh(arrivals, method), np.ones(2000))
    assert slots <= 6
    batch = asgd.minibatch_sgd(0.1)
    arrivals = arrivals_of(times.fixed([1.0] * 50), batch, 2000, 0)
    _, slots, _ = compiled_replay._path(arrivals, weigh(arrivals, batch), np.ones(2000))
    assert slots <= 2  # fifty workers share one version


def test_a_recorded_trace_is_replayed_with_another_method():
    task, durations = TASKS["quadratic"], times.exponential([1.0, 1.0, 2.0, 7.0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", asgd.BiasWarning)
        first = asgd.simulate(task, asgd.async_sgd(0.05), durations, iterations=300, seed=4)
        again = asgd.simulate(task, asgd.async_sgd(0.05), first.trace, seed=4)
        other = asgd.simulate(task, asgd.delay_adaptive(0.05, rule="drop", threshold=3), first.trace, seed=4)
        direct = asgd.simulate(
            task, asgd.delay_adaptive(0.05, rule="drop", threshold=3), durations, iterations=300, seed=4
        )
        short = asgd.simulate(task, asgd.async_sgd(0.05), first.trace, iterations=120, seed=4)
        brief = asgd.simulate(task, asgd.async_sgd(0.05), durations, iterations=120, seed=4)
    assert np.array_equal(first.x, again.x)
    assert first.trace == again.trace
    assert np.array_equal(other.x, direct.x)
    assert other.trace.counts == direct.trace.counts
    assert np.array_equal(other.trace.step, direct.trace.step)
    assert np.array_equal(short.x, brief.x)
    assert short.trace == brief.trace


@pytest.mark.slow
def test_a_users_own_compiled_gradient_gets_the_fast_path():
    from numba import njit

    @njit
    def gradient(x, worker, seed, out, data):
        for i in range(len(x)):
            out[i] = data[i] * x[i] - worker

    scales = np.array([1.0, 2.0, 3.0])

    class Plain:
        def initial(self):
            return np.ones(3)

        def update(self, x, worker, seed):
            return scales * x - worker

        def evaluate(self, x):
            return {"loss": float(0.5 * scales @ (x * x))}

    class Mine(Plain):
        compiled = (gradient, scales)

    durations = times.fixed([1.0, 2.5])
    fast = asgd.simulate(Mine(), asgd.async_sgd(0.1), durations, iterations=100)
    slow = asgd.simulate(Plain(), asgd.async_sgd(0.1), durations, iterations=100)
    assert (fast.compiled, slow.compiled) == (True, False)
    assert np.array_equal(fast.x, slow.x)
    assert np.array_equal(fast.metrics["loss"], slow.metrics["loss"])
    assert fast.trace == slow.trace
    local = asgd.async_sgd(1.0).local(3, 0.1)
    runs = [asgd.simulate(task, local, durations, iterations=50) for task in (Mine(), Plain())]
    assert [run.compiled for run in runs] == [True, False]
    assert np.array_equal(runs[0].x, runs[1].x)


@pytest.mark.parametrize(
    "method",
    [
        asgd.async_sgd(5.0),
        asgd.mifa(9.0),
        asgd.ringmaster(5.0, limit=50, stops=True),
        asgd.methods.picky_sgd(5.0, threshold=1e300),
    ],
    ids=lambda method: method.name,
)
def test_divergence_is_reported_and_never_a_number(method):
    with pytest.warns(asgd.DivergenceWarning, match=method.name), np.errstate(all="ignore"):
        run = asgd.simulate(asgd.tasks.quadratic(workers=2), method, times.fixed([1.0, 2.0]), iterations=5000)
    assert run.diverged is not None
    assert run.diverged < 5000
    assert np.isfinite(run.x).all()
    assert np.isfinite(run.metrics["loss"]).all()
    assert run.metrics["iteration"][-1] <= run.diverged


def test_a_lane_that_diverges_leaves_the_others_alone():
    task, method = TASKS["exact quadratic"], asgd.async_sgd(0.05)
    arrivals = arrivals_of(times.fixed([1.0, 1.0, 1.0, 3.0]), method, 3000, 0)
    lanes = [(0.05, 0), (3.0, 0), (0.02, 0)]
    result = compiled_replay.replay_lanes(arrivals, task, method, lanes, Measure(every=1))
    alone = compiled_replay.replay_lanes(arrivals, task, method, lanes[:1], Measure(every=1))
    assert list(result.diverged >= 0) == [False, True, False]
    assert np.isnan(result.x[:, 1]).all()
    late = result.iteration >= result.diverged[1]
    assert np.isnan(result.metrics["loss"][late, 1]).all()
    assert np.array_equal(result.x[:, 0], alone.x[:, 0])


@pytest.mark.parametrize(
    "method",
    [
        asgd.mifa(0.05),
        asgd.methods.adadelay(smoothness=2.0),
        asgd.methods.dc_asgd(0.05),
        asgd.async_sgd(0.01).using(optimizer=asgd.optimizers.adamw()),
        asgd.async_sgd(0.05).clipped(1.0, noise=0.1),
        asgd.methods.picky_sgd(0.05, threshold=0.1),
        asgd.methods.delayed_average(0.05),
    ],
    ids=lambda method: method.name,
)
def test_every_other_rule_goes_through_the_core(method):
    task, durations = asgd.tasks.quadratic(workers=3, noise=0.1), times.exponential([1.0, 2.0, 5.0])
    run = asgd.simulate(task, method, durations, iterations=150, seed=2)
    assert not run.compiled
    server, trace, _ = drive(task, method, durations, 150, 2, metadata={"method": method.name, "seed": "2"})
    assert np.array_equal(run.x, server.output)
    assert run.trace == trace


def test_arrivals_of_a_trace_are_those_of_its_schedule():
    method = asgd.federated_async_sgd(0.1, concurrency=5)
    durations = times.exponential([1.0, 2.0, 5.0])
    arrivals = arrivals_of(durations, method, 200, 1)
    run = asgd.simulate(asgd.tasks.quadratic(workers=3), method, durations, iterations=200, seed=1)
    recorded = run.trace.arrivals()
    for column in ("job", "worker", "iteration", "time", "concurrency", "workers"):
        assert np.array_equal(getattr(arrivals, column), getattr(recorded, column))
