"""Waiting told from computing, against a loop that plays the queues."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import asyncsgd as asgd
from asyncsgd.core.events import Outcome
from asyncsgd.trace import Jobs, Trace
from asyncsgd.trace.columns import DTYPES, IN_FLIGHT
from asyncsgd.trace.timeline import spans


def naive(trace: Trace, horizon: float) -> tuple[list[float], list[float]]:
    """Each worker takes its jobs one after the other."""
    free: dict[int, float] = {}
    begins, ends = [], []
    for job in range(len(trace)):
        worker = int(trace.jobs.worker[job])
        end = horizon if trace.jobs.in_flight[job] else float(trace.jobs.ended_time[job])
        begin = min(max(float(trace.jobs.assigned_time[job]), free.get(worker, 0.0)), end)
        free[worker] = max(free.get(worker, 0.0), end)
        begins.append(begin)
        ends.append(end)
    return begins, ends


@pytest.mark.parametrize(
    "method",
    [asgd.async_sgd(0.05), asgd.federated_async_sgd(0.05, concurrency=7), asgd.minibatch_sgd(0.05)],
    ids=lambda method: method.name,
)
def test_simulated_runs(method: asgd.Method) -> None:
    speeds = asgd.durations.exponential([1.0, 2.0, 5.0])
    trace = asgd.simulate(asgd.tasks.quadratic(workers=3), method, speeds, iterations=200).trace
    found = spans(trace)
    assert found.timed
    begin, end = naive(trace, found.horizon)
    assert found.begin.tolist() == begin
    assert found.end.tolist() == end
    assert (found.waited == (found.begin > trace.jobs.assigned_time)).all()
    assert found.waited.any() == (method.name == "federated_async_sgd")


@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 20), st.integers(0, 9), st.sampled_from(list(Outcome))),
        min_size=0,
        max_size=30,
    )
)
def test_any_record(rows: list[tuple[int, int, int, Outcome]]) -> None:
    """Jobs that were cancelled behind others too: they never began, and nobody behind them waits the less."""
    columns = {name: np.zeros(len(rows), dtype) for name, dtype in DTYPES.items()}
    columns["job"] = np.arange(len(rows))
    columns["worker"] = np.array([row[0] for row in rows], np.int64)
    columns["assigned_time"] = np.array([row[1] for row in rows], float)
    columns["ended_time"] = np.array([row[1] + row[2] for row in rows], float)
    columns["outcome"] = np.array([row[3] for row in rows], np.uint8)
    flying = columns["outcome"] == Outcome.IN_FLIGHT
    for name, value in IN_FLIGHT.items():
        columns[name][flying] = value
    trace = Trace(Jobs(**columns))
    found = spans(trace)
    begin, end = naive(trace, found.horizon)
    assert found.begin.tolist() == begin
    assert found.end.tolist() == end
    assert (found.begin <= found.end).all()


def test_without_a_clock_iterations_stand_for_it() -> None:
    trace = Trace.from_history(workers=[0, 1, 1], assigned=[0, 0, 1], arrived=[1, 0, -1])
    found = spans(trace)
    assert not found.timed
    assert (found.begin.tolist(), found.end.tolist(), found.horizon) == ([0, 0, 1], [2, 1, 2], 2)
