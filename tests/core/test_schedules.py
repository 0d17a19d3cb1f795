"""Schedules of the step size: their numbers, their bits, what a run fixes, and what is refused before it starts."""

import json
import math

import numpy as np
import pytest
from core.checks import NEEDED
from hypothesis import given
from hypothesis import strategies as st
from markers import examples

import asyncsgd as asgd
from asyncsgd import recipes, schedules
from asyncsgd.core.errors import BadParameter, BadStep
from asyncsgd.core.parts import describe, made
from asyncsgd.core.schedules import CHUNK, Schedule
from asyncsgd.core.server import Server

ALL = {
    "constant": schedules.constant(0.3, warmup=5),
    "linear": schedules.linear(0.3, warmup=5, total=40, final=0.2),
    "cosine": schedules.cosine(0.3, warmup=5, total=40, final=0.2),
    "inverse_sqrt": schedules.inverse_sqrt(0.3, warmup=5),
    "warmup_stable_decay": schedules.warmup_stable_decay(0.3, warmup=5, decay=10, total=40, final=0.2),
    "custom": schedules.custom(lambda t: 1 / (1 + t), peak=0.3),
}


def naive(name, t, peak=0.3, warmup=5, total=40, final=0.2, decay=10):
    """The formulas, written down again with the library's cosine."""
    if name == "custom":
        return peak / (1 + t)
    if t < warmup:
        return peak * (t + 1) / warmup
    if name == "constant":
        return peak
    if name == "inverse_sqrt":
        return peak * math.sqrt(warmup / (t + 1))
    begin = total - decay if name == "warmup_stable_decay" else warmup
    passed = min(1.0, max(0.0, (t - begin) / (total - begin)))
    left = (1 + math.cos(math.pi * passed)) / 2 if name == "cosine" else 1 - passed
    return peak * (final + (1 - final) * left)


@pytest.mark.parametrize("name", ALL)
def test_the_numbers_are_those_of_the_formula(name):
    assert set(ALL) == set(schedules.__all__) - {"Schedule"}
    assert [ALL[name].value(t) for t in range(60)] == pytest.approx([naive(name, t) for t in range(60)], rel=1e-13)


warm = st.integers(0, 50)
finals = st.sampled_from([0.0, 1.0]) | st.floats(0, 1)
ends = st.integers(51, 4000)
any_schedule = st.one_of(
    st.builds(lambda w: schedules.constant(1.0, warmup=w), warm),
    st.builds(lambda w, t, f: schedules.linear(1.0, warmup=w, total=t, final=f), warm, ends, finals),
    st.builds(lambda w, t, f: schedules.cosine(1.0, warmup=w, total=t, final=f), warm, ends, finals),
    st.builds(lambda w: schedules.inverse_sqrt(1.0, warmup=1 + w), warm),
    st.builds(
        lambda w, d, t, f: schedules.warmup_stable_decay(1.0, warmup=w, decay=d, total=w + d + t, final=f),
        warm,
        st.integers(1, 99),
        ends,
        finals,
    ),
)


@examples(200)
@given(any_schedule, st.integers(0, 5000), st.integers(0, 300))
def test_many_at_once_have_the_bits_of_one_at_a_time(schedule, start, length):
    together = schedule.shares(start, start + length)
    alone = Schedule.shares(schedule, start, start + length)  # the slow twin: a loop over `share`
    assert together.dtype == np.float64
    assert together.tobytes() == alone.tobytes()
    assert ((together >= 0) & (together <= 1)).all()
    if length:
        assert schedule.with_peak(0.3).value(start) == 0.3 * together[0]


@examples(50)
@given(st.integers(1, 10**9), st.floats(0, 1))
def test_the_cosine_never_leaves_its_range_even_in_long_runs(total, final):
    cosine = schedules.cosine(1.0, total=total, final=final)
    last = cosine.shares(max(0, total - 50), total + 2)
    assert ((last >= final) & (last <= 1)).all()
    assert cosine.share(0) == 1.0
    assert cosine.share(total) == final


def test_a_peak_or_a_warm_up_from_numpy_is_a_plain_number():
    schedule = schedules.cosine(np.float64(0.1), warmup=np.int64(3), total=np.int64(9))
    assert [type(value) for value in (schedule.peak, schedule.warmup, schedule.total)] == [float, int, int]


# ------------------------------------------------------------------------------------------ in a method


@pytest.mark.parametrize("name", recipes.recipes())
def test_every_recipe_takes_a_schedule_and_is_stored_as_plain_data(name):
    recipe = recipes.recipes()[name]
    row = next(row for row in asgd.methods.table() if row["method"] == name)
    needed = {option: NEEDED[option] for option in row["needs"]} | {"stepsize": schedules.cosine(0.1, warmup=3)}
    method = recipe(**needed)
    assert method.step.schedule == schedules.cosine(0.1, warmup=3)
    bound = method.bind(workers=4, iterations=100)
    assert bound.step.stepsize == schedules.cosine(0.1, warmup=3, total=100)
    again = made(json.loads(json.dumps(describe(bound))))
    assert again == bound
    assert repr(again) == repr(bound)


@pytest.mark.parametrize("name", [name for name in ALL if name != "custom"])
def test_every_schedule_goes_through_json_and_back(name):
    method = asgd.async_sgd(ALL[name])
    assert made(json.loads(json.dumps(describe(method)))) == method


def test_a_function_is_described_but_not_made():
    with pytest.raises(BadParameter, match=r"CustomSchedule.*is not a part of asyncsgd"):
        made(json.loads(json.dumps(describe(asgd.async_sgd(ALL["custom"])))))


def test_the_total_is_fixed_once():
    bound = asgd.async_sgd(schedules.linear(0.1)).bind(workers=2, iterations=100)
    assert bound.bind(workers=2, iterations=500) == bound
    given = asgd.async_sgd(schedules.linear(0.1, total=70))
    assert given.bind(workers=2, iterations=500) == given


def drive(method, count, dtype=np.float64):
    """One worker; the update is always ones."""
    server = Server(np.zeros(2, dtype), method)
    steps = []
    (command,) = server.handle(asgd.Joined([0])).commands
    for _ in range(count):
        reply = server.handle(asgd.Arrived(command.job.id, np.ones(2, dtype)))
        steps.append(reply.ended[0].step)
        (command,) = reply.commands
    return server, steps


@pytest.mark.parametrize("name", ALL)
def test_the_server_moves_by_the_value_of_the_schedule(name):
    server, steps = drive(asgd.async_sgd(ALL[name]), 50)
    x = 0.0
    for t in range(50):
        x -= ALL[name].value(t) * 1.0
    assert steps == [ALL[name].value(t) for t in range(50)]
    assert server.x[0] == x


def test_the_model_keeps_its_precision():
    server, _ = drive(asgd.async_sgd(schedules.cosine(np.float64(0.1), total=50)), 20, np.float32)
    assert server.x.dtype == np.float32


def test_the_iteration_counts_arrivals_also_under_a_buffer():
    schedule = schedules.linear(1.0, total=8)
    server, steps = drive(asgd.async_sgd(schedule).using(aggregation=asgd.aggregation.buffer(4)), 8)
    assert steps == [schedule.value(t) / 4 for t in range(8)]
    assert server.version == 2
    assert server.x[0] == -schedule.value(3) - schedule.value(7)  # the step of the arrival that fills the buffer


def test_a_rule_of_the_delay_multiplies_the_schedule():
    rule = asgd.delay_adaptive(schedules.constant(0.5, warmup=10)).step
    assert rule.size(4) == 0.25
    assert rule.with_peak(1.0).size(4) == 0.5


# ------------------------------------------------------------------------------------------ refused


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: schedules.cosine(0.0), r"peak = 0.0 must be a positive finite number"),
        (lambda: schedules.cosine(float("nan")), r"peak = nan"),
        (lambda: schedules.cosine(0.1, warmup=-1), r"warmup = -1 must be an integer of at least 0; pass warmup >= 0"),
        (lambda: schedules.cosine(0.1, warmup=2.0), r"warmup = 2.0"),
        (lambda: schedules.cosine(0.1, final=1.5), r"final = 1.5 must lie in \[0, 1\].*share of the peak"),
        (lambda: schedules.linear(0.1, final=float("nan")), r"final = nan"),
        (lambda: schedules.linear(0.1, total=0), r"total = 0"),
        (lambda: schedules.linear(0.1, warmup=9, total=9), r"total = 9 leaves too few .* pass total > 9"),
        (lambda: schedules.inverse_sqrt(0.1, warmup=0), r"warmup = 0 must be an integer of at least 1"),
        (lambda: schedules.warmup_stable_decay(0.1, warmup=5, decay=0), r"decay = 0"),
        (lambda: schedules.warmup_stable_decay(0.1, warmup=5, decay=6, total=10), r"pass total > 10"),
        (lambda: schedules.constant(0.1, total=9), r"total = 9 has no meaning for a constant schedule"),
        (lambda: schedules.constant(0.1, final=0.5), r"final = 0.5 has no meaning for a constant schedule"),
        (lambda: schedules.custom(0.1), r"function = 0.1 is a float; pass a function of the iteration"),
        (lambda: schedules.cosine(0.1, warm=5), r"warm = 5 is not an option of cosine; did you mean warmup"),
        (lambda: asgd.async_sgd(lambda t: 0.1), r"is a function; .*asgd\.schedules\.custom\(function\)"),
        (lambda: asgd.async_sgd(schedules.cosine), r"is a function; .*asgd\.schedules\.custom\(function\)"),
        (lambda: asgd.fedasync(schedules.linear(1.5), concurrency=2), r"moves past the worker's model"),
        (lambda: asgd.async_sgd(1.0).local(2, lambda t: 0.1), r"stepsize = <function .* must be a positive"),
    ],
)
def test_bad_parameters_are_named_with_a_fix(make, says):
    with pytest.raises(BadParameter, match=says):
        make()


BAD = {
    "negative": (lambda t: 1 - t / 50, r"stepsize = custom\(<lambda>, peak=1.0\) is -0.02 at iteration 51"),
    "nan": (lambda t: math.nan if t == 99 else 1.0, r"is nan at iteration 99; let it give finite numbers >= 0"),
    "infinite": (lambda t: math.inf if t == 3 else 1.0, r"is inf at iteration 3; .* from 0 to 99"),
    "raises": (lambda t: [1.0][t], r"raised IndexError \(list index out of range\)"),
    "text": (lambda t: "much", r"raised ValueError"),
    "nothing": (lambda t: None, r"raised TypeError"),
    "zero": (lambda t: 0.0, r"is 0 in all 100 iterations"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_step_anywhere_in_the_run_is_refused_before_it_starts(name):
    function, says = BAD[name]
    method = asgd.async_sgd(schedules.custom(function))
    with pytest.raises(BadParameter, match=says):
        method.bind(workers=2, iterations=100)
    with pytest.raises(BadParameter, match=says):
        asgd.simulate(asgd.tasks.quadratic(workers=2), method, asgd.durations.fixed([1, 2]), iterations=100)
    engine = asgd.engines.processes(workers=2)
    with pytest.raises(BadParameter, match=says):  # a worker would need a marker of this test
        asgd.train(asgd.tasks.quadratic(workers=2), method, engine, iterations=100, progress=False)


def test_a_long_run_is_checked_in_parts():
    bad = CHUNK + 7
    method = asgd.async_sgd(schedules.custom(lambda t: -1.0 if t == bad else 1.0))
    assert method.bind(workers=2, iterations=bad) == method
    with pytest.raises(BadParameter, match=f"is -1 at iteration {bad}"):
        method.bind(workers=2, iterations=bad + 1)


def test_a_run_that_is_too_short_for_its_warm_up_is_refused():
    with pytest.raises(BadParameter, match="warmup = 200 is too long for a run of 100 iterations"):
        asgd.async_sgd(schedules.cosine(0.1, warmup=200)).bind(workers=2, iterations=100)
    with pytest.raises(BadParameter, match="total = None is open, and so is the length of the run"):
        asgd.async_sgd(schedules.cosine(0.1)).bind(workers=2)


def test_a_server_needs_a_bound_method():
    with pytest.raises(BadParameter, match=r"total = None of cosine\(0.1\) is not fixed; .*method.bind"):
        Server(np.zeros(2), asgd.async_sgd(schedules.cosine(0.1)))


def test_a_schedule_that_goes_wrong_in_a_server_leaves_it_whole():
    """A server that nobody bound: the check before a run has not seen this schedule."""
    server = Server(np.zeros(2), asgd.async_sgd(schedules.custom(lambda t: -1.0 if t else 1.0)))
    (command,) = server.handle(asgd.Joined([0])).commands
    (command,) = server.handle(asgd.Arrived(command.job.id, np.ones(2))).commands
    with pytest.raises(BadStep, match=r"custom\(<lambda>, peak=1.0\) gave the step size -1.0 at iteration 1"):
        server.handle(asgd.Arrived(command.job.id, np.ones(2)))
    assert not server.torn
    assert (server.iteration, server.x[0], server.concurrency) == (1, -1.0, 1)
