"""check() accepts every consistent history, and names the job in every inconsistent one."""

import numpy as np
import pytest
from histories import History, busy_run, histories
from hypothesis import assume, given
from hypothesis import strategies as st

from asyncsgd.core.errors import IdentityViolation, TraceError
from asyncsgd.core.events import Outcome
from asyncsgd.trace import Jobs, Trace
from asyncsgd.trace.columns import DTYPES


def changed(trace: Trace, **cells) -> Trace:
    """The trace with some cells changed: column={row: value}."""
    columns = {name: getattr(trace.jobs, name).copy() for name in DTYPES}
    for name, values in cells.items():
        for row, value in values.items():
            columns[name][row] = value
    return Trace(Jobs(**columns), trace.metadata, trace.final_concurrency)


def shifted(trace: Trace, column: str, row: int, by: int) -> Trace:
    return changed(trace, **{column: {row: getattr(trace.jobs, column)[row] + by}})


def without(trace: Trace, row: int, *, renumber: bool) -> Trace:
    columns = {name: np.delete(getattr(trace.jobs, name), row) for name in DTYPES}
    if renumber:
        columns["job"] = np.arange(len(trace) - 1)
    return Trace(Jobs(**columns), trace.metadata, trace.final_concurrency)


def assert_names(trace: Trace, job: int, **options) -> None:
    """The message names the job, unless there are too many suspects to list."""
    with pytest.raises(TraceError, match=rf"\bjob {job} of worker |; and \d+ more") as caught:
        trace.check(**options)
    assert len(str(caught.value)) < 1000


@given(histories())
def test_every_history_passes(history):
    trace = history.trace()
    identity = trace.check()
    sets = [*history.sets, history.active]
    assert identity.concurrency == identity.total == sum(len(c) for c in sets)
    arrived, flying = {job for job, _ in history.arrivals}, set(history.active)
    assert identity.delays == sum(job in arrived for c in sets for job in c)
    assert identity.in_flight == sum(job in flying for c in sets for job in c)


@given(histories(early=False))
def test_without_early_jobs_the_identity_is_the_one_of_the_notes(history):
    trace, T = history.trace(), len(history.sets)
    identity = trace.check(early=False)
    assert identity.delays == sum(tau + 1 for _, tau in history.arrivals)
    assert identity.in_flight == sum(T - history.jobs[job].iteration + 1 for job in history.active)


@given(histories())
def test_every_prefix_of_a_run_passes(history):
    shorter = History(events=history.events[: len(history.events) // 2])
    shorter.recorder().trace().check()


# ------------------------------------------------------------------------- deliberate bugs: one cell of one row

sign = st.sampled_from([-1, 1])


def rows(trace, where):
    found = np.flatnonzero(where(trace.jobs)).tolist()
    assume(found)
    return st.sampled_from(found)


def failed(jobs):
    return ~(jobs.arrived | jobs.in_flight)


@given(histories(early=False), st.data(), sign)
def test_a_delay_off_by_one_is_caught(history, data, by):
    trace = history.trace()
    row = data.draw(rows(trace, lambda jobs: jobs.job >= 0))
    assert_names(shifted(trace, "assigned_iteration", row, by), row, early=False)


@given(st.integers(0, 30), sign)
def test_a_delay_off_by_one_is_caught_by_the_versions_even_where_early_jobs_are_allowed(row, by):
    assert_names(shifted(busy_run(4, 30).trace(), "assigned_iteration", row, by), row)


@given(histories(), st.data(), sign)
def test_a_wrong_entry_is_caught(history, data, by):
    trace = history.trace()
    row = data.draw(rows(trace, lambda jobs: jobs.job >= 0))
    assert_names(shifted(trace, "entered", row, by), row)


@given(histories(), st.data(), sign)
def test_a_delay_and_its_entry_off_by_one_together_are_caught(history, data, by):
    trace = history.trace()
    row = data.draw(rows(trace, lambda jobs: jobs.job >= 0))
    assert_names(shifted(shifted(trace, "entered", row, by), "assigned_iteration", row, by), row)


@given(histories(), st.data(), sign)
def test_an_arrival_at_the_wrong_iteration_is_caught(history, data, by):
    trace = history.trace()
    row = data.draw(rows(trace, lambda jobs: jobs.arrived))
    assert_names(shifted(trace, "ended_iteration", row, by), row)


@given(histories(), st.data(), sign)
def test_a_loss_at_the_wrong_iteration_is_caught(history, data, by):
    trace = history.trace()
    row = data.draw(rows(trace, failed))
    assert_names(shifted(trace, "ended_iteration", row, by), row)


@given(histories(), st.data(), sign)
def test_a_miscounted_concurrency_is_caught(history, data, by):
    trace = history.trace()
    row = data.draw(rows(trace, lambda jobs: jobs.arrived))
    broken = shifted(trace, "concurrency", row, by)
    t = trace.jobs.ended_iteration[row]
    size = trace.active[t]
    with pytest.raises(IdentityViolation, match=f"C_{t} holds {size} jobs, the server counted {size + by}") as caught:
        broken.check()
    assert f"job {row} of worker {trace.jobs.worker[row]}" in str(caught.value)


@given(histories(), sign)
def test_a_miscounted_final_concurrency_is_caught(history, by):
    trace = history.trace()
    broken = Trace(trace.jobs, {}, trace.final_concurrency + by)
    with pytest.raises(IdentityViolation, match=f"iteration {trace.iterations}"):
        broken.check()
    Trace(trace.jobs).check()  # nobody asked the server


@given(histories(), st.data())
def test_an_update_applied_twice_is_caught(history, data):
    trace = history.trace()
    assume(trace.iterations >= 2)
    one, other = data.draw(st.permutations(np.flatnonzero(trace.jobs.arrived).tolist()))[:2]
    broken = changed(trace, ended_iteration={other: trace.jobs.ended_iteration[one]})
    with pytest.raises(TraceError) as caught:
        broken.check()
    assert f"job {other} of worker" in str(caught.value)


@given(histories(), st.data())
def test_a_missing_job_is_caught(history, data):
    trace = history.trace()

    # A job that was lost before it was in any C_t adds nothing; without the last arrival the run is just shorter.
    def shows(jobs):
        last = jobs.arrived & (jobs.ended_iteration == trace.iterations - 1)
        return ~last & ~(failed(jobs) & (jobs.ended_iteration == jobs.entered))

    row = data.draw(rows(trace, shows))
    with pytest.raises(TraceError):
        without(trace, row, renumber=True).check()
    if row < len(trace) - 1:
        with pytest.raises(TraceError, match=f"in row {row}, where job {row} belongs"):
            without(trace, row, renumber=False).check()


@given(histories(), st.data(), sign)
def test_a_wrong_version_at_assignment_is_caught(history, data, by):
    trace = history.trace()
    row = data.draw(rows(trace, lambda jobs: jobs.assigned_iteration < trace.iterations))
    assert_names(shifted(trace, "assigned_version", row, by), row)


@given(histories(), st.data(), sign)
def test_a_wrong_version_at_arrival_is_caught_where_somebody_was_given_that_point(history, data, by):
    trace = history.trace()
    row = data.draw(rows(trace, lambda jobs: jobs.arrived & np.isin(jobs.ended_iteration, jobs.assigned_iteration)))
    assert_names(shifted(trace, "ended_version", row, by), row)


@given(histories(), st.data(), st.sampled_from(["in_flight", "ended"]))
def test_cells_that_do_not_fit_the_outcome_are_caught(history, data, kind):
    trace = history.trace()
    row = data.draw(rows(trace, lambda jobs: jobs.in_flight if kind == "in_flight" else ~jobs.in_flight))
    if kind == "in_flight":
        column = data.draw(
            st.sampled_from(["ended_iteration", "ended_version", "ended_time", "step", "concurrency", "workers"])
        )
        assert_names(changed(trace, **{column: {row: 3}}), row)
    else:
        column, value = data.draw(
            st.sampled_from(
                [
                    ("outcome", Outcome.IN_FLIGHT),
                    ("outcome", 6),
                    ("outcome", 255),
                    ("step", -0.5),
                    ("step", np.nan),
                    ("step", np.inf),
                    ("ended_time", -1.0),
                    ("ended_time", np.nan),
                    ("assigned_time", np.inf),
                    ("assigned_time", np.nan),
                    ("workers", -1),
                ]
            )
        )
        assert_names(changed(trace, **{column: {row: value}}), row)


@pytest.mark.parametrize(
    ("cells", "message"),
    [
        ({"outcome": {4: Outcome.DROPPED}}, r"job 4 of worker \d \(dropped\): was not applied, yet its step is 0.5"),
        ({"outcome": {4: Outcome.LOST}}, r"job 4 of worker \d \(lost\): was not applied, yet its step is 0.5"),
        ({"outcome": {4: Outcome.LOST}, "step": {4: 0}}, r"20 arrivals|no row arrived at iteration 2\)"),
        ({"outcome": {4: 9}}, r"job 4 of worker \d \(outcome 9\): outcome code 9 is unknown"),
        ({"step": {4: -1.0}}, r"job 4 of worker \d \(applied\): was applied with step -1.0"),
        ({"ended_time": {4: 0.0}}, r"job 4 .*ended at time 0.0, before it was assigned at"),
        ({"assigned_iteration": {4: -3}}, r"job 4 .*was assigned x\^\(-3\)"),
        ({"entered": {4: 0}}, r"job 4 .*assigned x\^\(\d\) but entered C_0; it must enter C_\d, or C_\d if"),
        ({"job": {4: 5}}, r"job 5 .*is in row 4, where job 4 belongs"),
    ],
)
def test_messages_say_which_job_and_why(cells, message):
    with pytest.raises(TraceError, match=message):
        changed(busy_run(3, 20, seed=1).trace(), **cells).check()


def test_a_violation_over_a_stretch_names_the_row_at_its_border():
    history = History()
    history.assign(range(4))
    for t in range(9):  # a buffer that never fills: no version tells one point from another
        if t == 4:
            history.fail(history.active[0])
        history.arrive(history.active[-1], moves=False, then=[9])
    [row] = np.flatnonzero(history.trace().jobs.outcome == Outcome.LOST)
    broken = shifted(history.trace(), "ended_iteration", row, 3)
    with pytest.raises(IdentityViolation, match=rf"same for t = 4..6.*job {row} of worker \d \(lost\) left"):
        broken.check()


def test_every_cell_wrong_still_gives_a_named_error():
    trace = busy_run(3, 20).trace()
    for column in DTYPES:
        for value in (-(2**62), 2**62) if DTYPES[column].kind == "i" else (200,):
            for row in (0, 7, len(trace) - 1):
                broken = changed(trace, **{column: {row: value}})
                assert broken.delays.concurrency <= len(trace)  # never crashes, whatever it may say
                if column in (
                    "worker",
                    "assigned_time",
                    "ended_time",
                    "step",
                    "workers",
                    "steps",
                    "batch",
                    "examples",
                    "seconds",
                ):
                    continue  # could be so
                if column != "assigned_version" or row < len(trace) - 1:  # of x^(T) only that row knows
                    with pytest.raises(TraceError):
                        broken.check()


def test_times_may_be_unknown_but_not_here_and_there():
    trace = busy_run(3, 20).trace()
    nothing = dict.fromkeys(range(len(trace)), np.nan)
    changed(trace, assigned_time=nothing, ended_time=nothing).check()
    with pytest.raises(TraceError, match="times are finite, or NaN in every row"):
        changed(trace, assigned_time=nothing).check()


@pytest.mark.parametrize(
    ("column", "value", "words"),
    [
        ("steps", 0, "computes 0 mini-batches"),
        ("batch", -1, "was assigned after -1 mini-batches"),
        ("examples", -2, "used -2 examples"),
        ("seconds", -0.5, r"took -0\.5 seconds"),
        ("seconds", np.inf, "took inf seconds"),
    ],
)
def test_work_that_cannot_be(column, value, words):
    with pytest.raises(TraceError, match=words):
        changed(busy_run(3, 20).trace(), **{column: {7: value}}).check()
