"""The plain clock with communication, changing speeds and workers that stop."""

import heapq
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markers import examples
from simulation.plain_clock import Still, drive

from asyncsgd import methods
from asyncsgd.core.errors import BadParameter
from asyncsgd.simulation import durations as du


def run(durations, method, iterations, seed=0, after=None):
    _, trace, end = drive(Still(0.0, 1), method, durations, iterations, seed, after=after)
    trace.check()
    return trace, end


def test_communication_shifts_arrivals_but_not_the_computing():
    """Two jobs queue on one worker: the second travels while the first is computed."""
    durations = du.fixed([4.0]).with_communication(down=1.0, up=0.5)
    trace, end = run(durations, methods.federated_async_sgd(0.1, concurrency=2), 4)
    # down 0-1; computed 1-5, 5-9; back at 5.5 and 9.5; new jobs are ready at 6.5 and 10.5: computed 9-13, 13-17
    assert trace.time.tolist() == [5.5, 9.5, 13.5, 17.5]
    assert end == 17.5


def test_a_worker_waits_for_what_is_still_under_way():
    trace, _ = run(du.fixed([4.0]).with_communication(down=1.0, up=0.5), methods.async_sgd(0.1), 3)
    assert trace.time.tolist() == [5.5, 11.0, 16.5]


def test_offline_windows_pause_a_job():
    trace, _ = run(du.fixed([2.0, 3.0]).offline(0, [(3.0, 10.0)]), methods.async_sgd(0.1), 6)
    assert list(zip(trace.worker.tolist(), trace.time.tolist(), strict=True)) == [
        (0, 2.0),
        (1, 3.0),
        (1, 6.0),
        (1, 9.0),
        (0, 11.0),
        (1, 12.0),
    ]


@given(st.lists(st.sampled_from([1.0, 1.5, 2.0, 0.1]), min_size=1, max_size=5), st.integers(0, 9))
@examples(30)
def test_without_modifiers_it_is_begin_plus_draw(means, seed):
    durations = du.exponential(means)
    trace, _ = run(durations, methods.async_sgd(0.1), 40, seed)
    heap = [(durations.draw(w, 0, seed), w, w, 0) for w in range(len(means))]
    heapq.heapify(heap)
    for t in range(40):
        time, _, worker, k = heap[0]
        assert (trace.time[t], trace.worker[t]) == (time, worker)
        heapq.heapreplace(heap, (time + durations.draw(worker, k + 1, seed), len(means) + t, worker, k + 1))


def test_a_stopped_worker_is_waited_for_in_vain_only_by_those_who_need_it():
    durations = du.fixed([1.0, 1.0]).with_speeds(1, [2.5], [0.0])
    trace, _ = run(durations, methods.async_sgd(0.1), 50)
    assert (trace.worker == 1).sum() == 2
    with pytest.raises(BadParameter, match=r"durations = <Durations: .*> let only 5 of 50 gradients arrive: .*; let "):
        run(durations, methods.minibatch_sgd(0.1), 50)


def test_all_stopped_is_an_error_and_no_hang():
    durations = du.fixed([1.0, 2.0]).offline([0, 1], [(3.0, math.inf)])
    assert len(run(durations, methods.async_sgd(0.1), 4)[0].time) == 4
    with pytest.raises(BadParameter, match="let only 4 of 5 gradients arrive"):
        run(durations, methods.async_sgd(0.1), 5)


def test_a_cancelled_job_frees_its_worker():
    durations = du.fixed([1.0, 100.0]).with_communication(down=0.25)
    trace, _ = run(durations, methods.fedavg(0.1, clients=1, ask=2), 3)
    assert trace.time.tolist() == [1.25, 2.5, 3.75]
    assert trace.worker.tolist() == [0, 0, 0]


def test_the_caller_may_stop_early():
    trace, end = run(du.fixed([1.0]), methods.async_sgd(0.1), 100, after=lambda time: time >= 7)
    assert end == 7.0
    assert len(trace.time) == 7
