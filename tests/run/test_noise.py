"""Noise is drawn once: every start and every resume has a new secret seed, and a replay knows them all."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from run.common import sound, train

import asyncsgd as asgd
from asyncsgd.core.vectors import Vector
from asyncsgd.run import checkpoints
from asyncsgd.testing.bench import Bowl

NOISY = asgd.fedbuff(1.0, concurrency=2, buffer=2).clipped(1.0, noise=4.0)

ALL = asgd.Checkpoints(every=20, keep=100)


class Still(Bowl):
    """Updates of 0: the model is the sum of the noise."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        return np.zeros_like(x)


def seeds(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (directory / "noise.jsonl").read_text("utf-8").splitlines()]


def model(directory: Path, iteration: int) -> Vector:
    points = checkpoints.read(directory / "checkpoints" / f"{iteration:012d}.safetensors").state["update"]["points"]
    return points["live"][points["current"]]


def test_a_resume_does_not_repeat_the_noise(tmp_path: Path) -> None:
    """The run is taken back to iteration 20 and makes the versions after it again."""
    train(tmp_path, iterations=40, method=NOISY, task=Still(), checkpoints=ALL)
    before = model(tmp_path, 40) - model(tmp_path, 20)
    (tmp_path / "checkpoints" / "000000000040.safetensors").unlink()
    run = train(
        tmp_path,
        iterations=40,
        method=NOISY,
        task=Still(),
        checkpoints=ALL,
        resume=True,
    )
    after = model(tmp_path, 40) - model(tmp_path, 20)
    assert not np.isclose(before, after).any()
    assert [row["iteration"] for row in seeds(tmp_path)] == [0, 20]
    sound(run, 40)


def test_the_seed_of_the_noise_is_not_the_runs_and_for_the_owner_alone(tmp_path: Path) -> None:
    for name in ("one", "two"):
        train(tmp_path / name, iterations=10, method=NOISY, seed=3)
    assert seeds(tmp_path / "one") != seeds(tmp_path / "two")
    assert stat.S_IMODE((tmp_path / "one").stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / "one" / "noise.jsonl").stat().st_mode) == 0o600
    assert train(None, 10, NOISY, task=Still()).x.tobytes() != train(None, 10, NOISY, task=Still()).x.tobytes()


def test_without_noise_no_seeds_are_kept(tmp_path: Path) -> None:
    train(tmp_path / "run", iterations=10, method=asgd.async_sgd(0.05).clipped(1.0))
    assert not (tmp_path / "run" / "noise.jsonl").exists()


@pytest.mark.parametrize("method", [NOISY, asgd.async_sgd(0.05).clipped(1.0, noise=0.5)])
def test_resumed_runs_are_replayed_bit_for_bit(tmp_path: Path, method: Any) -> None:
    for iterations in (20, 33, 50):
        sound(train(tmp_path, iterations=iterations, method=method, resume=True), iterations)
    assert len({row["seed"] for row in seeds(tmp_path)}) == 3


def test_a_simulation_repeats_its_noise() -> None:
    task, times = asgd.tasks.quadratic(dim=4, workers=2), asgd.durations.fixed([1.0, 2.0])
    one, two = (asgd.simulate(task, NOISY, times, iterations=20, seed=5).x for _ in range(2))
    assert one.tobytes() == two.tobytes()
