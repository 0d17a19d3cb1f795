"""How a run ended: the run itself, the terminal, the page and `watch` agree, whatever happened."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from run.common import train
from run.tasks import Exploding

import asyncsgd as asgd
from asyncsgd.pages.sources import gather
from asyncsgd.run import Callback, TrainingRun
from asyncsgd.run.ending import End, Ending, Known, decide, ending_of_files
from asyncsgd.run.live import Frame, Watcher
from asyncsgd.run.view import RunView


class Kept(Callback):
    """Keeps the run, also one that `train` does not return."""

    run: TrainingRun

    def on_end(self, run: TrainingRun) -> None:
        self.run = run


def agreed(run: TrainingRun, directory: Path) -> tuple[Frame, str]:
    """The frame of `watch` and the first line of the terminal, once everything else says the same."""
    with Watcher(directory, now=lambda: 0.0) as watcher:
        frame = watcher.look()
    (kept,), (held,) = gather(directory), gather(run)
    view = RunView.of(run)
    assert frame.ending == kept.ending == held.ending == view.ending
    assert frame.sentence == kept.state == held.state == view.state == view.ending.sentence(directory)
    same = (
        "method",
        "task",
        "state",
        "sentence",
        "iterations",
        "wanted",
        "until",
        "average_delay",
        "maximum_delay",
        "faults",
    )
    rows = [shown.headline() for shown in (frame, kept, held, view)]
    assert all(row[name] == rows[0][name] for row in rows for name in same)
    assert rows[0]["jobs"].items() <= rows[1]["jobs"].items()
    return frame, view.text().splitlines()[0]


def test_a_run_that_is_done(tmp_path: Path) -> None:
    frame, said = agreed(train(tmp_path), tmp_path)
    assert (frame.ending.kind, frame.sentence) == ("done", "done")
    assert said.startswith("async_sgd done: 60 iterations")


def test_targets(tmp_path: Path) -> None:
    frame, said = agreed(train(tmp_path / "a", 10_000, until="loss <= 30"), tmp_path / "a")
    assert frame.sentence == f"reached loss <= 30.0 at iteration {frame.iterations} of 10,000"
    assert said.startswith("async_sgd reached loss <= 30.0 at iteration ")
    frame, said = agreed(train(tmp_path / "b", until="loss <= 1e-12"), tmp_path / "b")
    assert frame.sentence == "missed loss <= 1e-12"
    assert said.startswith("async_sgd missed loss <= 1e-12: 60 iterations")


@pytest.mark.parametrize(
    ("options", "at"),
    [
        ({"task": Exploding(at=1e9), "iterations": 20}, 0),
        ({"task": Exploding(at=25.0), "iterations": 10**5}, None),
        ({"method": asgd.async_sgd(1e200), "iterations": 10**6, "every": 10**6}, None),
    ],
    ids=["at the first evaluation", "later", "before it is measured"],
)
def test_a_run_that_diverged_is_not_to_be_resumed(options: dict[str, Any], at: int | None, tmp_path: Path) -> None:
    run = train(tmp_path, **options)
    frame, said = agreed(run, tmp_path)
    assert run.diverged is not None
    assert at is None or run.diverged == at
    assert frame.ending.bad
    at_iteration = f"iteration {run.diverged} of {options['iterations']:,}"
    assert frame.sentence == f"diverged at {at_iteration if run.diverged else 'the initial model'}"
    assert said.startswith("async_sgd diverged")


def test_a_run_that_was_interrupted(tmp_path: Path) -> None:
    class Enough(Kept):
        def on_evaluation(self, view: Any, metrics: Any, control: Any) -> None:
            if view.iteration == 20:
                os.kill(os.getpid(), signal.SIGINT)

    enough = Enough()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, callbacks=[enough])
    frame, said = agreed(enough.run, tmp_path)
    assert frame.ending.kind == "interrupted"
    command = f"asyncsgd train --resume --directory {tmp_path}"
    assert frame.sentence == f"interrupted by SIGINT at iteration {frame.iterations} of 60; resume it with: {command}"
    assert said.startswith("async_sgd interrupted by SIGINT at iteration ")


# ---------------------------------------------------------------------------------------------- the decision

CONFIG = {"iterations": 4000, "until": "loss <= 0.5"}


def test_any_row_may_meet_the_target() -> None:
    """Updates arrive while a model is measured, so the last row may be of another one that is worse again."""
    journal = [{"event": "started"}, {"event": "ended"}]
    rows = [{"iteration": 0, "loss": 2.0}, {"iteration": 4, "loss": 0.25}, {"iteration": 8, "loss": 0.75}]
    end = ending_of_files(CONFIG, journal, rows, 8, running=False)
    assert (end.kind, end.colour) == ("reached", "good")
    assert end.sentence() == "reached loss <= 0.5 at iteration 4 of 4,000"
    odd = [{"iteration": 0, "loss": None}, {"iteration": 4, "accuracy": 1.0}, {"iteration": 8, "loss": "low"}]
    assert ending_of_files(CONFIG, journal, odd, 8, running=False).kind == "interrupted"


@pytest.mark.parametrize(
    ("given", "state", "tone"),
    [
        ({"running": True, "stopped": "x", "diverged": 3, "met": 2}, "running", "warn"),
        ({"stopped": "no worker is left", "diverged": 3, "met": 2}, "stopped", "bad"),
        ({"ended": False, "diverged": 3, "met": 2}, "crashed", "bad"),
        ({"diverged": 3, "met": 2}, "diverged", "bad"),
        ({"met": 2, "early": "x"}, "reached", "good"),
        ({"early": "no progress"}, "stopped early", "good"),
        ({}, "interrupted", "warn"),
        ({"iterations": 4000}, "missed", "warn"),
    ],
)
def test_what_counts_first(given: dict[str, Any], state: str, tone: str) -> None:
    end = decide(CONFIG, Known(**{"iterations": 8, **given}))
    assert (end.kind, end.colour) == (state, tone)


def test_a_resume_forgets_how_it_ended_before() -> None:
    before = [{"event": "started"}, {"event": "stopped", "reason": "the disk is full"}]
    assert ending_of_files(CONFIG, before, [], 8, running=False).sentence() == (
        "stopped at iteration 8 of 4,000: the disk is full"
    )
    after = [*before, {"event": "resumed"}, {"event": "ended"}]
    assert ending_of_files(CONFIG, after, [], 8, running=False).kind == "interrupted"


def test_a_flower_run_is_not_resumed_by_the_command_line() -> None:
    end = decide({**CONFIG, "engine": {"engine": "flower"}}, Known(8))
    words = end.sentence(Path("runs/a"))
    assert words == "interrupted at iteration 8 of 4,000; resume it with AsyncStrategy(..., resume=True)"


def test_without_a_directory_nothing_is_said_of_resuming() -> None:
    assert Ending(End.CRASHED, 8, 4000).sentence() == "crashed at iteration 8 of 4,000"
