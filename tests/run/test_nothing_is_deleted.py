"""A directory that holds anything of a run is never cleared for another: `train` refuses, and says what is there."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from engines.inline import Inline
from run.common import events, sound, train
from run.test_commands import call

import asyncsgd as asgd
from asyncsgd.cli.inspect import watch_run as watch
from asyncsgd.core.errors import BadParameter
from asyncsgd.pages.sources import of_path
from asyncsgd.run import BadRunDirectory, checkpoints
from asyncsgd.run.directory import RunDirectory
from asyncsgd.run.read import PARTS


def contents(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def lose(directory: Path, *names: str) -> None:
    for name in names:
        path = directory / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize(
    ("lost", "held"),
    [
        (("run.json",), "job.pkl, checkpoints, trace.log, trace.parquet, metrics.jsonl, journal.jsonl, fingerprints.b"),
        (("run.json", "checkpoints"), "job.pkl, trace.log"),
        (("run.json", "checkpoints", "trace.log", "trace.parquet", "job.pkl"), "metrics.jsonl, journal.jsonl"),
        (
            ("run.json", "job.pkl", "trace.log", "trace.parquet", "metrics.jsonl", "journal.jsonl", "fingerprints.bin"),
            "checkpoints, checksums.json of a run",
        ),
    ],
)
def test_without_run_json(tmp_path: Path, resume: bool, lost: tuple[str, ...], held: str) -> None:
    train(tmp_path, iterations=40)
    lose(tmp_path, *lost)
    before = contents(tmp_path)
    words = rf"holds .*{held}.* but no run\.json; restore run\.json from a backup, or start a run in another directory"
    with pytest.raises(BadRunDirectory, match=words):
        train(tmp_path, iterations=60, resume=resume)
    assert contents(tmp_path) == before


@pytest.mark.parametrize("name", PARTS)
def test_a_directory_with_one_file_of_a_run(tmp_path: Path, name: str) -> None:
    """It may be all that a copy or a restore has saved."""
    only = tmp_path / name / "000000000001.npy" if name in ("checkpoints", "updates", "damaged-1") else tmp_path / name
    only.parent.mkdir(exist_ok=True)
    only.write_bytes(b"all that is left\n")
    for resume in (False, True):
        with pytest.raises(BadRunDirectory, match=rf"holds {name} of a run, but no run\.json"):
            train(tmp_path, iterations=40, resume=resume)
    del (found := contents(tmp_path))[".lock"]
    assert found == {str(only.relative_to(tmp_path)): b"all that is left\n"}


def test_report_and_watch_give_the_same_advice(tmp_path: Path) -> None:
    train(tmp_path, iterations=40)
    lose(tmp_path, "run.json")
    words = r"holds .*but no run\.json; restore run\.json from a backup"
    with pytest.raises(BadRunDirectory, match=words):
        of_path(tmp_path)
    with pytest.raises(BadRunDirectory, match=words):
        watch(tmp_path, once=True)


REST = ("trace.log", "trace.parquet", "fingerprints.bin", "metrics.jsonl", "journal.jsonl")


@pytest.mark.parametrize(
    ("lost", "held"),
    [
        ((), r"run\.json, job\.pkl, trace\.log, trace\.parquet, metrics\.jsonl, journal\.jsonl, fingerprints\.bin"),
        (REST[:3], r"run\.json, job\.pkl, metrics\.jsonl, journal\.jsonl"),
        (REST, r"run\.json, job\.pkl"),
        ((*REST, "job.pkl"), r"run\.json"),
    ],
)
def test_without_checkpoints(tmp_path: Path, lost: tuple[str, ...], held: str) -> None:
    train(tmp_path, iterations=40)
    lose(tmp_path, "checkpoints", *lost)
    before = contents(tmp_path)
    words = rf"holds {held}, checksums\.json of a run, but no checkpoint to resume it from; restore checkpoints/ from"
    with pytest.raises(BadRunDirectory, match=words):
        train(tmp_path, iterations=60, resume=True)
    assert contents(tmp_path) == before


def test_without_checkpoints_that_could_be_read(tmp_path: Path) -> None:
    """One that was set aside as damaged is something of a run too."""
    train(tmp_path, iterations=40)
    for path in checkpoints.listed(tmp_path / "checkpoints"):
        path.rename(path.with_name(f"{path.name}.damaged"))
    before = contents(tmp_path)
    with pytest.raises(BadRunDirectory, match="no checkpoint to resume it from"):
        train(tmp_path, iterations=60, resume=True)
    assert contents(tmp_path) == before


class Killed(BaseException):
    """As a kill: no handler of ours sees it."""


def killed_at(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """At the first call of this method of `RunDirectory`."""

    def dies(*_: object, **__: object) -> None:
        raise Killed

    monkeypatch.setattr(RunDirectory, name, dies)


@pytest.mark.parametrize("name", ["begin", "_describe", "flush", "begin_checkpoint"])
def test_a_start_that_was_killed_at_once_starts_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    with monkeypatch.context() as patch:
        killed_at(patch, name)
        with pytest.raises(Killed):
            train(tmp_path)
    sound(train(tmp_path, resume=True), 60)
    assert not (tmp_path / ".starting").exists()


def test_a_start_that_was_killed_right_after_its_first_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What marks it as a start is then obsolete: it does not excuse the loss of the checkpoint."""
    unlink = Path.unlink

    def dies(path: Path, missing_ok: bool = False) -> None:
        if path.name == ".starting":
            raise Killed
        unlink(path, missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "unlink", dies)
        with pytest.raises(Killed):
            train(tmp_path)
    sound(train(tmp_path, iterations=40, resume=True), 40)
    lose(tmp_path, "checkpoints")
    with pytest.raises(BadRunDirectory, match="no checkpoint to resume it from"):
        train(tmp_path, resume=True)


def test_a_run_that_was_killed_before_its_first_checkpoint_by_the_clock_resumes(tmp_path: Path) -> None:
    """A run has a checkpoint from its start on, so whatever has none has lost it."""

    class Dies(asgd.Callback):
        def on_evaluation(self, view: Any, metrics: object, control: object) -> None:
            if view.iteration == 30:
                raise Killed

    with pytest.raises(Killed):
        train(tmp_path, checkpoints=asgd.Checkpoints(every=10**6), callbacks=[Dies()])
    assert [int(path.stem) for path in checkpoints.listed(tmp_path / "checkpoints")] == [0]
    sound(train(tmp_path, resume=True), 60)
    assert [row["iteration"] for row in events(tmp_path, "resumed")] == [0]


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_what_is_not_of_a_run_is_in_nobodys_way(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "notes.txt")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "metrics.jsonl").touch()
    sound(train(tmp_path), 60)
    assert (tmp_path / "notes.txt").exists()


def test_a_run_is_refused_before_anything_is_done(tmp_path: Path) -> None:
    class NoEngine(Inline):
        def start(self, *_: object) -> None:  # type: ignore[override]
            raise AssertionError("the workers were started before the directory was looked at")

    train(tmp_path, iterations=20)
    for lost, kind in ((None, BadParameter), ("run.json", BadRunDirectory)):
        if lost is not None:
            lose(tmp_path, lost)
        with pytest.raises(kind):
            train(tmp_path, iterations=20, engine=NoEngine(2))


@pytest.mark.slow
def test_the_command_line_says_it_too(tmp_path: Path) -> None:
    train(tmp_path / "run", iterations=20)
    lose(tmp_path / "run", "run.json")
    before = contents(tmp_path)
    for arguments in (
        ("train", "--resume", "--directory", str(tmp_path / "run")),
        (
            "train",
            "asyncsgd.testing.bench:Bowl",
            "--stepsize",
            "1",
            "--iterations",
            "9",
            "--directory",
            f"{tmp_path}/run",
        ),
    ):
        code, _, said = call(*arguments)
        assert code == 1
        assert "but no run.json; restore run.json from a backup" in said
        assert contents(tmp_path) == before
