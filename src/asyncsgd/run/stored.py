"""Store the task and the method of a run, so that its directory alone can be replayed or resumed.

run.json names the task if it can be imported (``module:name``), and describes the method under ``parts`` if all its
parts are asyncsgd's own. Neither needs a pickle. Anything else goes into job.pkl. Reading a pickle can run any code, so
a pickle that belongs to another user is read only if the caller passes ``trust=True``.

A task may have ``without_parameters()`` and ``with_parameters(x)``. Then job.pkl holds the task without the values of
its initial model, and initial.safetensors holds them: a large model is stored once beside its checkpoints, not twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from pathlib import Path
from typing import Any, cast

from asyncsgd.core.errors import BadParameter, BadRunDirectory, Damage, NotTrusted
from asyncsgd.core.method import Method
from asyncsgd.core.parts import describe, made
from asyncsgd.core.vectors import Vector
from asyncsgd.run.directory import INITIAL
from asyncsgd.run.read import read_config
from asyncsgd.tasks.base import Task
from asyncsgd.trace.arrays import read_arrays

CHECKED = b"sha256 of the above: "
"""Separates a pickle from its checksum in job.pkl."""
GIVEN = "pass the task and the method to replay, or to train with resume=True"
"""The fix for a task or a method that cannot be read."""


def package(task: Task, method: Method) -> tuple[dict[str, Any], bytes | None]:
    """Return the ``job`` entry of run.json, and a pickle of what it cannot hold; None if it holds everything.

    ``method`` is "parts" if `made` can make the method from the ``parts`` of run.json, else None.

    >>> from asyncsgd import async_sgd
    >>> from asyncsgd.testing.bench import Bowl
    >>> entry, pickled = package(Bowl(), async_sgd(0.1))
    >>> entry, pickled is None
    ({'task': None, 'method': 'parts'}, False)
    """
    from asyncsgd.run.lookup import name_of  # here, because lookup imports every method and engine

    entry = {"task": name_of(task), "method": "parts" if _can_be_made(method) else None}
    if None not in entry.values():
        return entry, None
    import cloudpickle

    stored: Any = task if entry["task"] is None else None
    without = getattr(stored, "without_parameters", None)
    if without is not None and (empty := without()) is not None:
        stored, entry["parameters"] = empty, INITIAL
    rest = (stored, method if entry["method"] is None else None)
    data: bytes = cloudpickle.dumps(rest)
    return entry, data + CHECKED + hashlib.sha256(data).digest()


def needs_initial(entry: dict[str, Any]) -> bool:
    """Return whether the initial model is stored in a file of its own."""
    return entry.get("task") is not None or entry.get("parameters") is not None


def unpackage(path: Path, *, trust: bool = False) -> tuple[Task, Method]:
    """Return the task and the method of a directory; ``trust`` allows reading another user's pickle."""
    from asyncsgd.run.lookup import named_task

    config = read_config(path)
    entry = config.get("job") or {}
    task: Any = None
    method: Any = None
    if entry.get("task") is None or entry.get("method") is None:
        task, method = _unpickled(path, trust)
        if entry.get("parameters") is not None:
            task = cast(Any, task).with_parameters(_initial(path))
    if entry.get("method") is not None:
        try:
            method = made(config.get("parts") or {})
        except BadParameter as error:
            raise BadRunDirectory(f"the method of {path} cannot be made from run.json ({error}); {GIVEN}") from error
    if entry.get("task") is not None:
        try:
            task = named_task(entry["task"])
        except BadParameter as error:
            problem = f"the task {entry['task']!r} of {path} cannot be loaded here ({error.problem}); {error.fix}"
            raise BadRunDirectory(f"{problem}, or {GIVEN}") from error
        task = cast(Task, _StartingAt(task, _initial(path)))
    return task, method


def _initial(path: Path) -> Vector:
    try:
        return read_arrays(path / INITIAL)[0]["x"]
    except (Damage, KeyError) as error:
        raise BadRunDirectory(f"{path / INITIAL} {error}; restore it from a backup, or {GIVEN}") from error


class _StartingAt:
    """A task whose initial model is that of a run."""

    def __init__(self, task: Task, x: Vector) -> None:
        self._task, self._x = task, x

    def initial(self) -> Vector:
        """Return the model that the run started from."""
        return self._x.copy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_task", "_x"):  # unpickling asks for names before _task is set
            raise AttributeError(name)
        return getattr(self._task, name)


def _unpickled(path: Path, trust: bool) -> tuple[Task | None, Method | None]:
    try:
        with (path / "job.pkl").open("rb") as file:
            owners = {os.fstat(file.fileno()).st_uid, path.stat().st_uid}
            data = file.read()
    except FileNotFoundError as error:
        raise BadRunDirectory(f"{path} has no job.pkl; {GIVEN}") from error
    if not trust and hasattr(os, "getuid") and owners != {os.getuid()}:
        why = "it is a pickle, which can run any code when it is read"
        fix = f"if you trust that user, pass trust=True, else {GIVEN}"
        raise NotTrusted(f"{path / 'job.pkl'} belongs to another user, and {why}; {fix}")
    # Check first: a damaged pickle can make objects without attributes, or arrays that crash NumPy.
    pickled, mark, checksum = data.rpartition(CHECKED)
    if not mark or hashlib.sha256(pickled).digest() != checksum:
        problem = f"{path / 'job.pkl'} is damaged (it does not match its checksum); restore it from a backup"
        raise BadRunDirectory(f"{problem}, or {GIVEN}")
    try:
        task, method = pickle.loads(pickled)
    except (ImportError, AttributeError) as error:
        problem = f"the task of {path} cannot be loaded here ({error}); run this where its modules can be imported"
        raise BadRunDirectory(f"{problem}, or {GIVEN}") from error
    except Exception as error:  # the classes in it may have changed since
        problem = f"{path / 'job.pkl'} cannot be loaded ({type(error).__name__}: {error})"
        raise BadRunDirectory(f"{problem}; {GIVEN}") from error
    return task, method


def _can_be_made(method: Method) -> bool:
    """Return whether the parts in run.json make an equal method again."""
    try:
        again = made(json.loads(json.dumps(describe(method))))
        return again == method and repr(again) == repr(method)
    except Exception:  # a user's part may raise anything
        return False
