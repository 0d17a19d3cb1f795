"""What a watcher says is what the trace says, at every step; and how runs stand that nobody works on."""

from __future__ import annotations

import fcntl
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run.common import sealed, train
from run.tasks import Exploding, Failing, Rubbish
from watch.common import Scripted, simulated

import asyncsgd as asgd
from asyncsgd import _files
from asyncsgd.core.events import Outcome
from asyncsgd.run import BadRunDirectory, Callback, TrainingRun, WorkersFailed
from asyncsgd.run.directory import RunDirectory, in_use
from asyncsgd.run.live import Frame, Watcher
from asyncsgd.run.read import read_lines, read_trace
from asyncsgd.trace import Trace


def look(path: Path, now: float = 0.0) -> Frame:
    with Watcher(path, now=lambda: now) as watcher:
        return watcher.look()


def agrees(frame: Frame, trace: Trace) -> None:
    """Every figure that both know."""
    delays = trace.delays
    assert frame.iterations == trace.iterations
    assert frame.average_delay == (delays.average if len(delays.values) else None)
    assert frame.maximum_delay == delays.maximum
    counts = delays.histogram()
    assert frame.histogram == tuple((int(d), int(counts[d])) for d in np.flatnonzero(counts))
    assert {row.worker: row.mean_delay for row in frame.workers if row.mean_delay is not None} == delays.per_worker
    assert frame.in_flight == trace.counts[Outcome.IN_FLIGHT]
    assert frame.jobs == {o.name.lower(): n for o, n in trace.counts.items() if o is not Outcome.IN_FLIGHT}
    jobs = {row.worker: row.jobs for row in frame.workers}
    assert jobs == {worker: int(np.count_nonzero(trace.worker == worker)) for worker in jobs}


# ---------------------------------------------------------------------------------------------- step by step


@pytest.mark.parametrize("step", [1, 7, 50])
def test_a_watcher_follows_the_trace(tmp_path: Path, step: int) -> None:
    run = Scripted(tmp_path, simulated(50))
    with Watcher(tmp_path, now=lambda: 0.0) as watcher:
        for t in range(0, 51, step):
            so_far = run.to(t)
            frame = watcher.look()
            agrees(frame, so_far)
            assert frame.ending.kind == "running"
            assert frame.metrics["loss"][-1] == 1 / (1 + t)
            assert frame.seconds == max(so_far.jobs.assigned_time.max(), np.nanmax(so_far.time, initial=0.0))
            assert [row.state for row in frame.workers] == [
                "working" if count else "idle" for count in flying(so_far, frame)
            ]
        run.end()
        frame = watcher.look()
        agrees(frame, run.trace)
        assert (frame.ending.kind, frame.alive, frame.left) == ("done", 0, None)
    assert look(tmp_path) == frame


def flying(trace: Trace, frame: Frame) -> list[int]:
    jobs = trace.jobs
    return [int(np.count_nonzero(jobs.in_flight & (jobs.worker == row.worker))) for row in frame.workers]


def test_speed_and_time_left(tmp_path: Path) -> None:
    """A worker that takes a quarter of a second makes four updates per second."""
    task, speeds = asgd.tasks.quadratic(workers=1), asgd.durations.fixed([0.25])
    trace = asgd.simulate(task, asgd.async_sgd(0.1), speeds, iterations=200).trace
    run = Scripted(tmp_path, trace)
    run.to(120)
    frame = look(tmp_path)
    assert frame.seconds == 30.0
    assert frame.updates_per_second == pytest.approx(4.0)
    assert frame.left == pytest.approx(20.0)
    run.crash()


def test_silence_is_told(tmp_path: Path) -> None:
    run = Scripted(tmp_path, simulated(20))
    run.to(10)
    newest = max((tmp_path / name).stat().st_mtime for name in ("trace.log", "metrics.jsonl", "journal.jsonl"))
    soon, late = look(tmp_path, newest), look(tmp_path, newest + 60.0)
    assert (soon.silent, late.silent) == (0.0, pytest.approx(60.0))
    assert late.seconds == pytest.approx(soon.seconds + 60.0)
    assert late.updates_per_second < soon.updates_per_second / 4
    run.crash()
    assert look(tmp_path, newest + 60.0).silent == 0.0


def test_workers_come_and_go(tmp_path: Path) -> None:
    run = Scripted(tmp_path, simulated(20))
    run.note("died", 5, worker=2, reason="was killed by SIGKILL")
    run.note("left", 5, worker=2)
    run.note("retired", 6, worker=1, reason="3 updates in a row were rejected: NaN")
    run.note("left", 6, worker=1)
    run.note("rejected", 6, worker=1, job=7, reason="NaN")
    run.note("failed", 7, worker=0, job=9, reason="ValueError: no data")
    run.to(10)
    frame = look(tmp_path)
    states = {row.worker: row.state for row in frame.workers}
    assert (states[1], states[2]) == ("retired", "gone")
    assert frame.alive == 2
    assert [row.deaths for row in frame.workers] == [0, 0, 1, 0]
    assert frame.faults == {"deaths": 1, "exceptions": 1, "rejected": 1, "retired": [1], "evaluations": 0}
    assert [note.text for note in frame.notes] == [
        "worker 2 was killed by SIGKILL",
        "worker 1 is retired: 3 updates in a row were rejected: NaN",
        "worker 1, job 7 was rejected: NaN",
        "worker 0, job 9: ValueError: no data",
    ]
    run.crash()


def test_of_many_notes_the_newest_are_kept(tmp_path: Path) -> None:
    run = Scripted(tmp_path, simulated(20))
    for job in range(200):
        run.note("rejected", 5, worker=1, job=job, reason="NaN")
    run.to(10)
    frame = look(tmp_path)
    assert frame.faults["rejected"] == 200
    assert len(frame.notes) == 50
    assert frame.notes[-1].text == "worker 1, job 199 was rejected: NaN"
    run.crash()


# ---------------------------------------------------------------------------------------------- real runs


class Onlooker(Callback):
    """Looks at the directory whenever the run says how it stands."""

    def __init__(self, path: Path) -> None:
        self.watcher = Watcher(path)
        self.seen: list[tuple[Any, Frame]] = []

    def on_progress(self, view: Any) -> None:
        self.seen.append((view, self.watcher.look()))


def test_a_run_that_goes_on(tmp_path: Path) -> None:
    onlooker = Onlooker(tmp_path)
    run = train(tmp_path, iterations=300, callbacks=[onlooker], every=50)
    before = 0
    for status, frame in onlooker.seen:
        assert frame.ending.kind == "running"
        assert before <= frame.iterations <= status.iteration
        before = frame.iterations
    with onlooker.watcher as watcher:
        ended(watcher.look(), run)
    ended(look(tmp_path), run)


def ended(frame: Frame, run: TrainingRun) -> None:
    assert frame.ending.kind == "done"
    agrees(frame, run.trace)
    assert frame.seconds == run.seconds
    assert {name: list(values) for name, values in frame.metrics.items()} == {
        name: list(values) for name, values in run.metrics.items()
    }
    assert (frame.method, frame.ending.wanted) == ("async_sgd", run.config["iterations"])


def test_a_watcher_survives_a_resume(tmp_path: Path) -> None:
    train(tmp_path, iterations=60)
    with Watcher(tmp_path) as watcher:
        assert watcher.look().iterations == 60
        run = train(tmp_path, iterations=100, resume=True)
        ended(watcher.look(), run)
        assert "resumed" in [note.text for note in watcher.look().notes]


def test_a_new_run_in_the_same_place(tmp_path: Path) -> None:
    with Watcher(tmp_path) as watcher:
        train(tmp_path, iterations=60)
        assert watcher.look().iterations == 60
        shutil.rmtree(tmp_path)
        run = train(tmp_path, iterations=40)
        ended(watcher.look(), run)


def test_only_the_parquet_file_is_left(tmp_path: Path) -> None:
    run = train(tmp_path)
    (tmp_path / "trace.log").unlink()
    ended(look(tmp_path), run)


CRASHES = """
import os, signal, sys
import asyncsgd as asgd
from asyncsgd.run import Callback
from asyncsgd.testing.bench import Bowl

class Dies(Callback):
    def on_progress(self, view):
        if view.iteration >= 30:
            os.kill(os.getpid(), signal.SIGKILL)

asgd.train(Bowl(), asgd.async_sgd(0.05), engine=asgd.engines.processes(2), iterations=10**6, every=10,
           checkpoints=asgd.Checkpoints(every=10), directory=sys.argv[1], progress=False, callbacks=[Dies()])
"""


@pytest.mark.slow
def test_a_crash_seen_from_another_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", CRASHES, str(tmp_path)], capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    frame = look(tmp_path)
    assert frame.ending.kind == "crashed"
    assert frame.ending.bad
    assert frame.sentence.startswith(
        f"crashed at iteration {frame.iterations:,} of 1,000,000; resume it with: asyncsgd "
    )
    assert frame.iterations >= 30
    agrees(frame, read_trace(tmp_path))
    assert {row.state for row in frame.workers} == {""}


# ---------------------------------------------------------------------------------------------- how it ended


def test_a_target_that_was_reached(tmp_path: Path) -> None:
    train(tmp_path, iterations=10_000, until="loss <= 30")
    frame = look(tmp_path)
    assert (frame.ending.kind, frame.ending.until) == ("reached", "loss <= 30.0")
    assert frame.sentence == f"reached loss <= 30.0 at iteration {frame.iterations:,} of 10,000"


def test_a_target_that_was_missed(tmp_path: Path) -> None:
    train(tmp_path, until="loss <= 1e-12")
    frame = look(tmp_path)
    assert (frame.ending.kind, frame.sentence) == ("missed", "missed loss <= 1e-12")


def test_a_run_whose_workers_fail(tmp_path: Path) -> None:
    with pytest.raises(WorkersFailed):
        train(tmp_path, task=Failing(after=10))
    frame = look(tmp_path)
    assert frame.ending.kind == "stopped"
    assert "the data have ended" in frame.sentence
    assert frame.faults["exceptions"] >= 3
    assert frame.notes[-1].text.startswith("stopped: worker ")


def test_a_run_that_diverged(tmp_path: Path) -> None:
    run = train(tmp_path, task=Exploding(at=25.0), iterations=100_000)
    frame = look(tmp_path)
    assert (frame.ending.kind, frame.iterations) == ("diverged", run.trace.iterations)
    assert frame.ending.bad


def test_rejected_updates_are_counted(tmp_path: Path) -> None:
    run = train(tmp_path, task=Rubbish(worker=1))
    frame = look(tmp_path)
    assert frame.faults["rejected"] == run.faults.rejected > 0
    jobs = run.trace.jobs
    faulty = np.isin(jobs.outcome, (Outcome.REJECTED, Outcome.LOST))
    assert [row.faults for row in frame.workers] == [np.count_nonzero(faulty & (jobs.worker == w)) for w in (0, 1)]
    assert "worker 1 is retired" in " ".join(note.text for note in frame.notes)
    assert {note.text for note in frame.notes} >= set(run.diagnosis.problems)


def test_a_run_that_was_interrupted(tmp_path: Path) -> None:
    class Enough(Callback):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            if view.iteration == 20:
                os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[Enough()])
    frame = look(tmp_path)
    assert frame.ending.kind == "interrupted"
    assert frame.sentence.startswith(f"interrupted by SIGINT at iteration {frame.iterations} of 60; ")
    assert not frame.ending.bad


# ---------------------------------------------------------------------------------------------- damage


def test_what_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadRunDirectory, match="holds no run"):
        look(tmp_path)


def test_a_damaged_line(tmp_path: Path) -> None:
    train(tmp_path)
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b"{\n")
    with pytest.raises(BadRunDirectory, match=r"metrics\.jsonl is damaged .*; restore it from a backup"):
        look(tmp_path)


def test_a_file_that_is_shortened_and_grows_between_two_looks(tmp_path: Path) -> None:
    """A resume does that; the offset may then lie inside a line."""
    run = Scripted(tmp_path, simulated(50))
    run.to(20)
    with Watcher(tmp_path, now=lambda: 0.0) as watcher:
        watcher.look()
        rows = [{"iteration": t, "time": 1e-9 * t, "loss": 2.0} for t in range(40)]
        (tmp_path / "metrics.jsonl").write_bytes(sealed(*rows))
        frame = watcher.look()
    assert frame.metrics["loss"] == tuple(row["loss"] for row in read_lines(tmp_path, "metrics.jsonl"))
    run.crash()


# ---------------------------------------------------------------------------------------------- the lock


def test_who_holds_the_lock(tmp_path: Path) -> None:
    assert not in_use(tmp_path)
    files = RunDirectory(tmp_path)
    assert in_use(tmp_path)
    with pytest.raises(BadRunDirectory, match="another process is training"):
        RunDirectory(tmp_path)
    files.close()
    assert not in_use(tmp_path)
    RunDirectory(tmp_path).close()


def test_somebody_who_only_looks_keeps_nobody_from_training(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The look ends while the other is trying: what it tries next is seen here."""
    (tmp_path / ".lock").touch()
    reader = os.open(tmp_path / ".lock", os.O_RDONLY)
    fcntl.flock(reader, fcntl.LOCK_SH)
    tried, real = [], _files.take

    def tries(descriptor: int, *, shared: bool = False) -> bool:
        tried.append(shared)
        if len(tried) == 3:
            os.close(reader)
        return real(descriptor, shared=shared)

    monkeypatch.setattr(_files, "take", tries)
    RunDirectory(tmp_path).close()
    assert tried == [False, True, False]
