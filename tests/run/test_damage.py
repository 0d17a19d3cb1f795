"""A run directory that is damaged, full, or not even begun: one sentence that names the file and the fix."""

from __future__ import annotations

import errno
import json
import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from run.common import METHOD, Notes, reseal, sound, train

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, CannotWrite
from asyncsgd.engines import EngineError
from asyncsgd.run import BadRunDirectory, checkpoints
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.read import config_text, read_blocks
from asyncsgd.run.stored import CHECKED, unpackage
from asyncsgd.run.verify import verify
from asyncsgd.testing.bench import Bowl
from asyncsgd.trace import Jobs, Trace, TraceLog
from asyncsgd.trace import log as logs
from asyncsgd.trace.columns import DTYPES

# ---------------------------------------------------------------------------------------------- damaged files


def lose(path: Path) -> None:
    path.unlink()


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def scratch(path: Path) -> None:
    """The second line is not JSON any more."""
    first, second, *others = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([first, second.replace(b":", b";", 1), *others]))


def without(key: str) -> Callable[[Path], None]:
    """Its checksum fits, so it was written like that."""

    def remove(path: Path) -> None:
        config = json.loads(path.read_text("utf-8"))
        del config[key], config["sha256"]
        path.write_text(config_text(config), "utf-8")
        reseal(path.parent)

    return remove


DAMAGE: list[tuple[str, Callable[[Path], None], str]] = [
    ("job.pkl", halve, r"job\.pkl is damaged \(it does not match its checksum\); restore it from a backup, or pass"),
    ("fingerprints.bin", lose, r"fingerprints\.bin cannot be read \(No such file.*\); restore it from a backup"),
    ("fingerprints.bin", empty, r"fingerprints\.bin is shorter than it was \(0 bytes, and .* were written\); restore"),
    ("journal.jsonl", scratch, r"journal\.jsonl is damaged: line 2 does not match its checksum; restore it from a b"),
    ("run.json", without("seed"), r"run\.json is damaged \(no seed, or a wrong one\); restore it from a backup"),
    (
        "trace.log",
        lose,
        r"trace\.log cannot be read \(No such file.*\); restore it from a backup, or run `asyncsgd rep",
    ),
]


@pytest.mark.parametrize("bit", [3, 7])
def test_a_flipped_bit_in_the_task_is_noticed(tmp_path: Path, bit: int) -> None:
    """Loaded, it could lack an attribute, or give other updates, or break NumPy."""
    train(tmp_path, iterations=10)
    whole = (tmp_path / "job.pkl").read_bytes()
    for place in range(0, whole.rindex(CHECKED), 23):
        data = bytearray(whole)
        data[place] ^= 1 << bit
        (tmp_path / "job.pkl").write_bytes(data)
        words = r"job\.pkl is damaged \(it does not match its checksum\); restore it from a backup, or pass the task"
        with pytest.raises(BadRunDirectory, match=words):
            unpackage(tmp_path)
    assert asgd.replay(tmp_path, task=Bowl(), method=METHOD).model_compared


def test_a_task_without_a_checksum_is_not_loaded(tmp_path: Path) -> None:
    train(tmp_path, iterations=10)
    data = (tmp_path / "job.pkl").read_bytes()
    (tmp_path / "job.pkl").write_bytes(data[: data.rindex(CHECKED)])
    with pytest.raises(BadRunDirectory, match=r"job\.pkl is damaged \(it does not match its checksum\)"):
        unpackage(tmp_path)


@pytest.mark.parametrize(("name", "damage", "words"), DAMAGE)
def test_a_damaged_file_is_named_by_replay(
    tmp_path: Path, name: str, damage: Callable[[Path], None], words: str
) -> None:
    train(tmp_path, iterations=40)
    (tmp_path / "trace.parquet").unlink()
    reseal(tmp_path)
    damage(tmp_path / name)
    with pytest.raises(asgd.AsyncSGDError, match=words):
        asgd.replay(tmp_path)


@pytest.mark.parametrize(
    ("name", "damage", "words"),
    [
        ("journal.jsonl", scratch, r"journal\.jsonl is gone or damaged \(line 2 does not match its checksum\)"),
        ("metrics.jsonl", scratch, r"metrics\.jsonl is gone or damaged \(line 2 does not match its checksum\)"),
        ("run.json", without("dtype"), r"run\.json is damaged \(no dtype, or a wrong one\); restore it"),
    ],
)
def test_a_damaged_file_is_named_by_resume(
    tmp_path: Path, name: str, damage: Callable[[Path], None], words: str
) -> None:
    train(tmp_path, iterations=40)
    damage(tmp_path / name)
    with pytest.raises(BadRunDirectory, match=words):
        train(tmp_path, iterations=60, resume=True)


def miscount(path: Path) -> None:
    """The log fits its checksums, but how many jobs were in flight is wrong in one place."""
    trace = Trace.read(path)
    concurrency = trace.jobs.concurrency.copy()
    concurrency[5] = 7
    columns = {name: getattr(trace.jobs, name) for name in DTYPES} | {"concurrency": concurrency}
    TraceLog.reopen(path, Trace(Jobs(**columns), trace.metadata)).close()
    newest, *others = checkpoints.listed(path.parent / "checkpoints")
    for other in others:
        other.unlink()
    known = checkpoints.read(newest)
    marks = known.marks | {"trace.log": logs.read(path)[1]}
    checkpoints.write(newest.parent, replace(known, marks=marks))
    reseal(path.parent)


def test_a_damaged_trace_is_noticed_before_anything_is_trained(tmp_path: Path) -> None:
    train(tmp_path, iterations=40)
    miscount(tmp_path / "trace.log")
    saved = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()}
    notes = Notes()
    with pytest.raises(BadRunDirectory, match=r"trace\.log is gone or damaged \(.*\); restore it from a backup, or"):
        train(tmp_path, iterations=60, resume=True, callbacks=[notes])
    assert not notes.of("started")
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.is_file()} == saved


def test_a_damaged_trace_is_noticed_before_anything_is_replayed(tmp_path: Path) -> None:
    train(tmp_path, iterations=40)
    (tmp_path / "trace.parquet").unlink()
    miscount(tmp_path / "trace.log")
    assert [finding.file for finding in verify(tmp_path)] == ["trace.log"]
    seen: list[int] = []
    with pytest.raises(BadRunDirectory, match=r"the trace of .* is damaged \(.*\); restore it from a backup"):
        asgd.replay(tmp_path, look=lambda arrival, g: seen.append(arrival.job))
    assert not seen


def test_a_task_alone_takes_the_place_of_the_one_in_the_directory(tmp_path: Path) -> None:
    class Used(Exception):
        pass

    class Mine:
        def initial(self) -> Any:
            return np.zeros(100)

        def update(self, x: Any, worker: int, seed: int) -> Any:
            raise Used

        def evaluate(self, x: Any) -> dict[str, float]:
            return {}

    train(tmp_path, iterations=10)
    with pytest.raises(Used):
        asgd.replay(tmp_path, task=Mine())


# ---------------------------------------------------------------------------------------------- a full disk


def full_after(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """So many bytes fit into fingerprints.bin and the like; os.write itself writes a part, then nothing."""
    write, left = os.write, [count]

    def some(file: int, data: Any) -> int:
        if not left[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        done = write(file, bytes(data)[: left[0]])
        left[0] -= done
        return done

    monkeypatch.setattr(os, "write", some)


@pytest.mark.parametrize("count", [0, 4000, 15000])
def test_a_full_disk_is_one_sentence_and_a_resume_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    words = r"run cannot be written to \(No space left on device\); free some space and .* resume=True"
    with monkeypatch.context() as patch:
        full_after(patch, count)
        with pytest.raises(CannotWrite, match=words):
            train(tmp_path / "run", iterations=400)
    RunDirectory(tmp_path / "run").close()  # the lock is free
    sound(train(tmp_path / "run", iterations=400, resume=True), 400)


def test_what_is_written_is_not_written_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = RunDirectory(tmp_path)
    recorder = asgd.trace.Recorder()
    files.begin({}, b"", recorder)
    files.add_fingerprint(b"0123456789")
    with monkeypatch.context() as patch:
        full_after(patch, 4)
        with pytest.raises(CannotWrite):
            files.flush(recorder)
    files.flush(recorder)
    files.close()
    assert read_blocks(tmp_path, "fingerprints.bin") == b"0123456789"


# ---------------------------------------------------------------------------------------------- nothing is left behind


class Refuses(Inline):
    def start(self, *_: object) -> Any:
        raise BadParameter("workers", 0, "cannot be", "have some")


def test_a_start_that_is_refused_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    for directory in (tmp_path / "deep" / "er", tmp_path / "kept", tmp_path / "kept" / "new"):
        with pytest.raises(BadParameter, match="workers = 0"):
            train(directory, engine=Refuses(1))
    assert [path.name for path in tmp_path.rglob("*")] == ["kept"]


def test_what_others_put_there_stays(tmp_path: Path) -> None:
    files = RunDirectory(tmp_path / "deep" / "er")
    (tmp_path / "deep" / "theirs").touch()
    files.close()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["deep", "theirs"]
    files = RunDirectory(tmp_path / "other")
    (tmp_path / "other" / "theirs").touch()
    files.close()
    assert sorted(path.name for path in (tmp_path / "other").iterdir()) == [".lock", "theirs"]


def test_a_lock_that_was_taken_away_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its owner leaves, and removes it, between our opening and our locking it."""
    first, real, calls = RunDirectory(tmp_path), os.open, []

    def opens(path: Any, *arguments: Any, **more: Any) -> int:
        descriptor = real(path, *arguments, **more)
        if Path(path).name == ".lock":
            calls.append(path)
            if len(calls) == 1:
                first.close()
        return descriptor

    monkeypatch.setattr(os, "open", opens)
    second = RunDirectory(tmp_path)
    assert len(calls) == 2
    with pytest.raises(BadRunDirectory, match="another process is training"):
        RunDirectory(tmp_path)
    second.close()


# ---------------------------------------------------------------------------------------------- ulimit -f


@contextmanager
def limited(size: int) -> Iterator[None]:
    """No file of this process may be longer, as after ``ulimit -f``."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


NOISY = asgd.fedbuff(0.1, concurrency=2, buffer=2).clipped(1.0, noise=0.1)


@pytest.mark.slow
@pytest.mark.parametrize("method", [asgd.async_sgd(0.05), NOISY], ids=lambda method: method.name)
@pytest.mark.parametrize("size", [0, 10, 100, 500, 1000, 2000, 4000, 6000, 8000, 12_000, 20_000, 30_000])
def test_a_limit_on_the_size_of_files_is_one_sentence(tmp_path: Path, method: Any, size: int) -> None:
    """Whichever file meets it first."""
    words = r"run cannot be written to \(File too large\); raise the limit .* \(ulimit -f unlimited\) and .*resume=True"
    with limited(size), pytest.raises(CannotWrite, match=words) as raised:
        train(tmp_path / "run", iterations=400, method=method, every=1)
    assert not getattr(raised.value, "__notes__", [])
    sound(train(tmp_path / "run", iterations=400, method=method, every=1, resume=True), 400)


@pytest.mark.processes
def test_the_limit_holds_for_shared_memory_too(tmp_path: Path) -> None:
    words = r"bytes of shared memory for vectors of .* cannot be allocated \(File too large\); raise .*ulimit -f unl"
    with limited(1000), pytest.raises(EngineError, match=words):
        train(tmp_path / "run", engine=asgd.engines.processes(2))
    assert not (tmp_path / "run").exists()


def test_a_resume_says_how_many_updates_are_lost(tmp_path: Path) -> None:
    train(tmp_path)
    (tmp_path / "checkpoints" / "000000000060.safetensors").write_bytes(b"torn")
    notes = Notes()
    train(tmp_path, resume=True, callbacks=[notes])
    told = "the run continues from the last checkpoint, iteration 40; later updates are lost (20 were recorded)"
    assert told in notes.of("noted")
    train(tmp_path, iterations=80, resume=True, callbacks=[again := Notes()])
    assert not again.of("noted")
