"""The running log: whole up to the last flush, whatever happens to the process."""

import itertools
import os
import random
import subprocess
import sys

import numpy as np
import pytest
from histories import History, busy_run, endless, histories
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from markers import examples

from asyncsgd.core.errors import BadTraceFile, TraceError
from asyncsgd.core.events import Assign, Ended, Job, Outcome
from asyncsgd.trace import Recorder, Trace, TraceLog
from asyncsgd.trace.log import MAGIC, header
from asyncsgd.trace.sealed import block


def play(history: History, log: TraceLog, recorder: Recorder, every: int = 1) -> list[Trace]:
    """Record all events and flush after every so many; return the snapshots at the flushes."""
    snapshots = []
    for number, event in enumerate(history.events, 1):
        recorder.record(*event)
        if number % every == 0 or number == len(history.events):
            log.flush(recorder)
            snapshots.append(recorder.trace())
    return snapshots


numbers = itertools.count()


@given(histories(), st.integers(1, 10))
@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_log_gives_back_the_trace(tmp_path, history, every):
    path = tmp_path / str(next(numbers))
    with TraceLog(path) as log:
        recorder = Recorder(metadata={"method": "a", "seed": "3"})
        log.flush(recorder)
        for snapshot in play(history, log, recorder, every):
            assert len(snapshot) <= len(recorder)
        assert Trace.read(path) == recorder.trace()  # still open
    assert Trace.read(path) == recorder.trace()
    Trace.read(path).check()


def test_a_flush_writes_only_the_news(tmp_path):
    history = History()
    recorder = Recorder()
    with TraceLog(tmp_path / "log") as log:
        history.assign([0, 1, 2])
        recorder.record(*history.events[-1])
        assert log.flush(recorder) == 3
        assert log.flush(recorder) == 0
        history.arrive(1, then=[1])
        recorder.record(*history.events[-1])
        assert log.flush(recorder, sync=True) == 2  # job 1, which ended, and job 3, which is new
        history.fail(3, Outcome.LOST)
        history.assign([1])
        for event in history.events[-2:]:
            recorder.record(*event)
        assert log.flush(recorder) == 2
    assert Trace.read(tmp_path / "log") == recorder.trace()


@pytest.mark.slow
def test_cut_at_every_byte_it_is_a_flush_or_refused(tmp_path):
    path, cut = tmp_path / "log", tmp_path / "cut"
    facts = {"a": "b"}
    recorder = Recorder(metadata=facts)
    flushes = {len(header(facts)[0]): recorder.trace()}  # size of the file -> what it then holds
    with TraceLog(path) as log:
        for event in busy_run(1, 2).events:
            recorder.record(*event)
            log.flush(recorder)
            flushes[path.stat().st_size] = recorder.trace()
    data = path.read_bytes()
    flushes[len(data)] = recorder.trace()  # and the end mark
    for size in range(len(data) + 1):
        cut.write_bytes(data[:size])
        whole = max((end for end in flushes if end <= size), default=None)
        if whole is None:
            with pytest.raises(BadTraceFile, match="first flush; start it again"):
                Trace.read(cut)
            continue
        trace = Trace.read(cut)
        assert trace.truncated == (size not in flushes)
        assert Trace(trace.jobs, trace.metadata) == flushes[whole]


def test_a_tail_of_zeros_or_half_a_block_is_ignored(tmp_path):
    path = tmp_path / "log"
    log = TraceLog(path)
    recorder = Recorder()
    play(busy_run(2, 6), log, recorder)
    os.close(log._file)  # as a kill would: no end mark
    data = path.read_bytes()
    assert not Trace.read(path).truncated
    for tail in (b"\0" * 1, b"\0" * 8, b"\0" * 4096, b"\xff" * 4, block(b"noise", log.mark.chain)[0][:-1]):
        path.write_bytes(data + tail)
        trace = Trace.read(path)
        assert trace.truncated
        assert Trace(trace.jobs) == recorder.trace()


@pytest.mark.slow
def test_a_flipped_bit_is_refused(tmp_path):
    """In any byte that was flushed whole, torn tail or not."""
    path, recorder = tmp_path / "log", Recorder(metadata={"a": "b"})
    with TraceLog(path) as log:
        play(busy_run(2, 4), log, recorder)
    data = path.read_bytes()
    for place in range(len(data)):
        path.write_bytes(data[:place] + bytes([data[place] ^ 1 << place % 8]) + data[place + 1 :])
        with pytest.raises(BadTraceFile):
            Trace.read(path)


def test_blocks_that_are_gone_repeated_or_moved_are_refused(tmp_path):
    path, recorder, ends = tmp_path / "log", Recorder(), []
    with TraceLog(path) as log:
        for event in busy_run(2, 4).events:
            recorder.record(*event)
            log.flush(recorder)
            ends.append(log.mark.size)
    data = path.read_bytes()
    one, two = data[ends[0] : ends[1]], data[ends[1] : ends[2]]
    for middle in (b"", one, two, one + one + two, two + one):
        path.write_bytes(data[: ends[0]] + middle + data[ends[2] :])
        with pytest.raises(BadTraceFile, match="does not match its checksum"):
            Trace.read(path)
    path.write_bytes(data + one)
    with pytest.raises(BadTraceFile, match=r"is damaged .*asyncsgd repair DIR"):
        Trace.read(path)


def test_a_log_of_format_1_is_refused(tmp_path):
    (tmp_path / "log").write_bytes(b"\xff\xff\xff\xff\x10\x00\x00\x00" + bytes(90))
    with pytest.raises(BadTraceFile, match="has trace format 1, and this asyncsgd reads 2; use"):
        Trace.read(tmp_path / "log")


def test_the_examples_and_seconds_of_a_job_are_kept(tmp_path):
    job = Job(0, 3, 0, 0, 0, seed=1, steps=5, batch=40)
    recorder = Recorder()
    with TraceLog(tmp_path / "log") as log:
        recorder.record(0.0, [Assign(job, np.zeros(1), 0)], [])
        log.flush(recorder)
        recorder.record(1.0, [], [Ended(job, Outcome.APPLIED, 0, 0, 0.5, 1, 1, examples=160, seconds=0.25)])
        log.flush(recorder)
    jobs = Trace.read(tmp_path / "log").jobs
    assert (jobs.steps[0], jobs.batch[0], jobs.examples[0], jobs.seconds[0]) == (5, 40, 160, 0.25)
    Trace.read(tmp_path / "log").check()


@pytest.mark.parametrize("data", [b"", MAGIC[:1], MAGIC[:-1], MAGIC, MAGIC + b"\x10\x00", header({})[0][:-1]])
def test_a_log_without_a_header_is_refused(tmp_path, data):
    (tmp_path / "log").write_bytes(data)
    with pytest.raises(BadTraceFile, match="first flush; start it again"):
        Trace.read(tmp_path / "log")


# ------------------------------------------------------------------------- forgetting


@given(histories(), st.integers(1, 5))
@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_recorder_may_forget_what_the_log_has(tmp_path, history, every):
    path = tmp_path / str(next(numbers))
    with TraceLog(path) as log:
        recorder = Recorder()
        log.flush(recorder)
        for number, event in enumerate(history.events, 1):
            recorder.record(*event)
            if number % every == 0:
                log.flush(recorder)
                recorder.forget()
        log.flush(recorder)
    assert Trace.read(path) == history.recorder().trace()


@pytest.mark.slow
def test_a_recorder_that_forgets_stays_small(tmp_path):
    """Bytes of rows, after a run that is ten times as long."""
    sizes = []
    for iterations in (2_000, 20_000):
        recorder = Recorder()
        with TraceLog(tmp_path / str(iterations)) as log:
            for number, event in enumerate(itertools.islice(endless(5), iterations)):
                recorder.record(*event)
                if number % 100 == 0:
                    log.flush(recorder)
                    recorder.forget()
        sizes.append(recorder.nbytes)
        assert len(recorder) == iterations + 4
    assert sizes[1] == sizes[0]


def test_a_recorder_that_has_forgotten_says_so(tmp_path):
    history, recorder = busy_run(2, 6), Recorder()
    with TraceLog(tmp_path / "log") as log:
        play(history, log, recorder)
    recorder.forget()
    with pytest.raises(TraceError, match=r"has forgotten jobs that have ended; read the run's log"):
        recorder.trace()
    job = history.jobs[history.arrivals[0][0]]
    with pytest.raises(TraceError, match="ended twice: its end is on disk already"):
        recorder.record(99.0, [], [Ended(job, Outcome.LOST, 6, 6, 0.0, 2, 2)])


# ------------------------------------------------------------------------- going on


@given(histories(), st.data())
@examples(50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_reopening_a_torn_log_goes_on_from_its_last_flush(tmp_path, history, data):
    path = tmp_path / str(next(numbers))
    cut = data.draw(st.integers(0, len(history.events)))
    first = TraceLog(path)
    recorder = Recorder(metadata={"x": "y"})
    first.flush(recorder)
    play(History(events=history.events[:cut]), first, recorder)
    os.close(first._file)
    with path.open("ab") as file:
        file.write(block(b"torn", first.mark.chain)[0][:-1])
    resumed = Recorder.resume(Trace.read(path))
    with TraceLog.reopen(path) as log:
        assert not Trace.read(path).truncated
        play(History(events=history.events[cut:]), log, resumed, every=3)
    assert Trace.read(path) == history.recorder(metadata={"x": "y"}).trace()


def test_reopening_with_a_rewound_trace_forgets_what_came_after(tmp_path):
    path, history = tmp_path / "log", busy_run(3, 20)
    with TraceLog(path) as log:
        snapshots = play(history, log, Recorder())
    checkpoint = snapshots[10]
    rewound = Trace.read(path).rewind(len(checkpoint), checkpoint.jobs.job[checkpoint.jobs.in_flight].tolist())
    recorder = Recorder.resume(rewound)
    with TraceLog.reopen(path, rewound) as log:
        assert Trace.read(path) == checkpoint
        play(History(events=history.events[11:]), log, recorder)
    assert Trace.read(path) == history.recorder().trace()
    assert os.listdir(tmp_path) == ["log"]


def test_a_new_log_never_overwrites(tmp_path):
    TraceLog(tmp_path / "log").close()
    with pytest.raises(FileExistsError, match=r"TraceLog.reopen\(path\)"):
        TraceLog(tmp_path / "log")


def test_a_log_belongs_to_one_recorder(tmp_path):
    with TraceLog(tmp_path / "log") as log:
        play(busy_run(2, 6), log, Recorder())
        with pytest.raises(TraceError, match="holds 8 jobs, the recorder only 0"):
            log.flush(Recorder())
    log.close()
    with pytest.raises(TraceError, match="is closed"):
        log.flush(Recorder())


def test_a_full_disk_leaves_whole_batches_and_the_next_flush_catches_up(tmp_path, monkeypatch):
    path, history = tmp_path / "log", busy_run(2, 6)
    recorder = Recorder()
    with TraceLog(path) as log:
        play(History(events=history.events[:3]), log, recorder)
        before = recorder.trace()
        write, calls = os.write, itertools.count()

        def half(file, data):
            if next(calls):
                raise OSError(28, "No space left on device")
            return write(file, data[: len(data) // 2])

        recorder.record(*history.events[3])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            with pytest.raises(OSError, match="No space left"):
                log.flush(recorder)
        assert Trace.read(path) == before
        play(History(events=history.events[4:]), log, recorder)
    assert Trace.read(path) == history.recorder().trace()


# ------------------------------------------------------------------------- killed for real

CHILD = """
import sys
sys.path[:0] = {path!r}
from histories import endless
from asyncsgd.trace import Recorder, TraceLog
recorder, log = Recorder(), TraceLog({log!r})
for event in endless({workers}, seed={seed}):
    recorder.record(*event)
    log.flush(recorder)
    sys.stdout.write("%d\\n" % len(recorder))
    sys.stdout.flush()
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10))
def test_killed_at_a_random_moment_it_is_a_prefix_of_the_run(tmp_path, seed):
    path, workers = tmp_path / "log", 3
    code = CHILD.format(path=sys.path, workers=workers, seed=seed, log=str(path))
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, encoding="utf-8")
    assert child.stdout is not None
    try:
        # No sleeping: the child says how far it is, and dies somewhere in the work that follows.
        for _ in range(random.Random(seed).randrange(1, 300)):
            promised = int(child.stdout.readline())
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
    trace = Trace.read(path)
    trace.check()
    assert len(trace) >= promised
    assert Trace(trace.jobs) == busy_run(workers, trace.iterations, seed=seed).recorder().trace()
