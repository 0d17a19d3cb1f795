"""The run directory: what is in it, what is refused, what a damaged one still gives."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest
from engines.subject import Subject
from run.common import Notes, events, sound, train
from run.test_nothing_is_deleted import contents

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.steps import Custom
from asyncsgd.run import BadCheckpoint, BadRunDirectory, checkpoints
from asyncsgd.run.configuration import describe
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.options import Evaluation, RunRequest
from asyncsgd.run.read import read_blocks, read_lines
from asyncsgd.testing.bench import Bowl
from asyncsgd.trace import Trace

FILES = {
    ".lock",
    "checkpoints",
    "checksums.json",
    "fingerprints.bin",
    "job.pkl",
    "journal.jsonl",
    "metrics.jsonl",
    "run.json",
    "trace.log",
    "trace.parquet",
}


def saved(directory: Path) -> list[int]:
    return [int(path.stem) for path in checkpoints.listed(directory / "checkpoints")]


@pytest.mark.processes
def test_what_is_in_it(tmp_path: Path) -> None:
    run = train(
        tmp_path / "deep" / "run",
        iterations=70,
        checkpoints=asgd.Checkpoints(every=20, keep=2),
        engine=asgd.engines.processes(2),
    )
    assert run.directory == tmp_path / "deep" / "run"
    assert {path.name for path in run.directory.iterdir()} == FILES
    assert saved(run.directory) == [70, 60]
    assert {path.suffix for path in (run.directory / "checkpoints").iterdir()} == {".safetensors"}
    config = json.loads((run.directory / "run.json").read_text("utf-8"))
    assert (config["iterations"], config["seed"], config["dimension"], config["dtype"]) == (70, 0, 100, "float64")
    assert config["method_name"] == "async_sgd"
    assert config["engine"]["workers"] == 2
    assert config["versions"]["numpy"] == np.__version__
    assert len(read_blocks(run.directory, "fingerprints.bin")) == 4 * 70
    assert [row["iteration"] for row in read_lines(run.directory, "metrics.jsonl")] == list(range(0, 71, 10))
    assert [row["event"] for row in read_lines(run.directory, "journal.jsonl")] == [
        "started",
        "joined",
        "joined",
        "ended",
        "diagnosed",
    ]
    assert Trace.read(run.directory / "trace.parquet") == run.trace
    assert Trace.read(run.directory / "trace.log").jobs.outcome.tobytes() == run.trace.jobs.outcome.tobytes()
    sound(run, 70)


def test_without_a_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    run = train(None)
    assert run.directory is None
    assert run.trace.iterations == 60
    assert not list(tmp_path.iterdir())
    with pytest.raises(BadParameter, match="resume = True needs a run to resume"):
        train(None, resume=True)


def test_a_run_is_never_overwritten(tmp_path: Path) -> None:
    train(tmp_path, iterations=20)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()}
    with pytest.raises(BadParameter, match="already contains a run; pass resume=True to continue it"):
        train(tmp_path, iterations=20)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.is_file()} == before


class NoEngine(asgd.engines.Processes):
    def start(self, *_: object) -> None:  # type: ignore[override]
        raise AssertionError("the workers were started before the request was looked at")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"method": asgd.async_sgd(0.06)},
            "method = 'async_sgd' is not what the run started with: step.stepsize was 0.05 and is 0.06;",
        ),
        (
            {"method": asgd.delay_adaptive(0.05)},
            "step was Constant.stepsize=0.05. and is DelayAdaptive.stepsize=0.05.; resume with the same",
        ),
        ({"seed": 1}, "seed = 1 is not what the run started with; resume with 0, or start"),
        ({"task": Bowl(7)}, "dimension = 7 is not what the run started with; resume with 100"),
        ({"task": Bowl(dtype=np.float32)}, "dtype = 'float32' is not what the run started with"),
    ],
)
def test_resuming_with_something_else(tmp_path: Path, change: dict[str, object], words: str) -> None:
    train(tmp_path, iterations=20)
    with pytest.raises(BadParameter, match=words):
        train(tmp_path, iterations=40, resume=True, engine=NoEngine(2), **change)  # type: ignore[arg-type]
    sound(train(tmp_path, iterations=40, resume=True), 40)


def test_a_locked_directory(tmp_path: Path) -> None:
    held = RunDirectory(tmp_path)
    with pytest.raises(BadRunDirectory, match="another process is training in"):
        train(tmp_path)
    held.close()
    train(tmp_path, iterations=10)


def test_a_lock_goes_with_its_process(tmp_path: Path) -> None:
    program = "from asyncsgd.run.directory import RunDirectory as R; r = R('run'); print('held'); input()"
    with Subject(program, tmp_path, how="stdin") as subject:
        # The program itself is its standard input: input() ends it, or it waits there; either way it holds the lock.
        assert subject.line() == "held"
        subject.process.kill()
        subject.process.wait()
    train(tmp_path / "run", iterations=10)


def test_a_directory_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(BadParameter, match=r"directory = .* cannot be made"):
        train(tmp_path / "file")


def test_resume_where_there_is_nothing_begins(tmp_path: Path) -> None:
    sound(train(tmp_path, iterations=30, resume=True), 30)
    assert events(tmp_path, "started")


def test_the_last_few_checkpoints_are_kept(tmp_path: Path) -> None:
    train(tmp_path, iterations=95, checkpoints=asgd.Checkpoints(every=20, keep=3))
    assert saved(tmp_path) == [95, 80, 60]


def test_a_checkpoint_holds_the_model_once(tmp_path: Path) -> None:
    """Points of jobs in flight would make it as many times larger, and nobody reads them after a resume."""
    method = asgd.federated_async_sgd(0.05, concurrency=9)
    train(tmp_path, iterations=50, method=method)
    state = checkpoints.read(checkpoints.listed(tmp_path / "checkpoints")[0]).state
    assert len(state["active"]) == 9
    assert len(state["update"]["points"]["live"]) == 1
    sound(train(tmp_path, iterations=90, method=method, resume=True), 90)


def test_a_method_with_a_function_goes_on_in_another_process(tmp_path: Path) -> None:
    """What tells methods apart does not depend on where a function happens to lie."""
    told = []
    for _ in range(2):
        method = asgd.async_sgd(0.05).using(step=Custom(0.05, lambda arrival: 0.9**arrival.delay))
        request = RunRequest(Bowl(), method, asgd.engines.processes(2), 10, Evaluation.of(10, None, None))
        told.append(describe(request)["method"])
    assert told[0] == told[1]
    assert "lambda" in told[0]


# ---------------------------------------------------------------------------------------------- damage


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def halve(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def empty(path: Path) -> None:
    os.truncate(path, 0)


def lie(path: Path) -> None:
    """A header that promises more than there is."""
    path.write_bytes((1 << 60).to_bytes(8, "little") + path.read_bytes()[8:])


@pytest.mark.parametrize("damage", [flip, halve, empty, lie])
def test_a_damaged_checkpoint_falls_back_to_the_one_before(tmp_path: Path, damage: object) -> None:
    train(tmp_path, iterations=70)
    newest, *_ = checkpoints.listed(tmp_path / "checkpoints")
    damage(newest)  # type: ignore[operator]
    notes = Notes()
    run = train(tmp_path, iterations=90, resume=True, callbacks=[notes])
    sound(run, 90)
    [complaint] = [note for note in notes.of("noted") if str(newest) in note]
    assert "use an older checkpoint" in complaint
    assert [row["iteration"] for row in events(tmp_path, "resumed")] == [60]
    assert newest.with_name(f"{newest.name}.damaged").exists()


def test_every_checkpoint_damaged(tmp_path: Path) -> None:
    train(tmp_path, iterations=70)
    for path in checkpoints.listed(tmp_path / "checkpoints"):
        halve(path)
    with pytest.raises(BadCheckpoint, match=r"has no checkpoint that can be read.*start a run in another directory"):
        train(tmp_path, iterations=90, resume=True)
    assert saved(tmp_path) == [70, 60, 40]  # nothing was taken away
    assert (tmp_path / "trace.parquet").exists()


@pytest.mark.parametrize("name", ["trace.log", "metrics.jsonl", "journal.jsonl", "fingerprints.bin"])
@pytest.mark.parametrize("damage", ["gone", "short"])
def test_a_file_that_lost_its_end(tmp_path: Path, name: str, damage: str) -> None:
    train(tmp_path, iterations=70)
    path = tmp_path / name
    flip(checkpoints.listed(tmp_path / "checkpoints")[0])
    if damage == "gone":
        path.unlink()
    else:
        os.truncate(path, 40)
    before = contents(tmp_path)
    with pytest.raises(BadRunDirectory, match=rf"{name} (is shorter than it was|cannot be read)"):
        train(tmp_path, iterations=90, resume=True, engine=NoEngine(2))
    assert contents(tmp_path) == before


def test_a_torn_tail_is_cut(tmp_path: Path) -> None:
    """What came after the checkpoint, half a line of it at the end."""
    train(tmp_path, iterations=60)
    for name in ("trace.log", "metrics.jsonl", "journal.jsonl", "fingerprints.bin"):
        with (tmp_path / name).open("ab") as file:
            file.write(b'{"iteration')  # less than a block's head
    sound(train(tmp_path, iterations=80, resume=True), 80)
    assert read_lines(tmp_path, "metrics.jsonl")[-1]["iteration"] == 80


def test_half_written_files_are_swept(tmp_path: Path) -> None:
    train(tmp_path, iterations=20)
    (tmp_path / "checkpoints" / ".000000000020.safetensors.abcd1234.tmp").touch()
    (tmp_path / ".run.json.abcd1234.tmp").touch()
    train(tmp_path, iterations=30, resume=True)
    assert {path.name for path in tmp_path.iterdir()} == FILES
    assert all(path.suffix == ".safetensors" for path in (tmp_path / "checkpoints").iterdir())


def test_a_save_that_fails_leaves_the_one_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full when the checkpoint of iteration 60 is to take its place, and stays full."""
    replace = os.replace

    def full(source: Path, target: Path) -> None:
        if Path(target).parent.name == "checkpoints" and Path(target).stem >= "000000000060":
            raise OSError(28, "No space left on device")
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", full)
        with pytest.raises(OSError, match="No space left"):
            train(tmp_path, iterations=100)
    assert saved(tmp_path) == [40, 20, 0]
    assert all(path.suffix == ".safetensors" for path in (tmp_path / "checkpoints").iterdir())
    run = train(tmp_path, iterations=100, resume=True)
    assert [row["iteration"] for row in events(tmp_path, "resumed")] == [40]
    sound(run, 100)


def test_a_stranger_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(BadRunDirectory, match="holds no run"):
        asgd.replay(tmp_path)
    (tmp_path / "run.json").write_text("{", "utf-8")
    with pytest.raises(BadRunDirectory, match=r"run\.json is damaged"):
        train(tmp_path, resume=True)
    (tmp_path / "run.json").write_text('{"format": 99}', "utf-8")
    with pytest.raises(BadRunDirectory, match="has run format 99, and this asyncsgd reads format 2; use the asyncsgd"):
        train(tmp_path, resume=True)
