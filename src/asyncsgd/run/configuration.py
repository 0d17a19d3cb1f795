"""What a run was asked to do: checked, described for run.json, and packed so that it can be replayed."""

from __future__ import annotations

import platform
import re
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.fit import check_model
from asyncsgd.core.method import Method
from asyncsgd.engines.base import Engine
from asyncsgd.run.directory import BadRunDirectory, read_config, read_lines
from asyncsgd.simulation.single import check_parts
from asyncsgd.tasks.base import Task, is_heterogeneous

LIBRARIES = ("asyncsgd", "numpy", "torch", "ray", "flwr")
SAME = ("method", "seed", "dimension", "dtype")
"""What may not change when a run is resumed."""


def check(task: Task, method: Method, engine: Engine, iterations: int, seed: int) -> None:
    """Refuse what cannot work, before anything is started."""
    check_parts(task, method, seed)
    if not isinstance(engine, Engine):
        raise BadParameter("engine", engine, f"is a {type(engine).__name__}", "pass asgd.engines.processes(workers=4)")
    check_model(task.initial())
    expected = getattr(task, "workers", None)
    if expected is not None and engine.workers > expected and is_heterogeneous(task):
        fix = f"start {expected} workers, or make the task with workers={engine.workers}"
        raise BadParameter("workers", engine.workers, f"are more than the task has data for ({expected})", fix)
    method.check(workers=engine.workers, iterations=iterations, heterogeneous=is_heterogeneous(task))


def describe(task: Task, method: Method, engine: Engine, iterations: int, seed: int) -> dict[str, Any]:
    """Words and numbers for run.json."""
    x = task.initial()
    return {
        "task": getattr(task, "name", type(task).__name__),
        "method": re.sub(r" at 0x[0-9a-f]+", "", repr(method)),  # where a function lies differs from process to process
        "method_name": method.name,
        "iterations": iterations,
        "seed": seed,
        "dimension": int(x.shape[0]),
        "dtype": x.dtype.name,
        "engine": engine.describe(),
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
    """Refuse to go on with another method, model or seed: the trace would be of no single run."""
    for name in SAME:
        if now[name] != then[name]:
            fix = f"resume with {then[name]!r}, or begin a run in another directory"
            raise BadParameter(name, now[name], "is not what the run began with", fix)


def package(task: Task, method: Method) -> bytes:
    """The task and the method, for `replay` on this machine."""
    import cloudpickle

    data: bytes = cloudpickle.dumps((task, method))
    return data


def unpackage(path: Path) -> tuple[Task, Method]:
    """Read them back. Only directories that this user's own runs wrote may be given: pickles can run any code."""
    import pickle

    try:
        with (path / "job.pkl").open("rb") as file:
            task, method = pickle.load(file)
    except FileNotFoundError as error:
        raise BadRunDirectory(f"{path} has no job.pkl; pass the task and the method to replay") from error
    except (ImportError, AttributeError) as error:
        raise BadRunDirectory(
            f"the task of {path} cannot be loaded here ({error}); run this where its modules can be imported, or pass "
            "the task and the method to replay"
        ) from error
    return task, method


read = read_config


def journal(path: Path) -> list[dict[str, Any]]:
    """The lines of journal.jsonl."""
    return read_lines(path, "journal.jsonl")
