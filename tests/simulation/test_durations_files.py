"""Measured durations from CSV, Parquet and traces: round trips, layouts, and all that can be wrong with a file."""

import csv

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from markers import examples

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, BadTraceFile, UsageError
from asyncsgd.core.events import Outcome
from asyncsgd.simulation import durations as du
from asyncsgd.trace import Jobs, Trace

seconds = st.floats(1e-9, 1e9)
tables = st.lists(st.lists(seconds, min_size=1, max_size=5), min_size=1, max_size=5)
fixtures_are_fine = examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])


def samples_of(durations):
    low = durations.lowered
    pieces = np.split(low.samples, low.sample_bounds[1:-1])
    return [piece.tolist() for piece in pieces]


def write_csv(path, text, encoding="utf-8"):
    path.write_text(text, encoding=encoding)
    return path


# ------------------------------------------------------------------------- round trips


@given(tables)
@fixtures_are_fine
def test_csv_columns_come_back(tmp_path, table):
    longest = max(map(len, table))
    with (tmp_path / "d.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([f"w{i}" for i in range(len(table))])
        writer.writerows([samples[row] if row < len(samples) else "" for samples in table] for row in range(longest))
    assert samples_of(du.from_csv(tmp_path / "d.csv")) == table


@given(tables, st.randoms())
@fixtures_are_fine
def test_csv_rows_come_back(tmp_path, table, random):
    rows = [(worker, value) for worker, samples in enumerate(table) for value in samples]
    keyed = sorted(rows, key=lambda row: (random.random(), row))
    path = write_csv(tmp_path / "d.csv", "worker,duration\n" + "".join(f"{3 * w},{v!r}\n" for w, v in keyed))
    assert list(map(sorted, samples_of(du.from_csv(path)))) == list(map(sorted, table))


@given(tables)
@fixtures_are_fine
def test_parquet_columns_come_back(tmp_path, table):
    longest = max(map(len, table))
    columns = {f"w{i}": samples + [None] * (longest - len(samples)) for i, samples in enumerate(table)}
    pq.write_table(pa.table(columns), tmp_path / "d.parquet")
    assert samples_of(du.from_parquet(tmp_path / "d.parquet")) == table


@given(tables)
@fixtures_are_fine
def test_parquet_rows_come_back(tmp_path, table):
    rows = [(worker, value) for worker, samples in enumerate(table) for value in samples]
    pq.write_table(pa.table({"duration": [v for _, v in rows], "worker": [w for w, _ in rows]}), tmp_path / "d")
    assert samples_of(du.from_parquet(str(tmp_path / "d"))) == table


def test_what_spreadsheets_and_pandas_write(tmp_path):
    path = write_csv(tmp_path / "bom.csv", "a, b\r\n1.5 ,2\r\n 3,\r\n\r\n", encoding="utf-8-sig")
    assert samples_of(du.from_csv(path)) == [[1.5, 3.0], [2.0]]
    assert samples_of(du.from_csv(write_csv(tmp_path / "short.csv", "a,b\n1,2\n  \n3,"))) == [[1.0, 3.0], [2.0]]
    assert samples_of(du.from_csv(write_csv(tmp_path / "ids.csv", "0,1\n1e0,2\n"))) == [[1.0], [2.0]]
    assert samples_of(du.from_csv(write_csv(tmp_path / "one.csv", "0\n1\n2\n"))) == [[1.0, 2.0]]
    frame = pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, np.nan]}, index=[7, 9])
    frame.to_csv(tmp_path / "p.csv", index=False)
    frame.to_parquet(tmp_path / "p.parquet")
    assert samples_of(du.from_csv(tmp_path / "p.csv")) == [[1.0, 2.0], [3.0]]
    assert samples_of(du.from_parquet(tmp_path / "p.parquet")) == [[1.0, 2.0], [3.0]]
    pl.DataFrame({"worker": ["x", "y", "x"], "duration": [1, 2, 3]}).write_parquet(tmp_path / "pl.parquet")
    assert samples_of(du.from_parquet(tmp_path / "pl.parquet")) == [[1.0, 3.0], [2.0]]
    words = pa.table({"worker": pa.array(["y", "x", "y"]).dictionary_encode(), "duration": [1.0, 2.0, 3.0]})
    pq.write_table(words, tmp_path / "words.parquet")
    assert samples_of(du.from_parquet(tmp_path / "words.parquet")) == [[1.0, 3.0], [2.0]]


def test_integer_workers_are_sorted_as_numbers_and_names_stay_in_order(tmp_path):
    path = write_csv(tmp_path / "n.csv", "worker,duration\n10,1\n9,2\n10,3\n")
    assert samples_of(du.from_csv(path)) == [[2.0], [1.0, 3.0]]
    path = write_csv(tmp_path / "s.csv", "duration,worker\n1,phone\n2,laptop\n3,phone\n")
    assert samples_of(du.from_csv(path)) == [[1.0, 3.0], [2.0]]


# ------------------------------------------------------------------------- traces


def trace_of(rows):
    """A trace of (worker, assigned, ended, outcome), times in seconds."""
    n = len(rows)
    worker, assigned, ended, outcome = (np.array(column) for column in zip(*rows, strict=True))
    zeros = np.zeros(n, np.int64)
    return Trace(
        Jobs(
            job=np.arange(n),
            worker=worker.astype(np.int64),
            assigned_iteration=zeros,
            assigned_version=zeros,
            entered=zeros,
            assigned_time=assigned.astype(float),
            outcome=outcome.astype(np.uint8),
            ended_iteration=zeros,
            ended_version=zeros,
            ended_time=ended.astype(float),
            step=np.ones(n),
            concurrency=zeros,
            workers=zeros,
        )
    )


OK, DROPPED, LOST, CANCELLED, FLYING = (
    Outcome.APPLIED,
    Outcome.DROPPED,
    Outcome.LOST,
    Outcome.CANCELLED,
    Outcome.IN_FLIGHT,
)


def test_a_trace_gives_the_computing_times():
    trace = trace_of(
        [
            (5, 0.0, 4.0, OK),  # 4 s
            (5, 1.0, 7.0, DROPPED),  # waits until 4, then 3 s
            (2, 1.0, 1.5, OK),  # 0.5 s
            (5, 9.0, 10.0, OK),  # idle before: 1 s
            (2, 2.0, 6.0, CANCELLED),  # holds the worker until 6
            (2, 3.0, 8.0, OK),  # 2 s
            (2, 8.0, np.nan, FLYING),
        ]
    )
    assert samples_of(du.from_trace(trace)) == [[0.5, 2.0], [4.0, 3.0, 1.0]]
    assert samples_of(du.from_trace(trace, skip=1)) == [[2.0], [3.0, 1.0]]
    with pytest.warns(UserWarning, match=r"1 workers of the trace \(2\) sent no update after those skipped"):
        assert samples_of(du.from_trace(trace, skip=2)) == [[1.0]]
    with pytest.raises(BadParameter, match="skip = -1"):
        du.from_trace(trace, skip=-1)


def test_a_loss_noticed_late_does_not_make_times_negative():
    trace = trace_of([(0, 0.0, 100.0, LOST), (0, 50.0, 60.0, OK), (0, 100.0, 103.0, OK)])
    assert samples_of(du.from_trace(trace)) == [[10.0, 3.0]]


@given(
    st.lists(st.integers(1, 40).map(lambda k: k / 4), min_size=1, max_size=6),
    st.sampled_from(["busy", "federated", "over"]),
    st.integers(0, 5),
)
@examples(25)
def test_a_simulated_run_gives_back_its_durations(seconds, which, seed):
    """Quarters of a second: begin + duration - begin is then exact, also behind queues and cancelled jobs."""
    n = len(seconds)
    method = {
        "busy": asgd.async_sgd(0.01),
        "federated": asgd.federated_async_sgd(0.01, concurrency=n + 2),
        "over": asgd.fedavg(0.01, clients=1, ask=n),
    }[which]
    task = asgd.tasks.quadratic(dim=2, workers=n)
    run = asgd.simulate(task, method, du.fixed(seconds), iterations=80, seed=seed)
    seen = np.unique(run.trace.worker)
    if len(seen) < len(np.unique(run.trace.jobs.worker)):
        with pytest.warns(UserWarning, match="sent no update"):
            durations = du.from_trace(run.trace)
    else:
        durations = du.from_trace(run.trace)
    for samples, worker in zip(samples_of(durations), seen, strict=True):
        assert set(samples) == {seconds[worker]}


def test_trace_files(tmp_path):
    run = asgd.simulate(asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1), du.exponential([1.0, 2.0]), iterations=50)
    run.trace.write(tmp_path / "t.parquet")
    expected = samples_of(du.from_trace(run.trace))
    assert samples_of(du.from_trace(tmp_path / "t.parquet")) == expected
    assert samples_of(du.from_trace(str(tmp_path / "t.parquet"))) == expected
    assert samples_of(du.from_parquet(tmp_path / "t.parquet")) == expected
    assert [len(own) for own in expected] == [(run.trace.worker == w).sum() for w in (0, 1)]


def test_workers_that_never_answered_are_named():
    trace = trace_of([(0, 0.0, 1.0, OK), (3, 0.0, np.nan, FLYING), (1, 0.0, 2.0, LOST)])
    with pytest.warns(UserWarning, match=r"2 workers of the trace \(1, 3\) sent no update and are left out"):
        assert du.from_trace(trace).workers == 1


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(0, 0.0, np.nan, FLYING)], "trace = .* has no arrival to measure; pass the trace of a longer run"),
        ([(0, np.nan, np.nan, OK)], r"trace = 'job 0 of worker 0 \(applied\)' took nan seconds"),
        ([(0, 0.0, 1.0, OK), (0, 0.5, 1.0, OK)], r"trace = 'job 1 of worker 0 \(applied\)' took 0.0 seconds; record"),
        ([(0, 5.0, 1.0, OK)], "took -4.0 seconds"),
    ],
)
def test_traces_without_times_are_refused(rows, message):
    with pytest.raises(BadParameter, match=message):
        du.from_trace(trace_of(rows))


# ------------------------------------------------------------------------- bad files


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "path = .*d.csv' is empty; write one column per worker under a header, or rows under"),
        ("\n\n", "is empty"),
        ("a,b\n", "has no duration in column 'a'"),
        ("a,b\n1,\n2,\n", "has no duration in column 'b'; give each worker a sample"),
        ("a,b\n1,2\n3,x\n", "d.csv, line 3, column 'b' = 'x' is not a number; pass positive finite seconds"),
        ("a,b\n1,2\n3,-4\n", "d.csv, line 3, column 'b' = -4.0 is not a duration; pass positive"),
        ("a\n0\n", "line 2, column 'a' = 0.0 is not a duration"),
        ("a\nnan\n", "line 2, column 'a' = nan is not a duration"),
        ("a\ninf\n", "line 2, column 'a' = inf is not a duration"),
        ("a\n1_0\n", "line 2, column 'a' = '1_0' is not a number"),
        ("a,b\n1,2\n\n,4\n5,\n", r"line 5, column 'a' = '5' follows an empty cell \(line 4\); leave cells empty only"),
        ("a,b\n1,2,3\n", r"line 2 = \['1', '2', '3'\] has 3 cells under 2 names; name every column"),
        ("a,b\n1,2\n3\n", r"line 3 = \['3'\] has 1 cells under 2 names; write all commas, also around empty cells"),
        ("a,a\n1,2\n", "line 1 = 'a' names two columns"),
        (",a\n0,1\n", r"line 1 = \['', 'a'\] has no name for column 1; .*index=False"),
        ("1.5,2.5\n1,2\n", "line 1 = '1.5' is data, not a header"),
        ("10,60\n11,61\n", r"line 1 = \['10', '60'\] holds numbers that are not 0, 1, 2, ..."),
        ("a;b\n1;2\n", "line 1 = 'a;b' is one cell; separate cells by commas"),
        ("worker,seconds\n0,1\n", r"line 1 = \['worker', 'seconds'\] lacks the column 'duration'"),
        ("duration\n1\n", "lacks the column 'worker'"),
        ("worker,duration,round\n0,1,2\n", "has more columns than worker and duration"),
        ("worker,duration\n", "has a header and nothing below"),
        ("worker,duration\n0,1\n1\n", r"line 3 = \['1'\] is not a worker and a duration"),
        ("worker,duration\n0,1\n,2\n", r"line 3 = \['', '2'\] is not a worker and a duration"),
        ("worker,duration\n0,1,2\n", "line 2 = .* is not a worker and a duration"),
        ("worker,duration\n0,fast\n", "line 2, column 'duration' = 'fast' is not a number"),
        ("worker,duration\n0,-1\n", "line 2, column 'duration' = -1.0 is not a duration"),
        ('a\n"1\n', "is not readable as CSV"),
    ],
)
def test_bad_csv_is_named_with_line_and_fix(tmp_path, text, message):
    with pytest.raises(BadParameter, match=message):
        du.from_csv(write_csv(tmp_path / "d.csv", text))


def test_csv_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "d.csv").write_bytes("wörker\n1\n".encode("latin-1"))
    with pytest.raises(BadParameter, match=r"is not readable as CSV .* save it as UTF-8"):
        du.from_csv(tmp_path / "d.csv")


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ({}, "path = .* has no column"),
        ({"a": ["x"]}, "d.parquet, column 'a' = 'string' does not hold seconds"),
        ({"a": [True]}, "column 'a' = 'bool' does not hold seconds"),
        ({"a": [1.0, -1.0]}, "d.parquet, row 1, column 'a' = -1.0 is not a duration"),
        ({"a": [1.0], "b": [np.nan]}, "row 0, column 'b' = nan is not a duration"),
        ({"a": [1.0, None, 2.0]}, "row 1, column 'a' = None is empty before the end"),
        ({"a": [1.0], "b": pa.array([None], pa.float64())}, "has no duration in column 'b'"),
        ({"a": pa.array([], pa.float64())}, "has no duration in column 'a'"),
        ({"worker": [0], "time": [1.0]}, "lacks the column 'duration'"),
        ({"worker": [0], "duration": [1.0], "x": [1]}, "has more columns than worker and duration"),
        ({"worker": [0, None], "duration": [1.0, 1.0]}, "row 1, column 'worker' is missing"),
        ({"worker": [0, 1], "duration": [1.0, None]}, "row 1, column 'duration' is missing"),
        ({"worker": [0.5], "duration": [1.0]}, "column 'worker' = 'double' does not name workers"),
        ({"worker": [0], "duration": ["1"]}, "column 'duration' = 'string' does not hold seconds"),
        ({"worker": [0], "duration": [0]}, "row 0, column 'duration' = 0.0 is not a duration"),
        ({"worker": pa.array([], pa.int64()), "duration": pa.array([], pa.float64())}, "has no duration in column"),
    ],
)
def test_bad_parquet_is_named_with_row_and_fix(tmp_path, table, message):
    pq.write_table(pa.table(table), tmp_path / "d.parquet")
    with pytest.raises(BadParameter, match=message):
        du.from_parquet(tmp_path / "d.parquet")


def test_a_trace_that_lost_its_metadata_is_no_table_of_workers(tmp_path):
    run = asgd.simulate(asgd.tasks.quadratic(workers=2), asgd.async_sgd(0.1), du.fixed([1.0, 2.0]), iterations=5)
    pq.write_table(run.trace.to_arrow().replace_schema_metadata({}), tmp_path / "t")
    with pytest.raises(BadParameter, match="lacks the column 'duration'"):
        du.from_parquet(tmp_path / "t")


@pytest.mark.parametrize("data", [b"", b"a,b\n1,2\n", b"PAR1" + bytes(100)])
def test_what_is_not_parquet_is_refused(tmp_path, data):
    (tmp_path / "d").write_bytes(data)
    with pytest.raises(BadParameter, match=r"is empty|is not readable as Parquet .* use from_csv"):
        du.from_parquet(tmp_path / "d")
    with pytest.raises(BadTraceFile):
        du.from_trace(tmp_path / "d")


@pytest.mark.parametrize("read", [du.from_csv, du.from_parquet, du.from_trace])
def test_missing_files(tmp_path, read):
    with pytest.raises(UsageError, match=r"path = '.*/nothing' does not exist; check the path"):
        read(tmp_path / "nothing")
    with pytest.raises(UsageError, match="is a directory"):
        read(tmp_path)
    with pytest.raises(UsageError, match="path = 7 is not a path"):
        read(7)
