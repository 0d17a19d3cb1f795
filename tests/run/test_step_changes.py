"""A callback scales the step: the next update has it, the journal keeps it, a resume and a replay follow."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run.common import events, sound, train

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter, ReplayDiffers
from asyncsgd.run.live import Watcher
from asyncsgd.run.read import read_lines


class Scale(asgd.Callback):
    """Scales the step after these updates."""

    def __init__(self, factors: dict[int, list[float]]) -> None:
        self.factors = factors

    def on_update(self, view: Any, control: Any) -> None:
        for factor in self.factors.get(view.iteration, ()):
            control.scale_step(factor, "as planned")


FACTORS = {5: [0.5], 12: [3.0, 0.3], 30: [0.7]}


def expected(iterations: int, stepsize: float, factors: dict[int, list[float]]) -> list[float]:
    steps, factor = [], 1.0
    for t in range(iterations):
        for change in factors.get(t, ()):
            factor = factor * change
        steps.append(stepsize * factor)
    return steps


METHODS = {
    "async_sgd": asgd.async_sgd(0.05),
    "adam": asgd.async_sgd(0.01).using(optimizer=asgd.optimizers.adamw()),
    "early": asgd.federated_async_sgd(0.05, concurrency=3, early=True),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_the_next_update_has_the_new_step(tmp_path: Path, method: Any) -> None:
    run = train(tmp_path, method=method, callbacks=[Scale(FACTORS)])
    assert run.trace.step.tolist() == expected(60, method.step.stepsize, FACTORS)
    sound(run, 60)
    changed = [(row["iteration"], row["factor"], row["reason"]) for row in events(tmp_path, "step_changed")]
    assert changed == [(at, factor, "as planned") for at, factors in FACTORS.items() for factor in factors]


def test_the_diagnosis_judges_the_step_that_was_used(tmp_path: Path) -> None:
    """Also of the updates before a resume."""

    def judged(iterations: int, factors: dict[int, list[float]]) -> str:
        run = train(tmp_path, iterations, callbacks=[Scale(factors)], resume=True)
        [fact] = [fact for fact in run.diagnosis.facts if fact.startswith("step size: ")]
        return fact

    assert judged(20, {}).startswith("step size: 0.05 is ")
    changed = "step size: 0.2 (the largest: callbacks multiplied steps by 1 to 4) is "
    assert judged(40, {25: [4.0]}).startswith(changed)
    assert judged(60, {45: [0.5]}).startswith(changed)


def test_a_buffer_moves_by_the_step_of_its_last_arrival(tmp_path: Path) -> None:
    run = train(tmp_path, method=asgd.fedbuff(0.3, concurrency=4, buffer=4), callbacks=[Scale(FACTORS)])
    sound(run, 60)
    assert len(events(tmp_path, "step_changed")) == 4


@pytest.mark.parametrize("at", [5, 20, 30])
def test_a_resume_keeps_the_step(tmp_path: Path, at: int) -> None:
    """Checkpoints are written in the very update whose callback scales the step, and after it."""
    options = {"checkpoints": asgd.Checkpoints(every=5, keep=20)}
    train(tmp_path, iterations=at, callbacks=[Scale(FACTORS)], **options)
    run = train(tmp_path, resume=True, callbacks=[Scale({place: f for place, f in FACTORS.items() if place > at})])
    assert run.trace.step.tolist() == expected(60, 0.05, FACTORS)
    sound(run, 60)


def test_an_evaluation_may_scale_the_step(tmp_path: Path) -> None:
    class Halve(asgd.Callback):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            if view.iteration in (0, 20):
                control.scale_step(0.5)

    run = train(tmp_path, callbacks=[Halve()])
    assert run.trace.step.tolist() == expected(60, 0.05, {0: [0.5], 20: [0.5]})
    sound(run, 60)


def test_a_replay_that_ignored_the_factor_would_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    train(tmp_path, callbacks=[Scale({50: [0.5]})])
    monkeypatch.setattr("asyncsgd.run.replaying._factors", lambda journal: {})
    with pytest.raises(ReplayDiffers):
        asgd.replay(tmp_path)


def test_the_watcher_shows_the_change(tmp_path: Path) -> None:
    train(tmp_path, callbacks=[Scale({50: [0.5]})])
    with Watcher(tmp_path) as watcher:
        (note,) = watcher.look().notes
    assert (note.iteration, note.text, note.bad) == (50, "a callback multiplied the step by 0.5", False)
    assert read_lines(tmp_path, "journal.jsonl")


@pytest.mark.parametrize("factor", [0, -1.0, float("nan"), float("inf"), "0.5", None, True])
def test_a_bad_factor_is_refused(factor: Any) -> None:
    control = asgd.run.Control()
    with pytest.raises(BadParameter, match=r"^factor(?: = .*)? "):
        control.scale_step(factor)
    with pytest.raises(BadParameter, match=r"^reason = 3 is not a text"):
        control.scale_step(0.5, 3)  # type: ignore[arg-type]
    assert control.take_factors() == []
