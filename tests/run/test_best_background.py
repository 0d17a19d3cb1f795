"""The best model is written beside the loop: updates arrive meanwhile, and the end of the run waits for the file."""

from __future__ import annotations

import errno
import json
import threading
from pathlib import Path
from typing import Any

import pytest
from run.common import sound, train
from run.test_best import Scripted
from safetensors.numpy import load_file

import asyncsgd as asgd
from asyncsgd.core.errors import CannotWrite
from asyncsgd.run import checkpoints, evaluator
from asyncsgd.run.callbacks import SaveBest, best
from asyncsgd.run.verify import verify
from asyncsgd.tasks.model_file import read_facts, write_model

PATIENCE = 20.0
"""Seconds after which a test gives up on an event that should have come."""


class Gate:
    """Holds up the writing of the first model until the gate is opened. Every evaluation is waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.open = threading.Event()
        self.written: list[int] = []
        monkeypatch.setattr(evaluator, "QUICK", 60.0)
        monkeypatch.setattr(best, "write_model", self._slow)

    def _slow(self, path: Path, task: Any, x: Any, facts: Any, **options: Any) -> Path:
        if not self.open.wait(PATIENCE):
            raise AssertionError("no update arrived while the model was written")
        self.written.append(int(facts["iteration"]))
        return write_model(path, task, x, facts, **options)


class At(asgd.Callback):
    """Calls a function when this many updates have arrived."""

    def __init__(self, iteration: int, act: Any) -> None:
        self.iteration, self.act = iteration, act

    def on_update(self, view: Any, control: Any) -> None:
        if view.iteration == self.iteration:
            self.act()


def test_updates_arrive_while_it_is_written_and_the_best_of_those_that_waited_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, keep = Gate(monkeypatch), SaveBest("loss")
    seen: dict[int, bytes] = {}

    class Models(asgd.Callback):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            seen[view.iteration] = view.x.tobytes()

        def on_end(self, run: Any) -> None:
            seen[-1] = (tmp_path / "best.safetensors").read_bytes()

    task = Scripted(9.0, 8.0, 7.0, 6.0, 5.0, 5.5)
    callbacks = [keep, Models(), At(45, gate.open.set)]
    run = train(tmp_path, task=task, callbacks=callbacks, checkpoints=asgd.Checkpoints(seconds=30.0))
    assert gate.written == [0, 40]  # those of iterations 10, 20 and 30 had waited, and 40 is better
    assert load_file(tmp_path / "best.safetensors")["x"].tobytes() == seen[40]
    assert seen[-1] == (tmp_path / "best.safetensors").read_bytes()  # it was there when the run ended
    assert (keep.best, keep.iteration) == (5.0, 40)
    assert verify(tmp_path) == []
    sound(run, 60)


def test_an_error_of_its_thread_stops_the_run_and_names_the_callback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*given: Any, **options: Any) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(best, "write_model", full)
    with pytest.raises(CannotWrite, match="free some space") as caught:
        train(tmp_path, task=Scripted(3.0, 2.0, 1.0), callbacks=[SaveBest("loss")])
    assert "of the callback SaveBest" in caught.value.__notes__[0]
    monkeypatch.undo()
    keep = SaveBest("loss")
    sound(train(tmp_path, resume=True, task=Scripted(0.5), callbacks=[keep]), 60)
    assert float(read_facts(tmp_path / "best.safetensors")["value"]) == keep.best


def test_a_run_that_fails_waits_for_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = Gate(monkeypatch)

    def fail() -> None:
        gate.open.set()
        raise RuntimeError("a callback failed")

    with pytest.raises(RuntimeError, match="a callback failed"):
        train(
            tmp_path,
            task=Scripted(4.0, 3.0, 2.0, 1.0),
            callbacks=[SaveBest("loss"), At(35, fail)],
            checkpoints=asgd.Checkpoints(seconds=30.0),
        )
    assert int(read_facts(tmp_path / "best.safetensors")["iteration"]) == 30
    assert gate.written == [0, 30]
    assert not [thread for thread in threading.enumerate() if thread.name == "asyncsgd-best-model"]


def test_a_checkpoint_never_knows_of_a_better_model_than_the_file(tmp_path: Path) -> None:
    """So a kill after any checkpoint cannot lose the best model."""
    found = []

    class Compare(asgd.Callback):
        def on_checkpoint(self, view: Any, path: Path) -> None:
            state = json.loads(checkpoints.read(path).state["callbacks"])["SaveBest"]
            if state["iteration"]:  # the initial model follows its own checkpoint
                found.append(int(read_facts(tmp_path / "best.safetensors")["iteration"]) >= state["iteration"])

    task = Scripted(9.0, 8.0, 7.0, 6.0, 5.0, 4.0, 3.0)
    train(tmp_path, task=task, callbacks=[Compare(), SaveBest("loss")], checkpoints=asgd.Checkpoints(every=10))
    assert found == [True] * len(found) != []


def test_a_checkpoint_by_the_clock_is_put_off_but_not_for_ever(tmp_path: Path) -> None:
    saver = checkpoints.Checkpointer(asgd.Checkpoints(seconds=30.0), None)  # type: ignore[arg-type]
    saver.begin(100.0)
    due = [(now, saver.due_at(now), saver.due_at(now, busy=True)) for now in (129.0, 130.0, 159.0, 160.0)]
    assert due == [(129.0, False, False), (130.0, True, False), (159.0, True, False), (160.0, True, True)]
