"""Evaluations run beside the training: long ones do not stall it, and those that fail or hang do not end it."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run.common import Notes, events, sound, train
from run.test_train import Blind

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.run import evaluator
from asyncsgd.run.evaluator import Evaluator, Measured, Missed
from asyncsgd.run.live import Watcher
from asyncsgd.run.options import Evaluation
from asyncsgd.run.view import RunView
from asyncsgd.testing.bench import Bowl


class Slow(Bowl):
    """Evaluations wait at a gate, from the second one on, and remember which models they saw."""

    def __init__(self, forever: int = 0, clock: Clock | None = None) -> None:
        super().__init__()
        self.clock = clock
        self.gate, self.threads = threading.Event(), []
        self.forever = forever
        self.calls = 0
        self.at_once = self.most = 0

    def __getstate__(self) -> dict[str, Any]:
        return {"_dim": self._dim, "_dtype": self._dtype}  # for job.pkl

    def __copy__(self) -> Slow:
        return self

    def evaluate(self, x: np.ndarray) -> dict[str, Any]:
        self.calls += 1
        self.threads.append(threading.current_thread())
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        if self.calls == 2 and self.forever:
            if self.clock is not None:
                self.clock.hangs.set()
            assert self.gate.wait(60)
            self.at_once -= 1
            return {"loss": -1.0}
        if self.calls > 1 and not self.forever:
            assert self.gate.wait(60)
        self.at_once -= 1
        return super().evaluate(x)


class Clock:
    """The time of evaluations: it stands still, but for one leap after an evaluation that hangs has begun."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.hangs = threading.Event()
        monkeypatch.setattr(evaluator, "time", self)

    def monotonic(self) -> float:
        return 1000.0 if self.hangs.is_set() else 0.0


class Opens(asgd.Callback):
    """Opens the gate of a task when this many updates have arrived."""

    def __init__(self, task: Slow, at: int) -> None:
        self.task, self.at = task, at

    def on_update(self, view: Any, control: Any) -> None:
        if view.iteration == self.at:
            self.task.gate.set()


def test_updates_arrive_during_an_evaluation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It begins at 10 and cannot end before 35 updates have arrived; those of 20 and 30 are skipped."""
    monkeypatch.setattr(evaluator, "QUICK", 0.0)
    task, heard = Slow(), Notes()
    run = train(tmp_path, task=task, callbacks=[heard, Opens(task, 35)])
    rows = run.metrics["iteration"].tolist()
    assert rows[:2] == [0, 10]
    assert rows[-1] == 60  # the final model, in any case
    assert not {20, 30} & set(rows)
    assert heard.of("measured") == rows
    assert task.most == 1
    again = asgd.replay(tmp_path, stop=10)
    assert run.metrics["loss"][1] == 0.5 * float(again.x @ again.x)  # the model of iteration 10, not a later one
    skipped = [fact for fact in run.diagnosis.facts if "skipped" in fact]
    assert len(skipped) == 1
    assert "evaluations were skipped" in skipped[0]
    assert not any("skipped" in fact for fact in train(None).diagnosis.facts)
    sound(run, 60)


def test_a_target_acts_when_the_result_arrives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluator, "QUICK", 0.0)
    task = Slow()
    run = train(None, iterations=1000, task=task, until="loss <= 40", callbacks=[Opens(task, 25)])
    assert run.reached
    assert 25 <= run.trace.iterations < 1000
    assert run.metrics["iteration"][1] == 10  # met there, and known later


def test_an_evaluation_that_raises_is_shown_once(tmp_path: Path) -> None:
    heard = Notes()
    run = train(tmp_path, task=Blind(3), callbacks=[heard])
    assert run.metrics["iteration"].tolist() == [0, 10, 20]
    failed = events(tmp_path, "evaluation_failed")
    assert [row["iteration"] for row in failed] == [30, 40, 50, 60]
    assert {row["reason"] for row in failed} == {"OSError: the test data are gone"}
    shown = [text for text in heard.of("noted") if "the test data are gone" in text]
    assert len(shown) == 1
    assert "Traceback" in shown[0]
    assert "the run continues" in shown[0]
    assert run.faults.evaluations == 4
    for view in (RunView.of(run), RunView.read(tmp_path)):
        assert view.headline()["faults"]["evaluations"] == 4
        assert "4 evaluations failed" in view.text()
    with Watcher(tmp_path) as watcher:
        notes = [note.text for note in watcher.look().notes]
    assert "the evaluation of iteration 60 failed: OSError: the test data are gone" in notes
    assert "evaluation_failed" in asgd.report(tmp_path, tmp_path / "page.html").read_text("utf-8")
    sound(run, 60)


def test_an_evaluation_that_hangs_is_abandoned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second one never ends; the third one starts fresh, and what the second one says at last is not heard."""
    monkeypatch.setattr(evaluator, "QUICK", 0.0)
    task, heard = Slow(forever=1, clock=Clock(monkeypatch)), Notes()
    run = train(tmp_path, task=task, limits=asgd.Limits(evaluation_seconds=2.0), callbacks=[heard])
    task.gate.set()
    [failed] = events(tmp_path, "evaluation_failed")
    assert (failed["iteration"], failed["reason"]) == (10, "it took more than 2 s and was abandoned")
    assert any("it took more than 2 s and was abandoned" in text for text in heard.of("noted"))
    rows = run.metrics["iteration"].tolist()
    assert (rows[0], rows[-1], 10 in rows) == (0, 60, False)
    assert (run.metrics["loss"] >= 0).all()
    assert any("cannot be judged: an evaluation hung" in fact for fact in run.diagnosis.facts)
    assert all(thread.daemon for thread in task.threads)


HANGS = """
import threading
import asyncsgd as asgd
from asyncsgd.testing.bench import Bowl
from engines.inline import Inline

class Hangs(Bowl):
    calls = 0
    def evaluate(self, x):
        Hangs.calls += 1
        if Hangs.calls > 1:
            threading.Event().wait()
        return super().evaluate(x)

limits = asgd.Limits(evaluation_seconds=0.05)
run = asgd.train(Hangs(), asgd.async_sgd(0.05), Inline(2), iterations=40, every=10, progress=False, limits=limits)
print(run.faults.evaluations > 0)
"""


@pytest.mark.slow
def test_a_hung_thread_does_not_keep_the_process(tmp_path: Path) -> None:
    where = Path(__file__).parents[1]
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(where)!r})\n{HANGS}"],
        capture_output=True,
        encoding="utf-8",
        timeout=300,
        check=True,
    )
    assert done.stdout == "True\n"


def test_a_fresh_evaluation_uses_another_copy_of_the_task() -> None:
    class Counts(Bowl):
        def evaluate(self, x: np.ndarray) -> dict[str, Any]:
            seen.append(self)
            if len(seen) == 1:
                assert gate.wait(60)
            return super().evaluate(x)

    seen: list[Bowl] = []
    gate = threading.Event()
    task = Counts()
    evaluates = Evaluator(task, Evaluation(1), limit=0.01)
    evaluates.begin(0, 0.0, task.initial())
    missed = evaluates.finished(patience=60.0)
    assert isinstance(missed, Missed)
    assert (missed.iteration, missed.error, evaluates.busy, evaluates.hung) == (0, None, False, 1)
    patient = Evaluator.finished
    evaluates._limit = 60.0
    evaluates.begin(1, 0.0, task.initial())
    found = patient(evaluates, patience=60.0)
    assert isinstance(found, Measured)
    assert seen[0] is task
    assert seen[1] is not task
    gate.set()


@pytest.mark.slow
def test_a_first_evaluation_that_hangs_does_not_prevent_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Bowl):
        def evaluate(self, x: np.ndarray) -> dict[str, Any]:
            if (x == 1).all():
                clock.hangs.set()
                assert gate.wait(60)
            return super().evaluate(x)

    gate, clock = threading.Event(), Clock(monkeypatch)
    run = train(None, task=Late(), limits=asgd.Limits(evaluation_seconds=2.0))
    gate.set()
    assert run.metrics["iteration"][-1] == 60
    assert run.faults.evaluations >= 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"evaluation_seconds": 0.0}, "evaluation_seconds"),
        ({"evaluation_seconds": float("nan")}, "evaluation_seconds"),
        ({"evaluation_errors": "ignore"}, 'evaluation_errors.*pass "continue" or "raise"'),
    ],
)
def test_limits_that_cannot_be(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BadParameter, match=words):
        asgd.Limits(**options)
