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
from asyncsgd.report.sources import gather
from asyncsgd.run import Listener, TrainingRun
from asyncsgd.run.ending import Ending, decide, of_records, of_run
from asyncsgd.run.summary import as_text
from asyncsgd.watch import Frame, Watcher


class Kept(Listener):
    """Keeps the run, also one that `train` does not return."""

    run: TrainingRun

    def ended(self, run: TrainingRun) -> None:
        self.run = run


def agreed(run: TrainingRun, directory: Path) -> tuple[Frame, str]:
    """The frame of `watch` and the first line of the terminal, once everything else says the same."""
    with Watcher(directory, now=lambda: 0.0) as watcher:
        frame = watcher.look()
    (kept,), (held,) = gather(directory), gather(run)
    end = of_run(run)
    assert frame.state == end.state
    assert frame.words == kept.state.words == held.state.words == end.words(directory)
    assert kept.state == held.state
    return frame, as_text(run).splitlines()[0]


def test_a_run_that_is_done(tmp_path: Path) -> None:
    frame, said = agreed(train(tmp_path), tmp_path)
    assert (frame.state, frame.words) == ("ended", "ended")
    assert said.startswith("async_sgd is done: 60 iterations")


def test_targets(tmp_path: Path) -> None:
    frame, said = agreed(train(tmp_path / "a", 10_000, until="loss <= 30"), tmp_path / "a")
    assert frame.words == f"reached loss <= 30.0 at iteration {frame.iteration} of 10,000"
    assert said.startswith("async_sgd reached its target")
    frame, said = agreed(train(tmp_path / "b", until="loss <= 1e-12"), tmp_path / "b")
    assert frame.words == "missed loss <= 1e-12"
    assert said.startswith("async_sgd missed its target")


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
    assert frame.bad
    assert frame.words == f"diverged at iteration {run.diverged} of {options['iterations']:,}"
    assert said.startswith("async_sgd diverged")


def test_a_run_that_was_interrupted(tmp_path: Path) -> None:
    class Enough(Kept):
        def measured(self, iteration: int, seconds: float, metrics: Any) -> None:
            if iteration == 20:
                os.kill(os.getpid(), signal.SIGINT)

    enough = Enough()
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, listeners=[enough])
    frame, said = agreed(enough.run, tmp_path)
    assert frame.state == "interrupted"
    command = f"asyncsgd train --resume --directory {tmp_path}"
    assert frame.words == f"interrupted at iteration {frame.iteration} of 60; resume it with: {command}"
    assert said.startswith("async_sgd was stopped by SIGINT")


# ---------------------------------------------------------------------------------------------- the decision

CONFIG = {"iterations": 4000, "until": "loss <= 0.5"}


def test_any_row_may_meet_the_target() -> None:
    """Updates arrive while a model is measured, so the last row may be of another one that is worse again."""
    journal = [{"event": "started"}, {"event": "ended"}]
    rows = [{"iteration": 0, "loss": 2.0}, {"iteration": 4, "loss": 0.25}, {"iteration": 8, "loss": 0.75}]
    end = of_records(CONFIG, journal, rows, 8, running=False)
    assert (end.state, end.reached, end.tone) == ("ended", True, "good")
    assert end.words() == "reached loss <= 0.5 at iteration 4 of 4,000"
    odd = [{"iteration": 0, "loss": None}, {"iteration": 4, "accuracy": 1.0}, {"iteration": 8, "loss": "low"}]
    assert of_records(CONFIG, journal, odd, 8, running=False).state == "interrupted"


@pytest.mark.parametrize(
    ("given", "state", "tone"),
    [
        ({"running": True, "stopped": "x", "diverged": 3, "met": 2}, "running", "warn"),
        ({"stopped": "no worker is left", "diverged": 3, "met": 2}, "stopped", "bad"),
        ({"said": False, "diverged": 3, "met": 2}, "crashed", "bad"),
        ({"diverged": 3, "met": 2}, "diverged", "bad"),
        ({"met": 2}, "ended", "good"),
        ({}, "interrupted", "warn"),
        ({"iterations": 4000}, "ended", "warn"),
    ],
)
def test_what_counts_first(given: dict[str, Any], state: str, tone: str) -> None:
    end = decide(**{"config": CONFIG, "iterations": 8, "met": None, "diverged": None, **given})
    assert (end.state, end.tone) == (state, tone)


def test_a_resume_forgets_how_it_ended_before() -> None:
    before = [{"event": "started"}, {"event": "stopped", "reason": "the disk is full"}]
    assert of_records(CONFIG, before, [], 8, running=False).words() == (
        "stopped at iteration 8 of 4,000: the disk is full"
    )
    after = [*before, {"event": "resumed"}, {"event": "ended"}]
    assert of_records(CONFIG, after, [], 8, running=False).state == "interrupted"


def test_a_flower_run_is_not_resumed_by_the_command_line() -> None:
    end = decide({**CONFIG, "engine": {"engine": "flower"}}, 8, met=None, diverged=None)
    words = end.words(Path("runs/a"))
    assert words == "interrupted at iteration 8 of 4,000; resume it with flower.serve(..., resume=True)"


def test_without_a_directory_nothing_is_said_of_resuming() -> None:
    assert Ending("crashed", 8, 4000).words() == "crashed at iteration 8 of 4,000"
