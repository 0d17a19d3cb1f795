"""The recorder writes down what it is told, refuses what cannot be, and a refusal changes nothing."""

import dataclasses

import numpy as np
import pytest
from histories import POINT, History, busy_run, histories
from hypothesis import given
from hypothesis import strategies as st

from asyncsgd.core.errors import TraceError
from asyncsgd.core.events import Assign, Ended, Job, Outcome
from asyncsgd.trace import Recorder


def started() -> tuple[History, Recorder]:
    history = busy_run(2, 3)
    return history, history.recorder(capacity=1)


def end(history: History, which: int, outcome: Outcome = Outcome.LOST, **changes) -> Ended:
    ended = Ended(history.jobs[which], outcome, len(history.sets), history.version, 0.0, len(history.active), 2)
    return dataclasses.replace(ended, **changes)


@given(histories(), st.integers(1, 50))
def test_capacity_does_not_matter(history, capacity):
    assert history.recorder(capacity=capacity).trace() == history.recorder().trace()


def test_the_first_recorded_cells():
    job = Job(id=0, worker=7, iteration=2, version=1, entered=3, seed=9)
    recorder = Recorder()
    recorder.record(0.25, [Assign(job, POINT, 0)], [])
    assert len(recorder) == 1
    row = recorder.trace().to_arrow().to_pylist()[0]
    assert np.isnan([row.pop("ended_time"), row.pop("step"), row.pop("seconds")]).all()
    assert row == {
        "job": 0, "worker": 7, "assigned_iteration": 2, "assigned_version": 1, "entered": 3, "assigned_time": 0.25,
        "outcome": "in_flight", "ended_iteration": -1, "ended_version": -1, "concurrency": -1, "workers": -1,
        "steps": 1, "batch": 0, "examples": -1,
    }  # fmt: skip
    recorder.record(0.75, [], [Ended(job, Outcome.APPLIED, 5, 4, 0.125, 6, 8)])
    jobs = recorder.trace().jobs
    assert (jobs.outcome[0], jobs.ended_iteration[0], jobs.ended_version[0]) == (Outcome.APPLIED, 5, 4)
    assert (jobs.ended_time[0], jobs.step[0], jobs.concurrency[0], jobs.workers[0]) == (0.75, 0.125, 6, 8)


def test_a_snapshot_does_not_change_when_recording_goes_on():
    history = busy_run(2, 20)
    recorder = Recorder(capacity=100)
    for event in history.events[:10]:
        recorder.record(*event)
    snapshot, again = recorder.trace(), recorder.trace()
    for event in history.events[10:]:
        recorder.record(*event)
    assert snapshot == again
    assert len(recorder.trace()) > len(snapshot)


@given(histories(), st.data())
def test_resuming_goes_on_as_if_nothing_had_happened(history, data):
    cut = data.draw(st.integers(0, len(history.events)))
    recorder = Recorder.resume(History(events=history.events[:cut]).recorder(metadata={"a": "b"}).trace())
    for event in history.events[cut:]:
        recorder.record(*event)
    assert recorder.trace() == history.recorder(metadata={"a": "b"}).trace()


def test_a_job_may_be_assigned_and_cancelled_in_one_event():
    history, recorder = started()
    job = Job(len(history.jobs), 0, 3, 3, 3, seed=0)
    recorder.record(9.0, [Assign(job, POINT, 0)], [Ended(job, Outcome.CANCELLED, 3, 3, 0.0, 3, 2)])
    recorder.trace(final_concurrency=2).check()


def refused(history: History) -> dict:
    new = len(history.jobs)
    flying, other = history.active
    done = history.arrivals[0][0]
    job = Job(new, 0, 3, 3, 3, seed=0)
    skipped = Job(new + 1, 0, 3, 3, 3, seed=0)
    unknown = dataclasses.replace(end(history, flying), job=skipped)
    return {
        "unknown job": ([], [unknown], f"job {new + 1} ended, but only jobs 0..{new - 1}"),
        "job that has ended": ([], [end(history, done)], f"job {done} of worker .* twice: it was applied already"),
        "job twice in one event": ([], [end(history, flying)] * 2, f"job {flying} of worker .* ended twice"),
        "end as in flight": ([], [end(history, flying, Outcome.IN_FLIGHT)], "cannot end as in flight"),
        "number left out": ([Assign(skipped, POINT, 0)], [], f"job {new + 1} was assigned after {new} others"),
        "number given twice": ([Assign(job, POINT, 0)] * 2, [], f"job {new} was assigned after {new + 1}"),
        "second of two": ([Assign(job, POINT, 0)], [end(history, other), unknown], "only jobs"),
        "end of a refused job": ([Assign(job, POINT, 0)], [end(history, flying, job=job), unknown], "only jobs"),
    }  # fmt: skip


@pytest.mark.parametrize("case", refused(started()[0]))
def test_a_refusal_changes_nothing(case):
    history, recorder = started()
    before = recorder.trace()
    commands, ended, message = refused(history)[case]
    with pytest.raises(TraceError, match=message):
        recorder.record(9.0, commands, ended)
    assert recorder.trace() == before
    # ... and later rows are none the worse for it.
    worker = history.jobs[history.active[0]].worker
    history.arrive(history.active[0], then=[worker, worker])
    recorder.record(*history.events[-1])
    assert recorder.trace() == history.recorder().trace()


def test_a_cell_of_the_wrong_type_changes_nothing():
    history, recorder = started()
    before = recorder.trace()
    with pytest.raises(TraceError, match="cannot be recorded"):
        recorder.record(9.0, [], [end(history, history.active[0], concurrency="two")])
    assert recorder.trace() == before


def test_numpy_numbers_are_welcome():
    recorder = Recorder()
    job = Job(0, np.int64(3), np.int64(0), np.int64(0), np.int64(0), seed=0)
    recorder.record(np.float32(0.5), [Assign(job, POINT, 0)], [])
    recorder.record(1, [], [Ended(job, Outcome.APPLIED, np.int64(0), np.int64(0), np.float32(0.5), np.int64(1), 1)])
    recorder.trace(0).check()


def test_metadata_is_kept():
    assert Recorder(metadata={"method": "fedbuff"}).trace().metadata == {"method": "fedbuff"}


@pytest.mark.parametrize("worker", [True, np.True_, 0.0, "0", None, np.array([0]), 2**63])
def test_a_worker_that_cannot_be_recorded(worker):
    history, recorder = started()
    before = recorder.trace()
    job = Job(len(history.jobs), worker, 3, 3, 3, seed=0)
    with pytest.raises(TraceError, match="whole number"):
        recorder.record(9.0, [Assign(job, POINT, 0)], [end(history, history.active[0])])
    assert recorder.trace() == before


@pytest.mark.parametrize("kind", [float, np.float64, lambda number: np.array([number]), str])
def test_a_job_that_is_not_a_whole_number(kind):
    history, recorder = started()
    before = recorder.trace()
    job = Job(kind(len(history.jobs)), 0, 3, 3, 3, seed=0)
    with pytest.raises(TraceError, match="whole number"):
        recorder.record(9.0, [Assign(job, POINT, 0)], [])
    flying = history.active[0]
    ended = dataclasses.replace(end(history, flying), job=dataclasses.replace(history.jobs[flying], id=kind(flying)))
    with pytest.raises(TraceError, match="whole number"):
        recorder.record(9.0, [], [ended])
    assert recorder.trace() == before


@pytest.mark.parametrize("outcome", [True, 4.0, 99, -1, "LOST", np.array([4]), np.array([4, 3])])
def test_an_outcome_that_is_not_one(outcome):
    history, recorder = started()
    before = recorder.trace()
    with pytest.raises(TraceError, match=r"outcome .*pass an Outcome"):
        recorder.record(9.0, [], [end(history, history.active[1]), end(history, history.active[0], outcome)])
    assert recorder.trace() == before


@pytest.mark.parametrize("value", ["soon", None, np.zeros(2), 1j])
def test_a_time_or_a_step_that_cannot_be_recorded(value):
    history, recorder = started()
    before = recorder.trace()
    for time, ended in ((value, end(history, history.active[0])), (9.0, end(history, history.active[0], step=value))):
        with pytest.raises(TraceError, match="cannot be recorded"):
            recorder.record(time, [], [ended])
    assert recorder.trace() == before


def test_integers_of_numpy_are_recorded():
    history, recorder = started()
    job = Job(np.int64(len(history.jobs)), np.int64(0), 3, 3, 3, seed=0)
    recorder.record(9.0, [Assign(job, POINT, 0)], [end(history, history.active[0], np.uint8(4))])
    assert recorder.trace().counts[Outcome.LOST] == 1
