"""A run that is where it was to go is left as it is, to the last byte of its directory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from engines.inline import Inline
from run.common import Notes, events, reseal, sound, train
from run.test_nothing_is_deleted import contents

import asyncsgd as asgd
from asyncsgd.core.method import Method
from asyncsgd.run import BadRunDirectory
from asyncsgd.run.read import read_lines


class NoEngine(Inline):
    def start(self, *_: object) -> Any:
        raise AssertionError("workers were started for a finished run")


METHODS = {
    "async_sgd": asgd.async_sgd(0.05),
    "fedbuff": asgd.fedbuff(0.5, concurrency=4, buffer=7),
    "average": asgd.methods.adadelay(smoothness=1.0),
    "noise": asgd.fedbuff(0.5, concurrency=4, buffer=5).clipped(1.0, noise=0.1),
}


@pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)
def test_resuming_a_finished_run_changes_nothing(tmp_path: Path, method: Method) -> None:
    first = train(tmp_path, iterations=50, method=method)
    before = contents(tmp_path)
    notes = Notes()
    same = train(tmp_path, iterations=50, method=method, resume=True, engine=NoEngine(2), callbacks=[notes])
    assert contents(tmp_path) == before
    assert notes.calls == [("noted", "already at 50 iterations; pass iterations=N to continue")]
    assert same.x.tobytes() == first.x.tobytes()
    assert same.trace == first.trace
    assert (same.seconds, same.reached, same.diverged) == (first.seconds, True, None)
    assert (same.faults, same.diagnosis, same.config) == (first.faults, first.diagnosis, first.config)
    assert {name: values.tolist() for name, values in same.metrics.items()} == {
        name: values.tolist() for name, values in first.metrics.items()
    }
    sound(train(tmp_path, iterations=80, method=method, resume=True), 80)


@pytest.mark.parametrize("name", ["trace.log", "metrics.jsonl", "journal.jsonl", "fingerprints.bin"])
@pytest.mark.parametrize("damage", [Path.unlink, lambda path: os.truncate(path, 40)], ids=["gone", "short"])
def test_a_finished_run_that_lost_something_is_refused(tmp_path: Path, name: str, damage: Any) -> None:
    train(tmp_path, iterations=50)
    damage(tmp_path / name)
    before = contents(tmp_path)
    with pytest.raises(BadRunDirectory, match=rf"{name} (cannot be read|is shorter than it was)"):
        train(tmp_path, iterations=50, resume=True, engine=NoEngine(2))
    assert contents(tmp_path) == before


def test_a_target_that_was_reached(tmp_path: Path) -> None:
    run = train(tmp_path, iterations=1000, until="loss <= 25")
    done = run.trace.iterations
    assert done < 1000
    before = contents(tmp_path)
    for more in (1000, 2000):
        notes = Notes()
        again = train(tmp_path, more, until="loss <= 25", resume=True, engine=NoEngine(2), callbacks=[notes])
        words = f"already reached loss <= 25.0 at iteration {done}; pass until=TARGET with another target to continue"
        assert notes.of("noted") == [words]
        assert again.reached
        assert contents(tmp_path) == before
    further = train(tmp_path, iterations=1000, until="loss <= 10", resume=True)
    assert done < further.trace.iterations < 1000
    whole = train(tmp_path, iterations=1000, resume=True)
    assert whole.trace.iterations == 1000


def test_a_target_that_was_missed(tmp_path: Path) -> None:
    train(tmp_path, iterations=40, until="loss <= 0")
    before = contents(tmp_path)
    again = train(tmp_path, iterations=40, until="loss <= 0", resume=True, engine=NoEngine(2))
    assert not again.reached
    assert contents(tmp_path) == before


def test_a_run_that_was_killed_at_its_end_is_brought_to_it(tmp_path: Path) -> None:
    """All updates are there, but not the end of its record."""
    train(tmp_path, iterations=50)
    (tmp_path / "trace.parquet").unlink()
    reseal(tmp_path, journal=read_lines(tmp_path, "journal.jsonl")[:-1])
    run = train(tmp_path, iterations=50, resume=True)
    sound(run, 50)
    assert events(tmp_path, "diagnosed")
    assert (tmp_path / "trace.parquet").exists()


def test_a_run_that_diverged_is_not_finished(tmp_path: Path) -> None:
    first = train(tmp_path, iterations=100_000, method=asgd.async_sgd(1e5), checkpoints=asgd.Checkpoints(every=1))
    assert first.diverged is not None
    again = train(
        tmp_path, iterations=100_000, method=asgd.async_sgd(1e5), checkpoints=asgd.Checkpoints(every=1), resume=True
    )
    assert again.diverged is not None
    assert events(tmp_path, "resumed")


def test_the_retired_are_remembered(tmp_path: Path) -> None:
    from run.tasks import Rubbish

    first = train(tmp_path, 100, task=Rubbish(worker=1), engine=Inline(3))
    assert first.faults.retired == (1,)
    again = train(tmp_path, 100, task=Rubbish(worker=1), engine=NoEngine(3), resume=True)
    assert again.faults == first.faults
    assert np.array_equal(again.trace.worker, first.trace.worker)
