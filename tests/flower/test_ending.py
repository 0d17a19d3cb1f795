"""Evaluations that are late, runs that end while one is under way, and disks that fail."""

from __future__ import annotations

import itertools
import json
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr", reason="the extra 'flower' is not installed")

from flower.fake import FakeGrid, towards
from flower.serving import ARRAYS, QUIET, clients, quiet, serve
from flwr.app import Message

import asyncsgd as asgd
from asyncsgd.core.errors import EngineError
from asyncsgd.flower.privacy import gaussian_epsilon
from asyncsgd.pages.sources import gather
from asyncsgd.run import BadRunDirectory
from asyncsgd.run.configuration import journal
from asyncsgd.run.live import Watcher
from asyncsgd.run.view import RunView

PRIVATE = asgd.fedbuff(0.5, concurrency=2, buffer=2).clipped(1.0, noise=4.0)
GUARD = 60.0


class Later:
    """Two clients, and an event that is set once they have been asked this many times."""

    def __init__(self, times: int) -> None:
        self.come = threading.Event()
        asked = itertools.count(1)

        def answer(message: Message) -> Any:
            if next(asked) >= times:
                self.come.set()
            return towards(1.0)(message)

        self.grid = FakeGrid([answer, answer])


def test_epsilon_is_that_of_the_model_evaluated(tmp_path: Path) -> None:
    later = Later(16)

    def evaluate(iteration: int, arrays: Any) -> dict[str, float]:
        assert iteration != 10 or later.come.wait(GUARD)
        return {"loss": 1.0}

    run = serve(later.grid, ARRAYS, PRIVATE, iterations=40, every=10, evaluate=evaluate, directory=tmp_path, **QUIET)
    rows = [json.loads(line) for line in (tmp_path / "releases.jsonl").read_text("utf-8").splitlines()]
    for iteration, spent in zip(run.metrics["iteration"][1:], run.metrics["epsilon"][1:], strict=True):
        squares: dict[str, int] = {}
        for row in rows[: iteration // 2]:
            for client, times in row["clients"].items():
                squares[client] = squares.get(client, 0) + times**2
        assert spent == pytest.approx(gaussian_epsilon(4.0 / max(squares.values()) ** 0.5, 1e-5))


def test_a_target_that_was_met_stays_met(tmp_path: Path) -> None:
    later = Later(8)

    def evaluate(iteration: int, arrays: Any) -> dict[str, float]:
        assert iteration != 4 or later.come.wait(GUARD)
        return {"accuracy": float(iteration == 4)}

    options = {"iterations": 200, "every": 4, "evaluate": evaluate, "until": "accuracy >= 1", "directory": tmp_path}
    run = serve(later.grid, ARRAYS, asgd.async_sgd(0.1), **options, **QUIET)
    assert run.reached
    assert run.trace.iterations > 4
    with Watcher(tmp_path) as watcher:
        frame = watcher.look()
    words = "reached accuracy >= 1.0 at iteration 4 of 200"
    assert (frame.ending.kind, frame.sentence) == ("reached", words)
    assert [subject.state for subject in (*gather(tmp_path), *gather(run))] == [words, words]
    assert RunView.of(run).text().startswith("async_sgd reached ")
    again = serve(clients(1.0, 1.0), ARRAYS, asgd.async_sgd(0.1), resume=True, **options, **QUIET)
    assert again.reached
    assert again.trace.iterations == run.trace.iterations < 200


def test_the_checkpoint_comes_before_the_last_evaluation(tmp_path: Path) -> None:
    def evaluate(iteration: int, arrays: Any) -> dict[str, float]:
        deadline = time.monotonic() + GUARD
        while iteration and not list((tmp_path / "checkpoints").glob("*.safetensors")):
            assert time.monotonic() < deadline, "there is no checkpoint"
            threading.Event().wait(0.01)
        return {"loss": 1.0}

    serve(
        clients(1.0, 2.0),
        ARRAYS,
        asgd.async_sgd(0.1),
        iterations=10,
        every=10,
        evaluate=evaluate,
        directory=tmp_path,
        **QUIET,
    )


def test_ctrl_c_does_not_wait_for_an_evaluation(tmp_path: Path) -> None:
    over, others = threading.Event(), set(threading.enumerate())

    def evaluate(iteration: int, arrays: Any) -> dict[str, float]:
        if iteration:
            os.kill(os.getpid(), signal.SIGINT)
            over.wait(GUARD)
        return {"loss": 1.0}

    options = {"iterations": 10**6, "every": 10, "evaluate": evaluate, "directory": tmp_path}
    try:
        with pytest.raises(KeyboardInterrupt, match="stopped by SIGINT"):
            serve(clients(1.0, 2.0), ARRAYS, asgd.async_sgd(0.1), **options, **QUIET)
        assert not over.is_set()
        assert list((tmp_path / "checkpoints").glob("*.safetensors"))
        new = set(threading.enumerate()) - others
        [thread] = [thread for thread in new if thread.name == "asyncsgd-evaluation"]
        assert thread.daemon  # else it would keep the process
    finally:
        over.set()


def test_a_full_disk_is_nobodys_fault_who_sent_an_update(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from asyncsgd.flower import task

    real = task.write_vector

    def full(path: Path, vector: Any) -> None:
        if path.name[0].isdigit():
            raise OSError(28, "No space left on device")
        real(path, vector)

    monkeypatch.setattr(task, "write_vector", full)
    with pytest.raises(EngineError, match=r"could not be written to disk \(.*No space left on device\); free"):
        serve(
            clients(1.0, 2.0),
            ARRAYS,
            asgd.async_sgd(0.1),
            iterations=10,
            directory=tmp_path,
            **quiet(keep_updates=True),
        )
    assert not [row for row in journal(tmp_path) if row["event"] in ("rejected", "left_out")]


def test_a_damaged_file_of_releases_is_named(tmp_path: Path) -> None:
    serve(clients(1.0, 2.0), ARRAYS, PRIVATE, iterations=4, directory=tmp_path, **QUIET)
    path = tmp_path / "releases.jsonl"
    path.write_text('{"ver\n' + path.read_text("utf-8"))
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(BadRunDirectory, match=r"releases\.jsonl is damaged .*; restore it from a backup"):
        serve(clients(1.0, 2.0), ARRAYS, PRIVATE, iterations=8, directory=tmp_path, resume=True, **QUIET)
    assert len(os.listdir("/proc/self/fd")) == before
