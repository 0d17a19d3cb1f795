"""The figures of the paper, by hand and against the slow twin."""

import math

import numpy as np
import pytest
from histories import History, Twin, busy_run, histories, two_workers
from hypothesis import given

from asyncsgd.core.events import Outcome
from asyncsgd.trace import Recorder, Trace


@given(histories())
def test_every_figure_agrees_with_the_slow_twin(history):
    trace, twin = history.trace(), Twin.of(history)
    delays = trace.delays
    assert delays.average == twin.average or (math.isnan(delays.average) and math.isnan(twin.average))
    assert delays.maximum == twin.maximum
    assert delays.concurrency == twin.concurrency
    assert delays.mean_concurrency == twin.mean_concurrency
    assert delays.per_worker == twin.per_worker
    assert trace.active.tolist() == [len(c) for c in history.sets] + [len(history.active)]
    assert trace.delay.tolist() == [tau for _, tau in history.arrivals]
    assert trace.job.tolist() == [job for job, _ in history.arrivals]
    histogram = delays.histogram()
    assert histogram.sum() == len(delays.values)
    assert histogram @ np.arange(len(histogram)) == delays.values.sum()


def test_sequential_sgd_has_no_delay():
    history = busy_run(n=1, iterations=20)
    trace = history.trace()
    assert trace.delay.tolist() == [0] * 20
    delays = trace.delays
    assert (delays.average, delays.maximum, delays.concurrency, delays.mean_concurrency) == (0.0, 0, 1, 1.0)
    assert delays.per_worker == {0: 0.0}


def test_second_worker_16_times_slower():
    # Within one cycle: 16 fast arrivals, then the slow one with x^(0): 16 arrivals came before it.
    trace = two_workers(slow=16, iterations=17).trace()
    assert trace.worker.tolist() == [0] * 16 + [1]
    assert trace.delay.tolist() == [0] * 16 + [16]
    assert trace.delays.maximum == 16
    # In flight at T = 17: the fast one since 16 (τ = 1), and the slow one, assigned last, which is left out.
    assert trace.delays.average == (16 + 1) / (17 + 2 - 1)
    assert trace.delays.per_worker == {0: 1 / 17, 1: (16 + 0) / 2}
    # Next cycle: the fast worker's first arrival waited for the slow one's, the rest is the same again.
    assert two_workers(slow=16, iterations=34).trace().delay.tolist() == [0] * 16 + [16] + [1] + [0] * 15 + [16]


def test_two_workers_one_of_which_never_answers_have_average_delay_one():
    # The paper's n = 2 example: "τ_avg = 2" there is 1 here, because delays start at 0.
    T = 1000
    history = History()
    history.assign([1, 0])
    for _ in range(T):
        history.arrive(history.active[-1], then=[0])
    delays = history.trace().delays
    assert delays.average == T / (T + 2 - 1)
    assert delays.average == pytest.approx(1, abs=1e-2)
    assert delays.maximum == T
    assert delays.mean_concurrency == 2.0
    assert delays.per_worker == {0: 0.0, 1: float(T)}


def test_equal_workers_have_delay_n_minus_1_after_the_start():
    n, history = 5, History()
    history.assign(range(5))
    for _ in range(40):
        history.arrive(history.active[0], then=[history.jobs[history.active[0]].worker])
    assert history.trace().delay.tolist() == [0, 1, 2, 3] + [n - 1] * 36


def test_the_job_assigned_last_is_left_out_so_that_a_straggler_is_not_hidden():
    history = History()
    history.assign([0, 1])
    for _ in range(9):
        history.arrive(history.active[-1], then=[1])
    assert history.trace().delays.maximum == 9


def test_nothing_in_flight_divides_by_the_number_of_arrivals():
    history = History()
    history.assign([0, 1])
    history.arrive(0)
    history.arrive(1)
    delays = history.trace().delays
    assert (delays.average, delays.maximum) == (0.5, 1)


def test_lost_cancelled_and_rejected_jobs_have_no_delay_but_are_active_until_they_end():
    history = History()
    history.assign([0, 1, 2])
    history.arrive(0, then=[0])
    history.fail(1, Outcome.LOST)
    history.arrive(3, then=[0])
    history.fail(2, Outcome.CANCELLED)
    trace = history.trace()
    assert trace.delays.per_worker == {0: 0.0}
    assert trace.active.tolist() == [3, 2, 1]
    assert trace.check().others == 1 + 2


def test_early_jobs_count_their_delay_from_the_point_they_were_given():
    history = History()
    history.assign([0])
    history.arrive(0, early=[0])
    history.arrive(1, early=[0])
    trace = history.trace()
    assert trace.delay.tolist() == [0, 1]
    assert trace.active.tolist() == [1, 1, 1]


@pytest.mark.parametrize("in_flight", [0, 1])
def test_nothing_to_average(in_flight):
    history = History()
    history.assign(range(in_flight))
    trace = history.trace()
    assert math.isnan(trace.delays.average)
    assert (trace.delays.maximum, trace.delays.concurrency, trace.delays.mean_concurrency) == (
        0,
        in_flight,
        in_flight,
    )
    assert trace.delays.per_worker == dict.fromkeys(range(in_flight), 0.0)
    assert trace.delays.histogram().tolist() == []
    assert math.isnan(trace.remark5().exact)
    trace.check()


def test_an_empty_trace_has_every_column():
    trace = Recorder().trace()
    assert len(trace) == trace.iterations == 0
    assert trace.delay.size == trace.staleness.size == trace.duration.size == 0
    assert trace.check().concurrency == 0


def test_remark_5_is_off_by_one():
    T, n = 500, 7
    trace = busy_run(n, T).trace()
    both = trace.remark5()
    assert both.paper == pytest.approx((T + 1) / (T + n - 1) * n)
    assert both.exact == trace.delays.average
    # j_T was assigned at T, so its delay is 0.
    assert both.difference == pytest.approx((T + n) / (T + n - 1))


def test_from_history_is_what_a_recorder_writes():
    recorded = busy_run(3, 30).trace()
    jobs = recorded.jobs
    short = Trace.from_history(jobs.worker.tolist(), jobs.assigned_iteration.tolist(), jobs.ended_iteration.tolist())
    assert short.delays.per_worker == recorded.delays.per_worker
    assert short.check() == recorded.check()
