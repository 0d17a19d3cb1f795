"""Callbacks: which hooks a run calls, in which order, and that a callback can stop it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from run.common import events, sound, train
from run.tasks import Failing, Rubbish

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.run import Control, LiveView, WorkersFailed
from asyncsgd.run.callbacks.base import Hooks
from asyncsgd.run.live import Watcher
from asyncsgd.run.view import RunView


class Everything(asgd.Callback):
    """Remembers every call of every hook."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []

    def on_start(self, view: LiveView) -> None:
        self.calls.append(("start", view))

    def on_update(self, view: LiveView, control: Control) -> None:
        self.calls.append(("update", view))

    def on_progress(self, view: LiveView) -> None:
        self.calls.append(("progress", view))

    def on_evaluation(self, view: LiveView, metrics: Any, control: Control) -> None:
        self.calls.append(("evaluation", view, dict(metrics), view.x))

    def on_checkpoint(self, view: LiveView, path: Path) -> None:
        self.calls.append(("checkpoint", view, path.exists(), int(path.stem)))

    def on_worker(self, view: LiveView, worker: int, what: str) -> None:
        self.calls.append(("worker", view, worker, what))

    def on_note(self, text: str) -> None:
        self.calls.append(("note", text))

    def on_end(self, run: asgd.TrainingRun) -> None:
        self.calls.append(("end", run))

    def close(self) -> None:
        self.calls.append(("close",))

    def of(self, name: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == name]


def test_every_hook_hears_of_a_run(tmp_path: Path) -> None:
    heard = Everything()
    run = train(tmp_path, task=Rubbish(worker=1), engine=Inline(3), callbacks=[heard])
    names = [call[0] for call in heard.calls]
    assert (names[0], names[-2:]) == ("start", ["end", "close"])
    assert names.count("start") == names.count("end") == 1
    assert [view.iteration for (view,) in heard.of("update")] == list(range(1, 61))
    rows = heard.of("evaluation")
    assert [view.iteration for view, _, _ in rows] == run.metrics["iteration"].tolist()
    assert [metrics["loss"] for _, metrics, _ in rows] == run.metrics["loss"].tolist()
    assert np.array_equal(rows[-1][2], run.x)
    assert [(there, at) for _, there, at in heard.of("checkpoint")] == [
        (True, 0),
        (True, 20),
        (True, 40),
        (True, 60),
        (True, 60),
    ]
    assert {(worker, what) for _, worker, what in heard.of("worker")} >= {(0, "joined"), (1, "retired"), (1, "left")}
    journalled = [(row["worker"], row["event"]) for name in ("joined", "rejected") for row in events(tmp_path, name)]
    assert journalled == [
        (worker, what) for name in ("joined", "rejected") for _, worker, what in heard.of("worker") if what == name
    ]
    assert heard.of("progress")
    assert any("was rejected" in text for (text,) in heard.of("note"))
    last = heard.of("update")[-1][0]
    row, whole = last.headline(), RunView.of(run).headline()
    assert row.keys() <= whole.keys()
    assert (row["iterations"], row["wanted"], row["method"]) == (60, 60, "async_sgd")


def test_what_a_resumed_run_says(tmp_path: Path) -> None:
    train(tmp_path, iterations=40)
    heard = Everything()
    train(tmp_path, iterations=60, resume=True, callbacks=[heard])
    [(view,)] = heard.of("start")
    assert (view.resumed_at, view.iteration, view.directory, view.config["seed"]) == (40, 40, tmp_path, 0)


class Stops(asgd.Callback):
    def __init__(self, at: int, hook: str) -> None:
        self.at = at
        setattr(self, hook, self.maybe)

    def maybe(self, view: LiveView, *rest: Any) -> None:
        if view.iteration >= self.at:
            rest[-1].stop(f" enough at {view.iteration} ")
            rest[-1].stop("a second reason")


@pytest.mark.parametrize(
    ("hook", "at", "ends"), [("on_update", 7, 7), ("on_evaluation", 15, 20), ("on_evaluation", 0, 0)]
)
def test_a_callback_stops_a_run(tmp_path: Path, hook: str, at: int, ends: int) -> None:
    run = train(tmp_path, callbacks=[Stops(at, hook)])
    assert (run.stopped_early, run.trace.iterations, run.interrupted) == (f"enough at {ends}", ends, None)
    assert [row["reason"] for row in events(tmp_path, "stopped_early")] == [f"enough at {ends}"]
    view = RunView.of(run)
    assert (view.ending.kind, view.ending.colour) == ("stopped early", "good")
    assert view.ending.sentence() == f"stopped early at iteration {ends} of 60: enough at {ends}"
    with Watcher(tmp_path) as watcher:
        assert watcher.look().ending == RunView.read(tmp_path).ending == view.ending
    if ends:
        sound(run, ends)
    sound(train(tmp_path, resume=True), 60)


def test_a_reason_must_say_something() -> None:
    with pytest.raises(BadParameter, match="reason = ' ' is not a text"):
        Control().stop(" ")


def test_hooks_that_nobody_overrides_are_not_called() -> None:
    hooks = Hooks([asgd.Callback(), Stops(0, "on_update")])
    assert len(hooks.update) == 1
    others = (hooks.start, hooks.progress, hooks.evaluation, hooks.checkpoint, hooks.worker, hooks.note)
    assert not any(others)


def test_callbacks_are_closed_in_reverse_also_where_the_run_fails() -> None:
    closed: list[str] = []

    class Closes(asgd.Callback):
        def __init__(self, name: str) -> None:
            self.name = name

        def close(self) -> None:
            closed.append(self.name)

    with pytest.raises(WorkersFailed):
        train(None, task=Failing(after=10), callbacks=[Closes("a"), Closes("b")])
    assert closed == ["b", "a"]


def test_a_hook_that_no_run_calls_is_refused() -> None:
    class Typo(asgd.Callback):
        def on_evaluate(self, view: LiveView) -> None:
            raise AssertionError

    with pytest.raises(
        BadParameter, match=r"has a method on_evaluate, which no run calls; did you mean on_evaluation\?"
    ):
        train(None, callbacks=[Typo()])


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: asgd.Checkpoints(seconds=0), "seconds = 0 must be a positive"),
        (lambda: asgd.Checkpoints(every=0), "every = 0 must be an integer"),
        (lambda: asgd.Checkpoints(keep=0), "keep = 0 must be an integer"),
        (lambda: asgd.Limits(max_failures=0), "max_failures = 0 must be an integer"),
    ],
)
def test_options_that_cannot_work(make: Any, words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        make()


@pytest.mark.processes
@pytest.mark.slow
def test_without_an_engine_there_are_processes() -> None:
    run = asgd.train(asgd.tasks.quadratic(workers=64), asgd.async_sgd(0.05), iterations=20, progress=False)
    assert run.config["engine"]["engine"] == "processes"
