"""Carry out ``asyncsgd train`` and ``asyncsgd replay``."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from asyncsgd.core.errors import BadParameter, ReplayDiffers
from asyncsgd.core.method import Method
from asyncsgd.core.validate import nearest, positive
from asyncsgd.engines import Engine
from asyncsgd.format import number
from asyncsgd.run import configuration, stored
from asyncsgd.run.callbacks.base import Callback
from asyncsgd.run.callbacks.best import EarlyStopping, SaveBest, mode_of, remade
from asyncsgd.run.callbacks.terminal import Terminal
from asyncsgd.run.lookup import (
    OPTIONS,
    as_options,
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
"""The defaults of a new run."""
ENGINES = ("processes", "ray")
ENGINE_OPTIONS = (
    *("workers", "devices", "threads", "slowdown", "min_seconds", "job_timeout", "start_timeout"),
    *("address", "num_cpus", "num_gpus", "resource", "at_least", "working_dir"),
)
"""The options of ``asyncsgd train`` that describe the workers; those of the method are `lookup.OPTIONS`."""

Given = Mapping[str, Any]
"""The options of ``asyncsgd train`` by their Python names, without those that the user left out."""


def train(given: Given) -> TrainingRun:
    """Train the named task, or resume the run of a directory."""
    if "task" not in given:
        return _resume(given)
    if "iterations" not in given and "epochs" not in given:
        fix = "pass the number of updates, e.g. --iterations 2000, or of epochs, e.g. --epochs 3"
        raise BadParameter("--iterations", None, "is missing", fix)
    if given["resume"] and "directory" not in given:
        raise BadParameter("--resume", True, "needs a run to resume", "pass --directory DIR")
    engine = {"engine": _engine_name(given) or "processes", "workers": WORKERS}
    method = named_method(given.get("method", METHOD), method_options(_pick(given, OPTIONS), given.get("set_", ())))
    return _train(
        given,
        named_task(given["task"]),
        method,
        named_engine(engine, _engine_options(given)),
        **_length(given, {}),
        directory=Path(given["directory"]) if "directory" in given else fresh_directory(given["task"]),
        seed=given.get("seed", SEED),
        every=given.get("every"),
        until=given.get("until"),
        callbacks=_callbacks(given, _before(given)),
    )


def _resume(given: Given) -> TrainingRun:
    """Resume a run with the task, the method and the engine that its directory stores."""
    if given["resume"] and "directory" not in given:
        raise BadParameter("--directory", None, "is missing", "name the run to resume: --directory runs/task-1")
    if not given["resume"]:
        fix = "pass module:task, or --resume --directory DIR to resume a run"
        raise BadParameter("task", None, "is missing", fix)
    for option, value in _pick(given, ("method", *OPTIONS, "set_", "seed")).items():
        shown = f"--{option.strip('_').replace('_', '-')}"
        raise BadParameter(shown, value, "cannot change in the middle of a run", "leave it out")
    engine, directory = _engine_name(given), Path(given["directory"])
    config = configuration.read(directory)
    look_here()
    task, method = stored.unpackage(directory, trust=given["trust"])
    until = given.get("until", config.get("until"))
    length = _length(given, config)
    more = any((length[name] or 0) > (config.get(name) or 0) for name in length)
    if "until" not in given and more and _reached(directory, until):
        until = None  # the user asked for more iterations after the target was met
    before = config["engine"]
    if engine not in (None, before.get("engine")):
        before = {"engine": engine, "workers": before.get("workers", WORKERS)}
    return _train(
        given,
        task,
        method,
        named_engine(before, _engine_options(given)),
        **length,
        directory=directory,
        seed=config["seed"],
        every=given.get("every", config.get("every")),
        until=until,
        callbacks=_callbacks(given, config),
    )


def _before(given: Given) -> dict[str, Any]:
    """Return run.json of the run that is resumed; empty if there is none yet."""
    resumed = given["resume"] and (Path(given["directory"]) / "run.json").exists()
    return configuration.read(Path(given["directory"])) if resumed else {}


def _callbacks(given: Given, config: Mapping[str, Any]) -> list[Callback]:
    """Return the callbacks that the options ask for; a resumed run keeps those of run.json that they do not replace."""
    found: list[Callback] = []
    if "early_stopping" in given:
        metric, options = _metric("--early-stopping", given["early_stopping"], patience=True)
        found.append(EarlyStopping(metric, **options))
    if "save_best" in given:
        metric, options = _metric("--save-best", given["save_best"])
        found.append(SaveBest(metric, **options))
    replaced = {type(callback) for callback in found}
    return [*found, *(callback for callback in remade(config) if type(callback) not in replaced)]


def _metric(option: str, text: str, *, patience: bool = False) -> tuple[str, dict[str, Any]]:
    """Return the metric and the options in ``METRIC[:PATIENCE][:min|max]``.

    >>> _metric("--early-stopping", "speed:3:max", patience=True)
    ('speed', {'patience': 3, 'mode': 'max'})
    """
    metric, *words = text.split(":")
    options: dict[str, Any] = {}
    for word in words:
        if word in ("min", "max"):
            options["mode"] = word
        elif patience and word.isdecimal() and int(word) > 0:
            options["patience"] = int(word)
        else:
            write = f"METRIC{'[:PATIENCE]' if patience else ''}[:min|max]"
            raise BadParameter(option, text, f"has an unknown part {word!r}", f"write {write}")
    try:
        mode_of(metric, options.get("mode"))
    except BadParameter as error:
        problem, fix = error.problem, error.fix
        if error.name == "mode":
            problem = "does not say whether smaller values are better"
            fix = f"write {text}:min if they are, else {text}:max"
        raise BadParameter(option, text, problem, fix) from error
    return metric, options


def _length(given: Given, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``iterations`` and ``epochs`` for `asyncsgd.train`; ``before`` is run.json of a run to resume."""
    if "iterations" in given or "epochs" in given:
        return {name: given.get(name) for name in ("iterations", "epochs")}
    epochs = before.get("epochs")
    return {"iterations": before["iterations"] if epochs is None else None, "epochs": epochs}


def _pick(given: Given, names: Sequence[str]) -> dict[str, Any]:
    return {name: given[name] for name in names if name in given}


def _engine_name(given: Given) -> str | None:
    name: str | None = given.get("engine")
    if name not in (None, *ENGINES):
        raise BadParameter("--engine", name, "is not an engine", nearest(name, ENGINES))
    return name


def _engine_options(given: Given) -> dict[str, Any]:
    options = _pick(given, ENGINE_OPTIONS)
    for name in ("slowdown", "min_seconds"):
        if name in options:
            options[name] = numbers(f"--{name.replace('_', '-')}", options[name])
    if "devices" in options:
        options["devices"] = options["devices"].split(",")
    if "resource" in options:
        pairs = options.pop("resource")
        options["resources"] = settings(pairs, "--resource", "NAME=AMOUNT, for instance big=1")
    return options


def _reached(directory: Path, until: str | None) -> bool:
    target = None if until is None else Target.parse(until)
    return target is not None and any(target.met(row) for row in read_lines(directory, "metrics.jsonl"))


class _Terminal(Terminal):
    """The terminal callback, with options written as on the command line."""

    def on_note(self, text: str) -> None:
        """Print a note."""
        names = ("iterations", "epochs", "until", "resume")
        text = text.replace("resume=True, or --resume on the command line", "--resume")
        super().on_note(as_options(text, {name: f"--{name}" for name in names}))


def _train(given: Given, task: Task, method: Method, engine: Engine, **options: Any) -> TrainingRun:
    positive("checkpoint_seconds", given["checkpoint_seconds"])
    try:
        return train_task(
            task,
            method,
            engine,
            resume=given["resume"],
            checkpoints=Checkpoints(given["checkpoint_seconds"]),
            limits=Limits(given["max_failures"], given.get("evaluation_seconds")),
            callbacks=[_Terminal(summary=False), *options.pop("callbacks")],  # `show` prints the summary
            progress=False,
            **options,
        )
    except KeyboardInterrupt as stopped:
        if not stopped.args:  # no message: before the run started, or a second Ctrl-C
            raise
        raise SystemExit(130) from stopped


def show(run: TrainingRun, *, as_json: bool) -> None:
    """Print the summary of a run."""
    if as_json:
        json.dump(RunView.of(run).headline(), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        console = Console(highlight=False)
        # In a file, a line stays one line.
        console.print(RunView.of(run).text(), markup=False, soft_wrap=not console.is_terminal)


def replay(directory: Path, stop: int | None, job: int | None = None, *, as_json: bool, trust: bool = False) -> bool:
    """Replay a run, print the result, and return whether the replay matches."""
    look_here()
    try:
        found = replay_run(directory, stop=stop, job=job, progress=True, trust=trust)
    except ReplayDiffers as error:
        _print({"same": False, "job": error.job, "iteration": error.iteration, "why": str(error)}, str(error), as_json)
        return False
    sentence = f"All {found.compared} updates match"
    sentence += ", and the final model is bit-for-bit identical." if found.model_compared else "."
    _print({"same": True, **_numbers(found)}, sentence + _details(found), as_json)
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


def _details(found: Replay) -> str:
    row = _numbers(found)
    if "not_finite" in row:
        return (
            f"\niteration {found.iterations}, where the job read the model: {row['not_finite']:,} coordinates of its "
            f"update are not finite; norm of the finite ones {number(row['update_norm'])}, "
            f"norm of the model {number(row['point_norm'])}"
        )
    if "job" not in row:
        return ""
    return (
        f"\niteration {found.iterations}: job {row['job']} of worker {row['worker']}, delay {row['delay']}, "
        f"‖update‖ {number(row['update_norm'])}, the model had moved by {number(row['drift'], 3)} since the worker "
        "read it"
    )


def _print(row: dict[str, Any], text: str, as_json: bool) -> None:
    if as_json:
        json.dump(row, sys.stdout, indent=2)
        sys.stdout.write("\n")
    else:
        Console(highlight=False).print(text, markup=False, soft_wrap=True)
