"""The columns of a trace, and that nobody can change them."""

import pickle
import subprocess
import sys

import numpy as np
import pytest
from histories import History, busy_run, histories
from hypothesis import given
from hypothesis import strategies as st

from asyncsgd.core.errors import TraceError
from asyncsgd.core.events import Outcome
from asyncsgd.trace import Jobs, Trace
from asyncsgd.trace.columns import DTYPES

PER_ARRIVAL = [
    "job", "worker", "delay", "staleness", "time", "duration", "step", "outcome", "version", "concurrency", "workers",
    "assigned_iteration", "assigned_version", "assigned_time",
]  # fmt: skip


def mixed() -> History:
    history = History()
    history.assign([4, 5])
    history.arrive(1, moves=False, then=[5])
    history.fail(2, Outcome.REJECTED, then=[5])
    history.arrive(3, applied=False)
    history.arrive(0, then=[4])
    history.assign([5])
    history.fail(5, Outcome.CANCELLED)
    return history


def test_one_row_per_arrival_in_order_of_iteration():
    trace = mixed().trace()
    assert trace.iterations == 3
    assert trace.job.tolist() == [1, 3, 0]
    assert trace.worker.tolist() == [5, 5, 4]
    assert trace.assigned_iteration.tolist() == [0, 1, 0]
    assert trace.delay.tolist() == [0, 0, 2]
    assert trace.version.tolist() == [0, 0, 0]
    assert trace.staleness.tolist() == [0, 0, 0]
    assert trace.outcome.tolist() == [Outcome.APPLIED, Outcome.DROPPED, Outcome.APPLIED]
    assert trace.step.tolist() == [0.5, 0.0, 0.5]
    assert trace.concurrency.tolist() == [2, 2, 1]
    assert trace.time.tolist() == [1.0, 3.0, 4.0]
    assert trace.duration.tolist() == [1.0, 1.0, 4.0]
    assert trace.workers.tolist() == [3, 3, 3]


def test_counts_and_length():
    trace = mixed().trace()
    assert len(trace) == 6
    assert trace.counts == {
        Outcome.IN_FLIGHT: 1,
        Outcome.APPLIED: 2,
        Outcome.DROPPED: 1,
        Outcome.REJECTED: 1,
        Outcome.LOST: 0,
        Outcome.CANCELLED: 1,
    }
    assert repr(trace) == "<Trace: 6 jobs, 3 iterations: 1 in flight, 2 applied, 1 dropped, 1 rejected, 1 cancelled>"


@pytest.mark.parametrize("name", PER_ARRIVAL)
def test_columns_per_arrival_are_read_only(name):
    column = getattr(mixed().trace(), name)
    assert len(column) == 3
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1


@pytest.mark.parametrize("name", DTYPES)
def test_columns_per_job_are_read_only_and_typed(name):
    column = getattr(mixed().trace().jobs, name)
    assert column.dtype == DTYPES[name]
    with pytest.raises(ValueError, match="read-only"):
        column[0] = 1


def test_building_a_trace_copies_nothing():
    columns = {name: getattr(mixed().trace().jobs, name).copy() for name in DTYPES}
    jobs = Jobs(**columns)
    assert all(np.shares_memory(getattr(jobs, name), columns[name]) for name in DTYPES)
    assert columns["job"].flags.writeable  # the caller's array stays the caller's


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"worker": np.zeros(2, np.int64)}, "differ in length"),
        ({"worker": np.zeros((6, 1), np.int64)}, r"'worker' has shape \(6, 1\)"),
        ({"worker": np.zeros(6)}, "'worker' is float64, which does not fit int64"),
        ({"outcome": np.zeros(6, np.int64)}, "'outcome' is int64, which does not fit uint8"),
    ],
)
def test_columns_that_do_not_fit_are_refused(change, message):
    columns = {name: getattr(mixed().trace().jobs, name) for name in DTYPES} | change
    with pytest.raises(TraceError, match=message):
        Jobs(**columns)


def test_equality_sees_every_cell_and_fact():
    trace = mixed().trace()
    assert trace == mixed().trace()
    assert trace != Trace(trace.jobs, {}, trace.final_concurrency)
    assert trace != Trace(trace.jobs, trace.metadata, 99)
    assert trace != busy_run(1, 2).trace()
    assert trace != "trace"


def test_pickling_keeps_the_columns_read_only():
    trace = mixed().trace()
    assert trace.delays.maximum == 2
    again = pickle.loads(pickle.dumps(trace))
    assert again == trace
    assert not again.jobs.worker.flags.writeable


@given(histories(), st.data())
def test_rewinding_gives_the_trace_as_it_was(history, data):
    cut = data.draw(st.integers(0, len(history.events)))
    before = History(events=history.events[:cut]).recorder(metadata={"seed": "7"}).trace()
    flying = np.flatnonzero(before.jobs.in_flight).tolist()
    assert history.trace().rewind(len(before), flying) == before


def test_rewinding_to_what_the_trace_does_not_know_is_refused():
    trace = busy_run(2, 4).trace()
    with pytest.raises(TraceError, match="cannot rewind to 7 jobs, the trace has 6"):
        trace.rewind(7, [])
    with pytest.raises(TraceError, match="only jobs below 3"):
        trace.rewind(3, [3])
    flying = np.flatnonzero(trace.jobs.in_flight).tolist()
    with pytest.raises(TraceError, match=f"job {flying[0]} has ended by then"):
        trace.rewind(6, flying[1:])


def test_importing_does_not_load_pyarrow():
    code = "import asyncsgd.trace, sys; sys.exit(bool({'pyarrow', 'pandas', 'polars'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize("wrong", [[0.5, 1.0, 0.0], [True, False, True], ["0", "1", "0"], [0, 1, None], 3])
@pytest.mark.parametrize("column", ["workers", "assigned", "arrived"])
def test_a_history_of_what_is_not_whole_numbers_is_refused(column, wrong):
    history = {"workers": [0, 1, 0], "assigned": [0, 0, 1], "arrived": [0, 1, -1]}
    Trace.from_history(**history).check()
    with pytest.raises(TraceError, match=f"{column}.*whole number"):
        Trace.from_history(**{**history, column: wrong})


def test_columns_of_truth_values_are_refused():
    jobs = Trace.from_history(workers=[0, 1], assigned=[0, 0], arrived=[0, 1]).jobs
    columns = {name: getattr(jobs, name) for name in DTYPES}
    with pytest.raises(TraceError, match="'worker' is bool"):
        Jobs(**{**columns, "worker": np.array([False, True])})
