"""An exception in a hook of a callback: the error names both, the workers end, and the run is saved and resumes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from engines.inline import Inline, InlinePool
from run.common import events, sound, train
from run.tasks import Rubbish

import asyncsgd as asgd
from asyncsgd.run.callbacks.base import HOOKS
from asyncsgd.run.verify import verify


class Broken(Exception):
    """What the user's callback raises."""


class Raises(asgd.Callback):
    """Raises in one hook, from its n-th call on."""

    def __init__(self, hook: str, after: int = 0) -> None:
        self.hook, self.after = hook, after
        plain = getattr(self, hook)

        def raising(*given: Any) -> Any:
            if self.after == 0:
                raise Broken(f"in {hook}")
            self.after -= 1
            return plain(*given)

        setattr(self, hook, raising)


class Watched(Inline):
    """Remembers its pool, to see that it was closed."""

    pools: list[Any] = []  # noqa: RUF012 - an engine is frozen

    def start(self, *given: Any) -> Any:
        pool = super().start(*given)
        self.pools.append(pool)
        return pool


@pytest.fixture
def closed(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    found: list[Any] = []
    Watched.pools.clear()
    monkeypatch.setattr(InlinePool, "close", lambda pool: found.append(pool))
    return found


# on_note is called once for the rejected update of worker 1; on_worker when workers join and for that update.
MOMENTS = [
    ("on_start", 0),
    ("on_update", 0),
    ("on_update", 33),
    ("on_progress", 0),
    ("on_evaluation", 0),
    ("on_evaluation", 3),
    ("on_checkpoint", 0),
    ("on_checkpoint", 2),
    ("on_worker", 0),
    ("on_worker", 1),
    ("on_worker", 4),
    ("on_note", 0),
    ("on_end", 0),
    ("close", 0),
    ("state", 0),
    ("state", 2),
]


def test_every_hook_is_tried() -> None:
    elsewhere = {"on_reply"}  # tests/flower/test_replies.py has it, and test_best has load
    assert {name for name, _ in MOMENTS} | elsewhere == {*HOOKS, "close", "state"}


@pytest.mark.parametrize(("hook", "after"), MOMENTS)
def test_the_error_names_both_and_nothing_is_lost(tmp_path: Path, closed: list[Any], hook: str, after: int) -> None:
    path = tmp_path / "run"
    task = Rubbish(worker=1)
    with pytest.raises(Broken, match=f"in {hook}") as caught:
        train(path, task=task, engine=Watched(3), callbacks=[Raises(hook, after)])
    assert caught.value.__notes__[0] == f"raised in {hook} of the callback Raises"
    assert not any("no checkpoint could be written" in note for note in caught.value.__notes__)
    assert closed == Watched.pools
    assert len(closed) == 1
    reached = 0
    if path.exists():
        assert verify(path) == []
        reached = max((row["iteration"] for row in events(path, "stopped")), default=0)
        if reached:
            [row] = events(path, "stopped")
            assert row["reason"] == f"in {hook} (raised in {hook} of the callback Raises)"
            assert f"The run is saved in {path}" in caught.value.__notes__[1]
        newest = max((int(file.stem) for file in (path / "checkpoints").glob("*.safetensors")), default=0)
        assert newest >= reached, "the run was not saved where it stopped"
    if hook == "on_update":
        assert reached == after + 1
    sound(train(path, task=task, engine=Inline(3), resume=True), 60)
    assert verify(path) == []


def test_the_others_are_closed_too(tmp_path: Path) -> None:
    class Closes(asgd.Callback):
        closed = 0

        def close(self) -> None:
            self.closed += 1

    first, last = Closes(), Closes()
    with pytest.raises(Broken):
        train(tmp_path, callbacks=[first, Raises("close"), last])
    assert (first.closed, last.closed) == (1, 1)


def test_without_a_directory_the_note_promises_nothing() -> None:
    with pytest.raises(Broken) as caught:
        train(None, callbacks=[Raises("on_update", 5)])
    assert caught.value.__notes__ == ["raised in on_update of the callback Raises"]


def test_a_state_that_fails_later_keeps_the_last_one(tmp_path: Path) -> None:
    """The rescue saves the model with the state of the checkpoint before."""

    class Keeps(asgd.Callback):
        def __init__(self, fails: bool) -> None:
            self.fails, self.calls = fails, 0

        def state(self) -> dict[str, Any]:
            self.calls += 1
            if self.fails and self.calls > 2:
                raise Broken("in state")
            return {"calls": self.calls}

        def load(self, state: dict[str, Any]) -> None:
            self.calls = state["calls"]

    with pytest.raises(Broken):
        train(tmp_path, callbacks=[Keeps(fails=True)])
    fine = Keeps(fails=False)

    class Start(asgd.Callback):
        def on_start(self, view: Any) -> None:
            assert (view.resumed_at, fine.calls) == (40, 2)

    sound(train(tmp_path, resume=True, callbacks=[fine, Start()]), 60)


@pytest.mark.processes
def test_with_processes(tmp_path: Path) -> None:
    with pytest.raises(Broken):
        train(tmp_path, engine=asgd.engines.processes(2), callbacks=[Raises("on_update", 7)])
    sound(train(tmp_path, engine=asgd.engines.processes(2), resume=True), 60)


@pytest.mark.parametrize("hook", ["on_end", "close"])
def test_a_run_that_had_ended_is_not_lost(hook: str) -> None:
    class Ends(asgd.Callback):
        ended = 0

        def on_end(self, run: Any) -> None:
            self.ended += 1

    first, last = Ends(), Ends()
    with pytest.raises(Broken) as caught:
        train(None, callbacks=[first, Raises(hook), last])
    assert (first.ended, last.ended) == (1, 1)
    run = caught.value.run  # type: ignore[attr-defined]
    assert run.trace.iterations == 60
    assert caught.value.__notes__[1:] == ["The run had ended: its result is the attribute `run` of this exception."]


def test_the_exceptions_of_two_callbacks_are_both_named() -> None:
    with pytest.raises(Broken) as caught:
        train(None, callbacks=[Raises("on_end"), Raises("on_end")])
    assert any("Broken('in on_end')" in note for note in caught.value.__notes__)


def test_without_progress_exceptions_are_shown_once_and_nothing_else(capfd: pytest.CaptureFixture[str]) -> None:
    class Sometimes(Rubbish):
        calls = 0

        def update(self, x: Any, worker: int, seed: int) -> Any:
            self.calls += 1
            if self.calls in (5, 9):
                raise Broken("in update")
            return super().update(x, worker, seed)

    train(None, task=Sometimes(worker=7), engine=Inline(3))
    out, shown = capfd.readouterr()
    assert out == ""
    assert shown.count("Broken: in update") == 1
    assert shown.startswith("worker ")
    train(None, engine=Inline(3))
    assert capfd.readouterr() == ("", "")
