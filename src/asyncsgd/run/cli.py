"""What ``asyncsgd train`` and ``asyncsgd replay`` do."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import Progress

from asyncsgd.core.errors import BadParameter
from asyncsgd.engines import processes
from asyncsgd.run import configuration
from asyncsgd.run.named import fresh_directory, named_engine, named_method, named_task, numbers, settings
from asyncsgd.run.replay import Replay, ReplayDiffers
from asyncsgd.run.replay import replay as replay_run
from asyncsgd.run.results import TrainingRun
from asyncsgd.run.summary import as_row, as_text
from asyncsgd.run.training import train as train_task


@dataclass(frozen=True)
class Wishes:
    """The options of ``asyncsgd train``."""

    method: str
    stepsize: float | None
    settings: list[str]
    iterations: int | None
    until: str | None
    directory: Path | None
    resume: bool
    seed: int
    every: int | None
    workers: int
    slowdown: str | None
    seconds: str | None
    threads: int | None
    job_timeout: float | None


def train(name: str | None, wishes: Wishes) -> TrainingRun:
    """Train what was named, or go on with what a directory holds."""
    if name is None:
        return _go_on(wishes)
    task = named_task(name)
    if wishes.stepsize is None:
        raise BadParameter("--stepsize", None, "is missing", "pass one, such as --stepsize 0.05")
    if wishes.iterations is None:
        raise BadParameter("--iterations", None, "is missing", "say how many updates are to arrive")
    engine = processes(
        wishes.workers,
        slowdown=numbers("--slowdown", wishes.slowdown),
        seconds=numbers("--seconds", wishes.seconds),
        threads=wishes.threads,
        job_timeout=wishes.job_timeout,
    )
    return train_task(
        task,
        named_method(wishes.method, {"stepsize": wishes.stepsize, **settings(wishes.settings)}),
        engine=engine,
        iterations=wishes.iterations,
        directory=wishes.directory or fresh_directory(name),
        resume=wishes.resume,
        seed=wishes.seed,
        every=wishes.every,
        until=wishes.until,
    )


def _go_on(wishes: Wishes) -> TrainingRun:
    """The task, the method and the engine are those that the directory remembers."""
    if not wishes.resume or wishes.directory is None:
        fix = "pass module:task, or --resume --directory DIR to go on with a run"
        raise BadParameter("task", None, "is missing", fix)
    config = configuration.read(wishes.directory)
    task, method = configuration.unpackage(wishes.directory)
    return train_task(
        task,
        method,
        engine=named_engine(config["engine"]),
        iterations=wishes.iterations or int(config["iterations"]),
        directory=wishes.directory,
        resume=True,
        seed=int(config["seed"]),
        every=wishes.every or config.get("every"),
        until=wishes.until or config.get("until"),
    )


def show(run: TrainingRun, *, as_json: bool) -> None:
    """Print how it went."""
    if as_json:
        json.dump(as_row(run), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        Console(highlight=False).print(as_text(run), markup=False, soft_wrap=True)


def replay(directory: Path, stop: int | None, *, as_json: bool) -> bool:
    """Replay and print what was found; whether it is the same."""
    console = Console(stderr=True)
    total = configuration.read(directory)["iterations"] if stop is None else stop
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            line = bar.add_task("replaying", total=total)
            found = replay_run(directory, stop=stop, progress=lambda done: bar.advance(line, done))
    except ReplayDiffers as error:
        _print({"same": False, "job": error.job, "iteration": error.iteration, "why": str(error)}, str(error), as_json)
        return False
    words = f"the same run: {found.compared} updates agree with those of the run"
    words += ", and the model does bit for bit" if found.model_compared else ""
    _print({"same": True, **_numbers(found)}, words + _look(found), as_json)
    return True


def _numbers(found: Replay) -> dict[str, Any]:
    row: dict[str, Any] = {
        "iterations": found.iterations,
        "compared": found.compared,
        "model_compared": found.model_compared,
    }
    if found.arrival is not None and found.update is not None:
        row |= {
            "job": found.arrival.job,
            "worker": found.arrival.worker,
            "delay": found.arrival.delay,
            "staleness": found.arrival.staleness,
            "update_norm": float(np.linalg.norm(found.update)),
            "drift": float(found.arrival.drift),
        }
    return row


def _look(found: Replay) -> str:
    row = _numbers(found)
    if "job" not in row:
        return ""
    return (
        f"\niteration {found.iterations}: job {row['job']} of worker {row['worker']}, delay {row['delay']}, "
        f"‖update‖ {row['update_norm']:.4g}, the model had moved {row['drift']:.4g} since its point"
    )


def _print(row: dict[str, Any], words: str, as_json: bool) -> None:
    if as_json:
        json.dump(row, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        Console(highlight=False).print(words, markup=False, soft_wrap=True)
