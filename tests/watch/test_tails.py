"""Files that grow, are torn, shortened and replaced."""

from __future__ import annotations

from io import FileIO
from pathlib import Path

import numpy as np
import pytest
from run.common import sealed
from watch.common import simulated

from asyncsgd.core.errors import BadTraceFile, Torn
from asyncsgd.run.tail import Lines, Log
from asyncsgd.trace import Recorder, TraceLog
from asyncsgd.trace.log import END


class Counting(FileIO):
    """Counts what is read."""

    total = 0

    def read(self, size: int = -1) -> bytes:  # type: ignore[override]
        data = super().read(size)
        self.total += len(data)
        return data


def test_batches_come_once(tmp_path: Path) -> None:
    trace = simulated(60)
    tail = Log(tmp_path / "trace.log")
    assert not tail.look()
    assert list(tail.news()) == []
    rows = 0
    with TraceLog(tail.path) as log:
        for t in range(0, 61, 5):
            written = log.flush(Recorder.resume(trace.until(t)))
            assert not tail.look()
            batches = list(tail.news())
            assert [len(batch) for batch in batches] == [written]
            assert list(tail.news()) == []
            rows += written
    assert not tail.look()
    assert list(tail.news()) == []
    assert rows > len(trace)
    tail.close()


def test_every_byte_is_read_once(tmp_path: Path) -> None:
    trace = simulated(200)
    path = tmp_path / "trace.log"
    tail = Log(path)
    with TraceLog(path) as log:
        log.flush(Recorder())
        assert not tail.look()
        assert tail._file is not None
        tail._file.close()
        tail._file = counting = Counting(path)
        looks = 0
        for t in range(0, 201, 2):
            log.flush(Recorder.resume(trace.until(t)))
            assert sum(len(batch) for batch in tail.news()) > 0
            looks += 1
    assert looks == 101
    # What is not there yet cannot be read; so the sum is that of the whole batches, without the mark of the end.
    assert counting.total == path.stat().st_size - END
    tail.close()


def test_a_torn_batch_is_tried_again(tmp_path: Path) -> None:
    trace = simulated(20)
    source, path = tmp_path / "whole.log", tmp_path / "trace.log"
    with TraceLog(source) as log:
        log.flush(Recorder.resume(trace.until(10)))
        middle = source.stat().st_size
        log.flush(Recorder.resume(trace.until(20)))
    data = source.read_bytes()
    for cut in range(middle, len(data), 7):
        path.write_bytes(data[:cut])
        tail = Log(path)
        tail.look()
        before = list(tail.news())
        with path.open("ab") as file:
            file.write(data[cut:])
        assert not tail.look()
        jobs = np.concatenate([batch.job for batch in (*before, *tail.news())])
        assert len(jobs) == len(np.concatenate([batch.job for batch in whole(source)]))
        tail.close()


def whole(path: Path) -> list:
    tail = Log(path)
    tail.look()
    found = list(tail.news())
    tail.close()
    return found


def test_a_log_of_somebody_else(tmp_path: Path) -> None:
    path = tmp_path / "trace.log"
    path.write_bytes(b"\xff\xff\xff\xff and what format 1 had")
    tail = Log(path)
    tail.look()
    with pytest.raises(BadTraceFile, match="is not a log of this version"):
        list(tail.news())
    tail.close()


@pytest.mark.parametrize("change", ["replaced", "shortened", "removed"])
def test_what_was_read_before_is_void(tmp_path: Path, change: str) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(sealed({"loss": 1}, {"loss": 2}))
    tail = Lines(path)
    assert not tail.look()
    assert [row["loss"] for row in tail.news()] == [1, 2]
    assert not tail.look()
    if change == "replaced":
        other = tmp_path / "other"
        other.write_bytes(sealed({"loss": 3}, {"loss": 4}, {"loss": 5}))
        other.rename(path)
    elif change == "shortened":
        path.write_bytes(sealed({"loss": 3}))
    else:
        path.unlink()
    assert tail.look()
    tail.close()
    assert not tail.look()
    expected = {"replaced": [3, 4, 5], "shortened": [3], "removed": []}[change]
    assert [row["loss"] for row in tail.news()] == expected
    tail.close()


def test_half_a_line_waits_for_its_other_half(tmp_path: Path) -> None:
    path = tmp_path / "journal.jsonl"
    tail = Lines(path)
    data = sealed({"event": "started"}, {"event": "joined"})
    path.write_bytes(data[:-20])
    tail.look()
    assert [row["event"] for row in tail.news()] == ["started"]
    with path.open("ab") as file:
        file.write(data[-20:])
    assert [row["event"] for row in tail.news()] == ["joined"]
    tail.close()


@pytest.mark.parametrize("line", ["{", "[1]", "", '{"event": "started"}'])
def test_lines_that_make_no_sense(tmp_path: Path, line: str) -> None:
    path = tmp_path / "journal.jsonl"
    path.write_text(f"{line}\n", "utf-8")
    tail = Lines(path)
    tail.look()
    with pytest.raises(Torn):
        list(tail.news())
    tail.close()


def test_lines_longer_than_a_chunk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("asyncsgd.run.tail.CHUNK", 5)
    path = tmp_path / "journal.jsonl"
    path.write_bytes(sealed({"event": "started"}, {"event": "ended"}))
    tail = Lines(path)
    tail.look()
    assert [row["event"] for row in tail.news()] == ["started", "ended"]
    tail.close()
