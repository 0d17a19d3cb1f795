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

from asyncsgd.core.errors import BadParameter, ReplayDiffers
from asyncsgd.core.method import Method
from asyncsgd.core.validate import nearest, positive
from asyncsgd.engines import Engine
from asyncsgd.run import configuration, stored
from asyncsgd.run.callbacks.terminal import Terminal
from asyncsgd.run.lookup import (
    fresh_directory,
    look_here,
    method_options,
    named_engine,
    named_method,
    named_task,
    numbers,
    settings,
)
from asyncsgd.run.options import Checkpoints, Limits, Target
from asyncsgd.run.read import read_lines
from asyncsgd.run.replaying import Replay
from asyncsgd.run.replaying import replay as replay_run
from asyncsgd.run.results import TrainingRun
from asyncsgd.run.training import train as train_task
from asyncsgd.run.view import RunView
from asyncsgd.tasks.base import Task

WORKERS, METHOD, SEED = 4, "delay_adaptive", 0
"""Where nothing is said."""
ENGINES = ("processes", "ray")


@dataclass(frozen=True)
class Wishes:
    """The options of ``asyncsgd train``; None where nothing was said."""

    method: str | None
    options: dict[str, Any]
    """Those of the method that have a name on the command line; None where nothing was said."""
    settings: list[str]
    iterations: int | None
    until: str | None
    directory: Path | None
    resume: bool
    seed: int | None
    every: int | None
    checkpoint_seconds: float
    max_failures: int
    workers: int | None
    slowdown: str | None
    seconds: str | None
    threads: int | None
    job_timeout: float | None
    start_timeout: float | None
    engine_name: str | None
    address: str | None
    num_cpus: float | None
    num_gpus: float | None
    resources: list[str]
    at_least: int | None
    working_dir: Path | None
    trust: bool

    @property
    def engine(self) -> dict[str, Any]:
        """What was said about the workers."""
        said = {
            "address": self.address,
            "num_cpus": self.num_cpus,
            "num_gpus": self.num_gpus,
            "resources": settings(self.resources, "--resource", "NAME=AMOUNT, for instance big=1") or None,
            "at_least": self.at_least,
            "working_dir": None if self.working_dir is None else str(self.working_dir),
            "workers": self.workers,
            "slowdown": numbers("--slowdown", self.slowdown),
            "seconds": numbers("--seconds", self.seconds),
            "threads": self.threads,
            "job_timeout": self.job_timeout,
            "start_timeout": self.start_timeout,
        }
        return {name: value for name, value in said.items() if value is not None}


def train(name: str | None, wishes: Wishes) -> TrainingRun:
    """Train what was named, or go on with what a directory holds."""
    if name is None:
        return _go_on(wishes)
    if wishes.iterations is None:
        raise BadParameter("--iterations", None, "is missing", "say how many updates are to arrive")
    if wishes.resume and wishes.directory is None:
        raise BadParameter("--resume", True, "needs a run to resume", "pass --directory DIR")
    _check_engine(wishes)
    method = named_method(wishes.method or METHOD, method_options(wishes.options, wishes.settings))
    return _train(
        wishes,
        named_task(name),
        method,
        named_engine({"engine": wishes.engine_name or "processes", "workers": WORKERS}, wishes.engine),
        iterations=wishes.iterations,
        directory=wishes.directory or fresh_directory(name),
        seed=SEED if wishes.seed is None else wishes.seed,
        every=wishes.every,
        until=wishes.until,
    )


def _go_on(wishes: Wishes) -> TrainingRun:
    """The task, the method and the engine are those that the directory remembers."""
    if wishes.resume and wishes.directory is None:
        raise BadParameter("--directory", None, "is missing", "name the run to resume: --directory runs/task-1")
    if not wishes.resume or wishes.directory is None:
        fix = "pass module:task, or --resume --directory DIR to resume a run"
        raise BadParameter("task", None, "is missing", fix)
    remembered = {"method": wishes.method, **wishes.options, "set": wishes.settings or None, "seed": wishes.seed}
    for option, value in remembered.items():
        if value is not None:
            shown = f"--{option.replace('_', '-')}"
            raise BadParameter(shown, value, "cannot change in the middle of a run", "leave it out")
    _check_engine(wishes)
    config = configuration.read(wishes.directory)
    look_here()
    task, method = stored.unpackage(wishes.directory, trust=wishes.trust)
    until = config.get("until") if wishes.until is None else wishes.until
    if wishes.until is None and wishes.iterations is not None and wishes.iterations > config["iterations"]:
        until = None if _reached(wishes.directory, until) else until  # more was asked for, so that is not the end
    return _train(
        wishes,
        task,
        method,
        named_engine(_where(config["engine"], wishes), wishes.engine),
        iterations=config["iterations"] if wishes.iterations is None else wishes.iterations,
        directory=wishes.directory,
        seed=config["seed"],
        every=config.get("every") if wishes.every is None else wishes.every,
        until=until,
    )


def _reached(directory: Path, until: str | None) -> bool:
    target = None if until is None else Target.parse(until)
    return target is not None and any(target.met(row) for row in read_lines(directory, "metrics.jsonl"))


def _check_engine(wishes: Wishes) -> None:
    if wishes.engine_name not in (None, *ENGINES):
        fix = nearest(wishes.engine_name, ENGINES)
        raise BadParameter("--engine", wishes.engine_name, "is not an engine", fix)


def _where(remembered: dict[str, Any], wishes: Wishes) -> dict[str, Any]:
    """The engine of the run, unless another one is asked for."""
    if wishes.engine_name in (None, remembered.get("engine")):
        return remembered
    return {"engine": wishes.engine_name, "workers": remembered.get("workers", WORKERS)}


class _Terminal(Terminal):
    """The terminal of the command line, in its words."""

    def on_note(self, text: str) -> None:
        """Print it."""
        super().on_note(text.replace("pass iterations=N", "pass --iterations N").replace("until=", "--until "))


def _train(wishes: Wishes, task: Task, method: Method, engine: Engine, **options: Any) -> TrainingRun:
    positive("checkpoint_seconds", wishes.checkpoint_seconds)
    try:
        return train_task(
            task,
            method,
            engine,
            resume=wishes.resume,
            checkpoints=Checkpoints(wishes.checkpoint_seconds),
            limits=Limits(wishes.max_failures),
            callbacks=[_Terminal(summary=False)],  # `show` does that
            progress=False,
            **options,
        )
    except KeyboardInterrupt as stopped:
        if not stopped.args:  # before the run began, or a second time: there is no summary
            raise
        raise SystemExit(130) from stopped


def show(run: TrainingRun, *, as_json: bool) -> None:
    """Print how it went."""
    if as_json:
        json.dump(RunView.of(run).headline(), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        console = Console(highlight=False)
        console.print(
            RunView.of(run).text(), markup=False, soft_wrap=not console.is_terminal
        )  # a line stays one in a file


def replay(directory: Path, stop: int | None, job: int | None = None, *, as_json: bool, trust: bool = False) -> bool:
    """Replay and print what was found; whether it is the same."""
    console = Console(stderr=True)
    look_here()
    total = configuration.read(directory)["iterations"] if stop is None else stop
    try:
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
            line = bar.add_task("replaying", total=total)
            found = replay_run(
                directory, stop=stop, job=job, progress=lambda done: bar.advance(line, done), trust=trust
            )
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
    elif found.update is not None and found.point is not None:
        finite = np.isfinite(found.update)
        row |= {
            "not_finite": int(np.count_nonzero(~finite)),
            "update_norm": float(np.linalg.norm(found.update[finite])),
            "point_norm": float(np.linalg.norm(found.point)),
        }
    return row


def _look(found: Replay) -> str:
    row = _numbers(found)
    if "not_finite" in row:
        return (
            f"\niteration {found.iterations}, where the job began: {row['not_finite']:,} coordinates of its update are "
            f"not finite, the norm of the others is {row['update_norm']:.4g}; that of the model is "
            f"{row['point_norm']:.4g}"
        )
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
