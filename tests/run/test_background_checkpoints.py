"""Checkpoints are written beside the training, from one copy of the state, and are as safe as before."""

from __future__ import annotations

import gc
import signal
import subprocess
import sys
import threading
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run.common import events, sound, train

import asyncsgd as asgd
from asyncsgd._files import replacing
from asyncsgd.core.errors import CannotWrite
from asyncsgd.run import checkpoints
from asyncsgd.run.checkpoints import BackgroundCall, Checkpoint
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.verify import verify
from asyncsgd.testing.bench import Bowl
from asyncsgd.trace import arrays
from asyncsgd.trace.arrays import Whole, read_arrays, write_arrays
from asyncsgd.trace.sealed import Mark


def saved(directory: Path) -> list[int]:
    return [int(path.stem) for path in checkpoints.listed(directory / "checkpoints")]


class Gate:
    """Holds up the writing of the checkpoint of one iteration, between its first and its last byte."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, iteration: int) -> None:
        self.reached, self.open = threading.Event(), threading.Event()
        self._name = f"{iteration:012d}.safetensors"
        self._first = True
        monkeypatch.setattr(arrays, "replacing", self._slow)

    def _slow(self, path: Path, **options: Any) -> Any:
        if path.name == self._name and self._first:
            self._first = False
            self.reached.set()
            assert self.open.wait(60)
        return replacing(path, **options)


class At(asgd.Callback):
    """Calls a function when this many updates have arrived."""

    def __init__(self, iteration: int, act: Any) -> None:
        self.iteration, self.act = iteration, act
        self.written: list[tuple[int, int]] = []

    def on_update(self, view: Any, control: Any) -> None:
        if view.iteration == self.iteration:
            self.act()

    def on_checkpoint(self, view: Any, path: Path) -> None:
        assert path.exists()
        self.written.append((int(path.stem), view.iteration))


def test_updates_arrive_while_a_checkpoint_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of iteration 20 cannot be written before update 35; its files are those of iteration 20 all the same."""
    gate = Gate(monkeypatch, 20)
    heard = At(35, gate.open.set)
    run = train(tmp_path, callbacks=[heard])
    assert [iteration for iteration, _ in heard.written] == [0, 20, 40, 60, 60]
    assert heard.written[1][1] >= 35
    first = checkpoints.read(tmp_path / "checkpoints" / "000000000020.safetensors")
    assert first.marks["fingerprints.bin"].size < (tmp_path / "fingerprints.bin").stat().st_size
    again = asgd.replay(tmp_path, stop=20)
    points = first.state["update"]["points"]
    assert points["live"][points["current"]].tobytes() == again.x.tobytes()
    assert not verify(tmp_path)
    sound(run, 60)


def test_checkpoints_by_the_clock_are_skipped_while_one_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every tick asks for one, but the first one is under way until update 50."""
    monkeypatch.setattr("asyncsgd.run.progress.TICK", 0.0)
    slow = threading.Event()
    count, write = [], checkpoints.write

    def held(folder: Path, checkpoint: Checkpoint) -> Any:
        count.append(checkpoint.iteration)
        assert len(count) != 2 or slow.wait(60)
        return write(folder, checkpoint)

    monkeypatch.setattr(checkpoints, "write", held)
    heard = At(50, slow.set)
    run = train(tmp_path, callbacks=[heard], checkpoints=asgd.Checkpoints(seconds=1e-9, keep=100))
    assert count[0] == 0
    assert count[1] < 50
    assert all(iteration >= 50 for iteration in count[2:])
    assert [iteration for iteration, _ in heard.written] == count
    sound(run, 60)


def test_an_error_of_the_thread_ends_the_run_in_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    main = threading.current_thread()

    def full(path: Path, **options: Any) -> Any:
        if path.parent.name == "checkpoints" and path.stem >= "000000000040":
            assert threading.current_thread() is not main
            raise OSError(28, "No space left on device")
        return replacing(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(arrays, "replacing", full)
        with pytest.raises(CannotWrite, match=r"cannot be written to \(No space left on device\); free some space"):
            train(tmp_path)
    assert saved(tmp_path) == [20, 0]
    RunDirectory(tmp_path).close()  # the lock is free
    assert [row["event"] for row in events(tmp_path, "stopped")] == ["stopped"]
    sound(train(tmp_path, resume=True), 60)


def test_an_interrupt_waits_for_the_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gate opens when the run, interrupted, begins to wait."""
    gate, result = Gate(monkeypatch, 20), BackgroundCall.result

    def opening(call: Any, *, wait: bool) -> Any:
        if wait and gate.reached.is_set():
            gate.open.set()
        return result(call, wait=wait)

    def interrupt() -> None:
        assert gate.reached.wait(60)
        assert saved(tmp_path) == [0]
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(BackgroundCall, "result", opening)
    with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT"):
        train(tmp_path, callbacks=[At(25, interrupt)])
    assert 20 in saved(tmp_path)
    assert saved(tmp_path)[0] >= 25
    assert not verify(tmp_path)
    sound(train(tmp_path, resume=True), 60)


KILLED = """
import os, sys
sys.path.insert(0, {tests!r})
from pathlib import Path
import asyncsgd as asgd
from asyncsgd._files import replacing
from asyncsgd.testing.bench import Bowl
from asyncsgd.trace import arrays
from engines.inline import Inline
import threading

reached, never = threading.Event(), threading.Event()

class Half:
    # Writes half of the checkpoint of iteration 40, and stays there.
    def __init__(self, file):
        self.file, self.left = file, 900
    def write(self, data):
        self.file.write(bytes(data)[: self.left])
        self.left -= len(data)
        if self.left < 0:
            self.file.flush()
            reached.set()
            never.wait()
    def __getattr__(self, name):
        return getattr(self.file, name)

from contextlib import contextmanager

@contextmanager
def slow(path, **options):
    with replacing(path, **options) as file:
        yield Half(file) if path.stem == "000000000040" else file

arrays.replacing = slow

class Kill(asgd.Callback):
    def on_update(self, view, control):
        if view.iteration == 55:
            reached.wait()
            os.kill(os.getpid(), 9)

asgd.train(Bowl(), asgd.async_sgd(0.05), Inline(2), iterations=60, every=10, directory={directory!r}, progress=False,
           checkpoints=asgd.Checkpoints(every=20), callbacks=[Kill()])
"""


@pytest.mark.slow
def test_a_kill_during_a_write_leaves_the_checkpoint_before(tmp_path: Path) -> None:
    """Half of the checkpoint of 40 is on the disk, and 15 more updates in the other files."""
    directory = tmp_path / "run"
    program = KILLED.format(tests=str(Path(__file__).parents[1]), directory=str(directory))
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, encoding="utf-8", timeout=300, check=False
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert saved(directory) == [20, 0]
    assert [path.name[:22] for path in (directory / "checkpoints").glob(".*.tmp")] == [".000000000040.safetens"]
    assert not [finding for finding in verify(directory) if not finding.harmless]
    run = train(directory, resume=True)
    assert [row["iteration"] for row in events(directory, "resumed")] == [20]
    assert not list(directory.rglob("*.tmp"))
    assert not verify(directory)
    sound(run, 60)


# ---------------------------------------------------------------------------------------------- files


STATE = {
    "iteration": 7,
    "x": np.arange(5.0),
    "small": np.arange(3, dtype=np.int8),
    "none": np.empty(0, np.float32),
    "number": np.array(3.5, np.float16),
    "turned": np.arange(6, dtype=np.uint32).reshape(2, 3).T,
    "flags": np.array([True, False, True]),
}


def test_what_is_streamed_is_what_safetensors_reads(tmp_path: Path) -> None:
    path, whole = checkpoints.write(tmp_path, Checkpoint(STATE, {"trace.log": Mark(3, 4)}, 1.5))
    assert whole == Whole.of(path.read_bytes()) == Whole.of_file(path)
    found = checkpoints.read(path)
    assert found.seconds == 1.5
    assert found.marks == {"trace.log": Mark(3, 4)}
    for name, value in STATE.items():
        if isinstance(value, np.ndarray):
            assert found.state[name].tobytes() == value.tobytes()
            assert (found.state[name].dtype, found.state[name].shape) == (value.dtype, value.shape)


def test_the_library_writes_what_we_read(tmp_path: Path) -> None:
    """The slow and obvious way: build the whole file in memory with safetensors."""
    from safetensors.numpy import save

    given = {"x": np.arange(5.0), "b": np.arange(3, dtype=np.float32)}
    (tmp_path / "slow").write_bytes(save(given, {"a": "1", "sha256": arrays._checksum(given, {"a": "1"})}))
    write_arrays(tmp_path / "fast", given, {"a": "1"})
    slow, fast = read_arrays(tmp_path / "slow"), read_arrays(tmp_path / "fast")
    assert slow[1] == fast[1] == {"a": "1"}
    assert all(slow[0][name].tobytes() == fast[0][name].tobytes() for name in given)


def test_writing_takes_no_second_copy(tmp_path: Path) -> None:
    x = np.ones(8_000_000)  # 64 MB
    tracemalloc.start()
    try:
        write_arrays(tmp_path / "x", {"x": x}, {})
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


def test_a_checkpoint_copies_the_newest_point_alone() -> None:
    server = asgd.Server(np.ones(4), asgd.async_sgd(0.5), seed=0)
    jobs = server.handle(asgd.Joined([0, 1, 2])).commands
    server.handle(asgd.Arrived(jobs[0].job.id, np.ones(4)))
    everything, alone = server.state(), server.state(in_flight=False)
    assert len(everything["update"]["points"]["live"]) == 2
    [(slot, x)] = alone["update"]["points"]["live"].items()
    assert slot == alone["update"]["points"]["current"]
    assert x.tobytes() == server.x.tobytes()
    assert not np.shares_memory(x, server.x)


class Copies(asgd.Callback):
    """Counts the arrays of the model's size that are alive after each update."""

    def __init__(self) -> None:
        self.found: list[int] = []

    def on_update(self, view: Any, control: Any) -> None:
        arrays = tracemalloc.DomainFilter(inclusive=True, domain=np.lib.tracemalloc_domain)
        alive = tracemalloc.take_snapshot().filter_traces([arrays]).traces
        self.found.append(sum(trace.size >= 8 * 50_000 for trace in alive))


@pytest.mark.slow
def test_no_copy_outlives_its_checkpoint_or_evaluation(tmp_path: Path) -> None:
    """A single cycle would keep whole states alive; here nothing collects cycles."""
    heard = Copies()
    gc.collect()
    gc.disable()
    tracemalloc.start()
    try:
        options = {"every": 2, "checkpoints": asgd.Checkpoints(every=1), "callbacks": [heard]}
        train(tmp_path, iterations=12, task=Bowl(50_000), **options)
    finally:
        tracemalloc.stop()
        gc.enable()
    # The engine's x, the updates of one poll, the points of two jobs, the newest one, the last good model; and, while
    # they last, one copy for a checkpoint and one for an evaluation.
    assert max(heard.found) <= 1 + 2 + 3 + 1 + 2
