"""How the task and the method are kept: by name and in words where that is possible, else in a guarded pickle."""

from __future__ import annotations

import json
import os
import pickle
import stat
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from run.common import events, sound, train

import asyncsgd as asgd
from asyncsgd import methods, recipes
from asyncsgd.core.errors import BadParameter, NotTrusted
from asyncsgd.core.parts import describe, made
from asyncsgd.core.steps import Custom
from asyncsgd.run import BadRunDirectory, stored
from asyncsgd.run.lookup import name_of, named_task
from asyncsgd.run.stored import package, unpackage
from asyncsgd.run.verify import verify
from asyncsgd.testing.bench import Bowl

HERE = Bowl()
"""A task that can be imported."""


class Unseeded(Bowl):
    """Begins elsewhere every time."""

    def __init__(self) -> None:
        super().__init__()
        self._x = np.random.default_rng().standard_normal(100)

    def initial(self) -> Any:
        return self._x


def trap(*_: object) -> None:
    raise AssertionError("a pickle was read")


def test_a_task_with_a_name_needs_no_pickle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sound(train(tmp_path, task=HERE), 60)
    assert not (tmp_path / "job.pkl").exists()
    assert json.loads((tmp_path / "run.json").read_text("utf-8"))["job"]["task"] == f"{__name__}:HERE"
    monkeypatch.setattr(pickle, "loads", trap)
    task, method = unpackage(tmp_path)
    assert task.update(np.zeros(100), 0, 7).tobytes() == HERE.update(np.zeros(100), 0, 7).tobytes()
    assert method == asgd.async_sgd(0.05)
    sound(train(tmp_path, task=HERE, iterations=80, resume=True), 80)
    assert verify(tmp_path) == []


def test_a_task_named_on_the_command_line_begins_where_the_run_did(tmp_path: Path) -> None:
    """Also if the module begins elsewhere with every import."""
    name = f"{__name__}:Unseeded"
    task = named_task(name)
    assert name_of(task) == name
    sound(train(tmp_path, task=task), 60)
    assert not (tmp_path / "job.pkl").exists()
    assert unpackage(tmp_path)[0].initial().tobytes() == task.initial().tobytes()
    (tmp_path / "initial.safetensors").unlink()
    assert [finding.file for finding in verify(tmp_path)] == ["initial.safetensors"]
    with pytest.raises(BadRunDirectory, match=r"initial\.safetensors cannot be read"):
        asgd.replay(tmp_path)


def test_a_task_without_a_name_is_pickled(tmp_path: Path) -> None:
    train(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text("utf-8"))["job"]["task"] is None
    assert isinstance(unpackage(tmp_path)[0], Bowl)
    assert not (tmp_path / "initial.safetensors").exists()


def test_a_name_that_cannot_be_imported_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, task=HERE)
    monkeypatch.delattr(f"{__name__}.HERE")
    with pytest.raises(BadRunDirectory, match=r"the task .*HERE' of .* cannot be loaded here .*or pass the task"):
        asgd.replay(tmp_path)


# ---------------------------------------------------------------------------------------------- methods in words

COUNTS = (
    "concurrency",
    "batch",
    "buffer",
    "goal",
    "ask",
    "limit",
    "threshold",
    "clients",
    "local_steps",
    "steps",
    "workers",
)


@pytest.mark.parametrize("row", methods.table(), ids=lambda row: row["method"])
def test_every_recipe_is_stored_in_words(row: dict[str, Any]) -> None:
    method = recipes.make(row["method"], {name: 3 if name in COUNTS else 0.1 for name in row["needs"]})
    assert package(Bowl(), method)[0]["method"] == "parts"
    again = made(json.loads(json.dumps(describe(method))))
    assert again == method
    assert repr(again) == repr(method)


def test_a_method_with_a_function_is_pickled(tmp_path: Path) -> None:
    method = asgd.async_sgd(0.05).using(step=Custom(0.05, lambda arrival: 0.9**arrival.delay))
    sound(train(tmp_path, task=HERE, method=method), 60)
    assert json.loads((tmp_path / "run.json").read_text("utf-8"))["job"]["method"] is None
    assert (tmp_path / "job.pkl").exists()


def test_run_json_makes_parts_of_methods_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, task=HERE)
    config = stored.read_config(tmp_path)
    for kind in ("os:system", "asyncsgd.core.method.replace", "Group", "eval"):
        foreign = {**config, "parts": {**config["parts"], "step": {"kind": kind}}}
        monkeypatch.setattr(stored, "read_config", lambda path, foreign=foreign: foreign)
        with pytest.raises(BadRunDirectory, match=r"cannot be made from run\.json .*is not a part of asyncsgd"):
            unpackage(tmp_path)


# ---------------------------------------------------------------------------------------------- whom to trust


def test_the_pickle_of_another_user_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    words = r"job\.pkl belongs to another user, and it is a pickle, which can run any code .*trust=True, else pass the"
    with pytest.raises(NotTrusted, match=words):
        asgd.replay(tmp_path)
    assert asgd.replay(tmp_path, trust=True).model_compared
    assert asgd.replay(tmp_path, task=Bowl(), method=asgd.async_sgd(0.05)).model_compared
    # Resuming in Python takes both from the caller, and reads no pickle.
    assert train(tmp_path, iterations=80, resume=True).trace.iterations == 80


def test_a_named_task_of_another_user_needs_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, task=HERE)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    assert asgd.replay(tmp_path).model_compared


def test_the_command_line_asks_for_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    from asyncsgd.cli.application import app

    train(tmp_path)
    monkeypatch.setattr(os, "getuid", lambda: os.stat(tmp_path).st_uid + 1)
    runner = CliRunner()
    for command in (["replay", str(tmp_path)], ["train", "--resume", "--directory", str(tmp_path), "--workers", "1"]):
        assert isinstance(runner.invoke(app, command).exception, NotTrusted)
        assert "can run any code" in runner.invoke(app, [command[0], "--help"], env={"COLUMNS": "200"}).output
    assert runner.invoke(app, ["replay", str(tmp_path), "--trust"]).exit_code == 0


# ---------------------------------------------------------------------------------------------- who may read it


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o077, 0o777])
def test_only_the_owner_may_read_it(tmp_path: Path, mask: int) -> None:
    """Also while it is written, and whatever the umask says."""
    seen: set[tuple[str, int]] = set()

    class Looks(asgd.Callback):
        def on_evaluation(self, view: object, metrics: object, control: object) -> None:
            note()

    def note() -> None:
        for path in (tmp_path / "deep", *(tmp_path / "deep").rglob("*")):
            with suppress(FileNotFoundError):  # another thread has just given a temporary file its name
                mode = path.stat().st_mode
                seen.add(("folder" if stat.S_ISDIR(mode) else "file", mode & 0o777))

    fsync = os.fsync

    def watching(descriptor: int) -> None:
        note()  # temporary files are there now
        fsync(descriptor)

    was = os.umask(mask)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(os, "fsync", watching)
            train(tmp_path / "deep" / "run", task=HERE, callbacks=[Looks()])
            train(tmp_path / "deep" / "run", task=HERE, iterations=80, resume=True)
    finally:
        os.umask(was)
    assert seen == {("folder", 0o700), ("file", 0o600)}


def test_the_events_of_the_journal_are_those_that_are_declared(tmp_path: Path) -> None:
    from asyncsgd.run.journal import FIELDS

    train(tmp_path, iterations=40)
    train(tmp_path, iterations=60, resume=True, engine=Inline(3))
    rows = [row for name in FIELDS for row in events(tmp_path, name)]
    assert {row["event"] for row in rows} >= {"started", "joined", "resumed", "left", "ended", "diagnosed"}
    for row in rows:
        assert row.keys() >= {"event", "iteration", "seconds", *FIELDS[row["event"]]}


def test_a_directory_of_format_1_is_refused(tmp_path: Path) -> None:
    config = {"format": 1, "seed": 0, "versions": {"asyncsgd": "0.1.0"}}
    (tmp_path / "run.json").write_text(json.dumps(config), "utf-8")
    words = "has run format 1, and this asyncsgd reads format 2; train again in another directory$"
    for call in (lambda: asgd.replay(tmp_path), lambda: train(tmp_path, resume=True)):
        with pytest.raises(BadRunDirectory, match=words):
            call()
    with pytest.raises(BadParameter, match="already contains a run"):
        train(tmp_path)


# ---------------------------------------------------------------------------------------------- memory


def long_run(directory: Path, iterations: int) -> tuple[int, int, int]:
    """Bytes of rows in memory, of outcomes in memory, and of the last checkpoint."""
    from asyncsgd.core.events import Arrived, Joined
    from asyncsgd.core.server import Server
    from asyncsgd.run.directory import RunDirectory
    from asyncsgd.trace import Recorder

    server, recorder = Server(np.zeros(3), asgd.async_sgd(0.1)), Recorder()
    files = RunDirectory(directory)
    files.begin({"seed": 0}, b"", recorder)
    reply = server.handle(Joined(range(4)))
    recorder.record(0.0, reply.commands, reply.ended)
    g = np.ones(3)
    for number in range(iterations):
        reply = server.handle(Arrived(server.in_flight[number % 4].id, g))
        recorder.record(float(number), reply.commands, reply.ended)
        files.add_fingerprint(b"1234")
        if number % 1000 == 999:
            files.flush(recorder)
    files.begin_checkpoint(server.state(), 1.0, recorder, 3)
    written = files.written(wait=True)
    assert written is not None
    trace = files.trace(recorder, server.concurrency)
    assert trace.iterations == iterations
    trace.check()
    files.close()
    return recorder.nbytes, server._outcomes.nbytes, written.path.stat().st_size


@pytest.mark.slow
def test_memory_and_checkpoints_of_a_long_run_stay_flat(tmp_path: Path) -> None:
    short, long = long_run(tmp_path / "short", 10_000), long_run(tmp_path / "long", 60_000)
    assert long[0] == short[0]
    for before, after in zip(short[1:], long[1:], strict=True):
        assert after <= before + 4096 + 200
