"""Parquet in and out, for us and for others."""

import os

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from histories import busy_run, histories
from hypothesis import HealthCheck, given
from markers import examples

from asyncsgd.core.errors import BadTraceFile
from asyncsgd.core.events import Outcome
from asyncsgd.trace import Trace, TraceLog
from asyncsgd.trace.columns import DTYPES


@pytest.fixture
def history():
    history = busy_run(3, 20)
    history.fail(history.active[0], Outcome.LOST, then=[1])
    return history


@given(histories())
@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_gives_back_the_trace(tmp_path, history):
    path = tmp_path / "trace.parquet"
    trace = history.trace()
    trace.write(path)
    assert Trace.read(str(path)) == trace
    assert [f.name for f in tmp_path.iterdir()] == ["trace.parquet"]


def test_what_is_not_known_stays_unknown(tmp_path, history):
    trace = Trace(history.trace().jobs, {"käse": "ü\n", "": ""}, None, truncated=True)
    trace.write(tmp_path / "t")
    assert Trace.read(tmp_path / "t") == trace


def test_pandas_opens_it(tmp_path, history):
    trace = history.trace()
    trace.write(tmp_path / "t.parquet")
    frame = pd.read_parquet(tmp_path / "t.parquet")
    assert list(frame.columns) == list(DTYPES)
    assert frame["outcome"].value_counts()[["applied", "lost", "in_flight"]].tolist() == [20, 1, 3]
    assert (frame["ended_iteration"] - frame["assigned_iteration"])[
        frame["outcome"] == "applied"
    ].sum() == trace.delay.sum()
    pd.testing.assert_frame_equal(frame, trace.to_pandas())


def test_polars_opens_it(tmp_path, history):
    trace = history.trace()
    trace.write(tmp_path / "t.parquet")
    frame = pl.read_parquet(tmp_path / "t.parquet")
    assert frame.columns == list(DTYPES)
    assert frame.filter(pl.col("outcome").cast(pl.String) == "lost").height == 1
    assert frame["worker"].to_list() == trace.jobs.worker.tolist()
    assert pl.from_arrow(trace.to_arrow())["step"].to_list()[:5] == [0.5] * 5


def test_arrow_table_shows_outcomes_as_words(history):
    table = history.trace().to_arrow()
    assert table.schema.field("outcome").type == pa.dictionary(pa.int8(), pa.string())
    assert table["outcome"].to_pylist().count("lost") == 1


def test_a_failed_write_leaves_the_old_file(tmp_path, history, monkeypatch):
    path = tmp_path / "t.parquet"
    history.trace().write(path)
    old = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        busy_run(2, 5).trace().write(path)
    assert path.read_bytes() == old
    assert [f.name for f in tmp_path.iterdir()] == ["t.parquet"]


def test_file_rights_follow_the_umask(tmp_path, history):
    history.trace().write(tmp_path / "t")
    (tmp_path / "plain").touch()
    assert (tmp_path / "t").stat().st_mode == (tmp_path / "plain").stat().st_mode


# ------------------------------------------------------------------------- other people's files


def rewritten(trace: Trace, change):
    return lambda path: pq.write_table(change(trace.to_arrow()), path)


def with_metadata(table, **changes):
    metadata = dict(table.schema.metadata)
    for key, value in changes.items():
        metadata[f"asyncsgd.{key}".encode()] = value
    return table.replace_schema_metadata(metadata)


def with_column(table, name, values):
    return table.set_column(table.schema.get_field_index(name), name, values)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop_columns(["step", "worker"]), r"lacks the columns \['worker', 'step'\]"),
        (lambda t: with_column(t, "step", t["step"].cast(pa.string())), "column 'step' is string, not double"),
        (lambda t: with_column(t, "outcome", t["step"]), "column 'outcome' is double, not uint8"),
        (lambda t: t.replace_schema_metadata({}), "was not written by asyncsgd"),
        (lambda t: with_metadata(t, trace=b"99"), "has trace format 99, and this asyncsgd reads 2"),
        (lambda t: with_metadata(t, metadata=b"{"), "does not match its checksum"),
        (lambda t: t.slice(1), "not 0, 1, 2, ... in order"),
        (lambda t: t.take(list(range(len(t)))[::-1]), "not 0, 1, 2, ... in order"),
        (
            lambda t: with_column(t, "worker", pa.array([None] * len(t), pa.int64())),
            f"column 'worker' has {24} nulls",
        ),
        (
            lambda t: with_column(t, "outcome", pa.array(["vanished"] * len(t)).dictionary_encode()),
            r"unknown outcomes \['vanished'\]",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused_by_name(tmp_path, history, change, message):
    path = tmp_path / "other.parquet"
    rewritten(history.trace(), change)(path)
    with pytest.raises(BadTraceFile, match=message) as caught:
        Trace.read(path)
    assert str(path) in str(caught.value)


def test_another_writers_encoding_of_the_words_is_fine(tmp_path, history):
    trace, path = history.trace(), tmp_path / "t"

    def other_codes(table):
        words = pa.array(table["outcome"].to_pylist()).dictionary_encode()
        return with_column(table, "outcome", words)

    rewritten(trace, other_codes)(path)
    assert Trace.read(path) == trace


@pytest.mark.parametrize("data", [b"job,worker\n0,1\n", b"{}", b"\x00" * 100, b"PK\x03\x04"])
def test_other_formats_are_refused(tmp_path, data):
    (tmp_path / "t").write_bytes(data)
    with pytest.raises(BadTraceFile, match="neither Parquet nor a log"):
        Trace.read(tmp_path / "t")


def test_a_damaged_parquet_file_is_refused(tmp_path, history):
    path = tmp_path / "t"
    history.trace().write(path)
    data = path.read_bytes()
    for end in (4, 8, 100, len(data) - 1):
        path.write_bytes(data[:end])
        with pytest.raises(BadTraceFile, match="damaged Parquet"):
            Trace.read(path)


def test_a_directory_is_refused_and_a_missing_file_is_missing(tmp_path):
    with pytest.raises(BadTraceFile, match="is a directory"):
        Trace.read(tmp_path)
    with pytest.raises(FileNotFoundError):
        Trace.read(tmp_path / "nothing")
    with pytest.raises(FileNotFoundError):
        TraceLog.reopen(tmp_path / "nothing")


def test_a_file_read_back_is_read_only(tmp_path, history):
    history.trace().write(tmp_path / "t")
    jobs = Trace.read(tmp_path / "t").jobs
    assert not any(getattr(jobs, name).flags.writeable for name in DTYPES)
    assert np.isnan(jobs.step[jobs.in_flight]).all()
