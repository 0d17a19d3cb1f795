"""The configuration of a run: check it, describe it for run.json, and compare it at a resume."""

from __future__ import annotations

import platform
import re
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadParameter, BadRunDirectory
from asyncsgd.core.method import Method
from asyncsgd.core.parts import check_parts
from asyncsgd.core.parts import describe as describe_parts
from asyncsgd.core.validate import check_model
from asyncsgd.engines.base import Engine
from asyncsgd.format import jsonable
from asyncsgd.run import checkpoints as checkpoints
from asyncsgd.run.checksums import JOB, check_listed
from asyncsgd.run.options import RunRequest
from asyncsgd.run.read import read_config, read_lines
from asyncsgd.tasks.base import Task, batches_of, is_heterogeneous

LIBRARIES = ("asyncsgd", "numpy", "torch", "ray", "flwr")
SAME = ("method", "seed", "dimension", "dtype")
"""Values that may not change when a run is resumed."""
REMEMBERED = {"method": str, "seed": int, "dimension": int, "dtype": str, "iterations": int, "engine": dict}
"""Entries of run.json that a resume or a replay needs, and their types."""


def check(task: Task, method: Method, engine: Engine, iterations: int, seed: int, batches: int | None = None) -> None:
    """Refuse arguments that cannot work, before anything is started."""
    check_parts(task, method, seed)
    if not isinstance(engine, Engine):
        raise BadParameter("engine", engine, f"is a {type(engine).__name__}", "pass asgd.engines.processes(workers=4)")
    check_model(task.initial())
    expected = getattr(task, "workers", None)
    if expected is not None and engine.workers != expected and is_heterogeneous(task):
        more = engine.workers > expected
        problem = f"are {'more' if more else 'fewer'} than the task has data for ({expected})"
        problem += "" if more else ", so the other data would never be used; a list of data is one dataset per worker"
        fix = f"start {expected} workers, or make a task with data for {engine.workers}"
        raise BadParameter("workers", engine.workers, problem, fix)
    bound = method.bind(engine.workers, iterations, batches_of(task), batches)
    if batches is not None and method.work.per_worker is not None and bound.step.schedule is not None:
        bound.step.schedule.check(batches)  # as many updates as this may come: `iterations` is an estimate
    if not engine.keeps_state:
        _check_keeps_nothing(method, type(engine).__name__)
    bound.check(workers=engine.workers, iterations=iterations, heterogeneous=is_heterogeneous(task))


def _check_keeps_nothing(method: Method, engine: str) -> None:
    """Refuse a method whose jobs need `asyncsgd.core.worker.WorkerState` in the workers."""
    code = method.down if method.up is None else method.up
    if code is None and not method.job.keeps:
        return
    argument, value = ("state", "kept") if code is None else ("compressed", code.name)
    problem = f"needs workers that can keep state and decode models, which those of {engine} cannot"
    fix = 'use asgd.engines.processes(...) or asgd.engines.ray(...), or state="fresh" without .compressed(...)'
    raise BadParameter(argument, value, problem, fix)


def settled(request: RunRequest, begun: Path | None) -> Method:
    """Return the method with its open numbers fixed.

    A resumed run (``begun``: its directory) keeps the numbers that were fixed when it started.
    """
    start = _bound(request)
    if begun is not None:
        start = read(begun).get("bound", start)
    return request.method.bind(**start, counted=batches_of(request.task))


def _bound(request: RunRequest) -> dict[str, Any]:
    """Return the numbers of the run that a method may depend on."""
    return {"workers": request.engine.workers, "iterations": request.iterations, "batches": request.batches}


def describe(request: RunRequest) -> dict[str, Any]:
    """Return the description of a run for run.json."""
    task, method, engine = request.task, request.method, request.engine
    x = task.initial()
    return {
        "task": getattr(task, "name", type(task).__name__),
        "options": jsonable(dict(getattr(task, "fixed_options", {}))),
        "method": re.sub(r" at 0x[0-9a-f]+", "", repr(method)),  # addresses differ between processes
        "method_name": method.name,
        "parts": describe_parts(method),
        "iterations": request.iterations,
        "estimated": request.epochs is not None and method.work.per_worker is not None,
        "epochs": request.epochs,
        "seed": request.seed,
        "dimension": int(x.shape[0]),
        "dtype": x.dtype.name,
        "engine": engine.describe(),
        "bound": _bound(request),
        "threads": engine.threads,
        "notes": list(getattr(task, "notes", ())),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "versions": {name: found for name in LIBRARIES if (found := _version(name)) is not None},
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_same(now: dict[str, Any], then: dict[str, Any]) -> None:
    """Refuse to resume with another method, model, seed or data: the trace would mix two runs."""
    changes = _changes(now["parts"], then["parts"]) if isinstance(then.get("parts"), dict) else []
    if now["method"] != then["method"] and changes:
        problem = f"is not what the run started with: {', '.join(changes)}"
        raise BadParameter("method", now["method_name"], problem, "resume with the same, or use another directory")
    for name in SAME:
        if now[name] != then[name]:
            fix = f"resume with {then[name]!r}, or start a run in another directory"
            raise BadParameter(name, now[name], "is not what the run started with", fix)
    before = then.get("options") or now["options"]  # a run of an earlier version did not write them down
    for name, value in now["options"].items():
        if name in before and value != before[name]:
            same = f"resume with {name}={before[name]!r}"
            if name == "data":
                same = f"resume with the same data ({_rows(before[name])})"
                value = _rows(value)
            raise BadParameter(name, value, "is not what the run started with", f"{same}, or use another directory")


def _changes(now: Any, then: Any, name: str = "") -> list[str]:
    """Name the options of a method's parts that differ, as `asyncsgd.core.parts.describe` describes them."""
    if isinstance(now, dict) and isinstance(then, dict) and now.get("kind") == then.get("kind"):
        keys = [key for key in now | then if (name, key) != ("", "name")]
        return [line for key in keys for line in _changes(now.get(key), then.get(key), f"{name}.{key}".lstrip("."))]
    return [] if now == then else [f"{name} was {_short(then)} and is {_short(now)}"]


def _short(part: Any) -> str:
    """Return a part, or several, as one would write them.

    >>> _short([{"kind": "Clip", "norm": 1.0}]), _short(None), _short([])
    ('Clip(norm=1.0)', 'None', 'none')
    """
    if isinstance(part, list):
        return " and ".join(map(_short, part)) or "none"
    if isinstance(part, dict) and "kind" in part:
        return f"{part['kind']}({', '.join(f'{key}={_short(part[key])}' for key in part if key != 'kind')})"
    return repr(part)


def _rows(data: Any) -> str:
    """Name data as `TorchTask.fixed_options` describes them."""
    if not isinstance(data, list) or not all(isinstance(rows, int) for rows in data):
        return str(data)
    return f"{sum(data):,} rows" + (f" of {len(data)} workers" if len(data) > 1 else "")


def check_more(path: Path, iterations: int, epochs: int | None = None) -> None:
    """Refuse to resume to fewer iterations than a run already has, or to fewer epochs than it was started with."""
    before = read_config(path).get("epochs")
    if epochs is not None and isinstance(before, int) and epochs < before:
        fix = f"pass epochs >= {before}"
        raise BadParameter("epochs", epochs, f"is too few: {path} was started with {before}", fix)
    for newest in checkpoints.listed(path / "checkpoints")[:1]:
        reached = int(newest.stem)
        if epochs is None and iterations < reached:
            raise BadParameter("iterations", iterations, f"is too few: {path} has {reached} already", "pass more")


def read(path: Path) -> dict[str, Any]:
    """Return run.json, checked to hold everything that a resume or a replay needs."""
    config = read_config(path)
    check_listed(path, but=("checkpoints/", *JOB))
    for name, kind in REMEMBERED.items():
        if not isinstance(config.get(name), kind):
            problem = f"{path / 'run.json'} is damaged (no {name}, or a wrong one)"
            raise BadRunDirectory(f"{problem}; restore it from a backup")
    return config


def journal(path: Path) -> list[dict[str, Any]]:
    """Return the lines of journal.jsonl."""
    return read_lines(path, "journal.jsonl")
