"""Epochs with steps per worker: the number of updates is not known before, and everything follows the epochs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from run.common import sound
from run.rows import Rows

import asyncsgd as asgd
from asyncsgd.core.errors import BadParameter
from asyncsgd.run.epochs import expected
from asyncsgd.run.live import Watcher
from asyncsgd.run.view import RunView

TASK = Rows(40, 2)  # 20 mini-batches an epoch
METHOD = asgd.async_sgd(1.0).local(5, 1.0, per_worker=[1, 2, 1])
EPOCHS = 3
ESTIMATE, BATCHES = 12, 60


class At(asgd.Callback):
    """Does something at one iteration, and keeps what it saw of the others."""

    def __init__(self, iteration: int, act: Any = None) -> None:
        self.iteration, self.act = iteration, act
        self.views: list[Any] = []

    def on_update(self, view: Any, control: Any) -> None:
        self.views.append(view)
        if view.iteration == self.iteration and self.act is not None:
            self.act(control)


def train(directory: Path | None = None, **options: Any) -> Any:
    given: dict[str, Any] = {"engine": Inline(3), "progress": False, "epochs": EPOCHS, **options}
    return asgd.train(TASK, METHOD, directory=directory, checkpoints=asgd.Checkpoints(every=4), **given)


def look(directory: Path) -> Any:
    with Watcher(directory) as watcher:
        return watcher.look()


def complete(run: Any) -> None:
    """Every row was used once per epoch, but for those of jobs that a stop ended."""
    assert run.x.sum() + run.skipped_rows == EPOCHS * TASK.rows
    assert run.x.max() <= EPOCHS
    assert run.trace.iterations > ESTIMATE, "else this test shows nothing"
    assert RunView.of(run).ending.sentence() == "done"


def test_more_updates_than_all_jobs_of_full_length() -> None:
    seen = At(-1)
    run = train(callbacks=[seen])
    complete(run)
    assert run.config["iterations"] == ESTIMATE
    wanted = [view.wanted for view in seen.views]
    assert all(view.iteration <= view.wanted for view in seen.views)
    assert abs(wanted[len(wanted) // 2] - run.trace.iterations) <= 6  # half-way it is about right


def test_stopped_after_the_estimate_and_resumed(tmp_path: Path) -> None:
    first = train(tmp_path / "run", callbacks=[At(20, lambda control: control.stop("enough"))])
    assert (first.trace.iterations, RunView.of(first).ending.kind) == (20, "stopped early")
    frame = look(tmp_path / "run")
    assert (frame.ending.kind, frame.sentence) == ("stopped early", "stopped early at iteration 20: enough")
    run = train(tmp_path / "run", resume=True)
    complete(run)
    sound(run, run.trace.iterations)
    again = train(tmp_path / "run", resume=True)  # it is finished: nothing changes
    assert again.trace == run.trace
    assert look(tmp_path / "run").ending.kind == "done"


def test_interrupted_after_the_estimate(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", callbacks=[At(20, lambda _: os.kill(os.getpid(), signal.SIGINT))])
    frame = look(tmp_path / "run")
    assert frame.ending.kind == "interrupted"
    assert " of " not in frame.sentence.split(";")[0]
    complete(train(tmp_path / "run", resume=True))


def test_watch_expects_more_while_it_runs(tmp_path: Path) -> None:
    frames = []
    train(tmp_path / "run", every=1, callbacks=[At(20, lambda _: frames.append(look(tmp_path / "run")))])
    [frame] = frames
    assert frame.ending.wanted >= frame.iterations
    assert frame.left is None or frame.left >= 0


def test_expected_iterations() -> None:
    config = {"iterations": 80, "epochs": 4, "estimated": True}
    assert expected(config, 0, 0.0) == 80
    assert expected(config, 65, 2.0) == 130
    assert expected(config, 130, 4.0) == 130
    assert expected({**config, "estimated": False}, 65, 2.0) == 80


def test_an_inner_schedule_spans_the_mini_batches_of_the_epochs(tmp_path: Path) -> None:
    method = asgd.async_sgd(1.0).local(5, asgd.schedules.linear(1.0), per_worker=[1, 2, 1])
    run = asgd.train(TASK, method, Inline(3), epochs=EPOCHS, directory=tmp_path / "run", progress=False)
    assert run.method.work.stepsize.total == BATCHES
    used = np.zeros(TASK.rows)
    for number in range(BATCHES):
        used[TASK.of(0, number)] += 1 - number / BATCHES
    assert np.allclose(run.x, used)
    assert json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))["bound"]["batches"] == BATCHES
    sound(run, run.trace.iterations)


def test_schedules_whose_end_depends_on_speeds_are_refused() -> None:
    inner = asgd.async_sgd(1.0).local(5, asgd.schedules.linear(0.1), per_worker=[1, 2, 1])
    outer = asgd.async_sgd(asgd.schedules.linear(1.0)).local(5, 0.1, per_worker="speed")
    with pytest.raises(BadParameter, match=r"total = None is open.*pass linear\(total="):
        asgd.train(TASK, inner, Inline(3), iterations=10, progress=False)
    with pytest.raises(BadParameter, match=r"total = None is open.*pass linear\(total="):
        asgd.train(TASK, outer, Inline(3), epochs=2, progress=False)
    inner.using(work=asgd.async_sgd(1.0).local(5, asgd.schedules.linear(0.1, total=60)).work).bind(3, 10)


def test_an_inner_schedule_that_is_negative_is_refused() -> None:
    below = asgd.schedules.custom(lambda t: -1.0 if t > 30 else 0.1)
    for method in (asgd.async_sgd(1.0).local(5, below), asgd.async_sgd(1.0).local(5, below, per_worker=[1, 2, 9])):
        with pytest.raises(BadParameter, match=r"stepsize = .* is -1 at iteration 31"):
            method.bind(3, 10)
    asgd.async_sgd(1.0).local(5, below).bind(3, 6)  # it ends before


def test_a_schedule_is_checked_for_as_many_updates_as_may_come() -> None:
    falling = asgd.schedules.custom(lambda t: 1.0 - t / 26)
    method = asgd.async_sgd(falling).local(5, 1.0, per_worker=[1, 2, 1])
    with pytest.raises(BadParameter, match=r"stepsize = .* is -.* at iteration 27"):
        asgd.train(TASK, method, Inline(3), epochs=EPOCHS, progress=False)
