"""How the task and the method of a run are kept, so that a directory alone can be replayed or resumed.

run.json names the task if it has a name (``module:name``), and spells out the method if all its parts are asyncsgd's
own. Neither needs a pickle. What cannot be said in words goes into job.pkl. A pickle can run any code when it is read,
so that of another user is read only if the caller says that it is to be trusted.
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, cast

from asyncsgd.core.errors import BadParameter, BadRunDirectory, Damage, NotTrusted
from asyncsgd.core.method import Method
from asyncsgd.core.vectors import Vector
from asyncsgd.run.directory import INITIAL
from asyncsgd.run.read import read_config
from asyncsgd.tasks.base import Task
from asyncsgd.trace.arrays import read_arrays

OURS = "asyncsgd.core."
"""Where the classes come from that run.json may name."""
CHECKED = b"sha256 of the above: "
"""Stands between a pickle and its checksum."""
GIVEN = "pass the task and the method to replay, or to train with resume=True"
"""What to do where they cannot be read."""


def package(task: Task, method: Method) -> tuple[dict[str, Any], bytes | None]:
    """Return what run.json says of the two, and a pickle of what it cannot say; None if it says everything.

    >>> from asyncsgd import async_sgd
    >>> from asyncsgd.testing.bench import Bowl
    >>> said, pickled = package(Bowl(), async_sgd(0.1))
    >>> said["task"], said["method"]["fields"]["step"]["part"], pickled is None
    (None, 'asyncsgd.core.steps:Constant', False)
    """
    from asyncsgd.run.lookup import name_of  # later, as it knows every method and engine

    said = {"task": name_of(task), "method": _spelled(method)}
    if None not in said.values():
        return said, None
    import cloudpickle

    rest = (task if said["task"] is None else None, method if said["method"] is None else None)
    data: bytes = cloudpickle.dumps(rest)
    return said, data + CHECKED + hashlib.sha256(data).digest()


def unpackage(path: Path, *, trust: bool = False) -> tuple[Task, Method]:
    """Return the task and the method of a directory; ``trust`` allows reading another user's pickle."""
    from asyncsgd.run.lookup import named_task

    said = read_config(path).get("job") or {}
    task: Any = None
    method: Any = None
    if said.get("task") is None or said.get("method") is None:
        task, method = _unpickled(path, trust)
    if said.get("method") is not None:
        method = unplain(said["method"])
    if said.get("task") is not None:
        try:
            task = named_task(said["task"])
        except BadParameter as error:
            words = f"the task {said['task']!r} of {path} cannot be loaded here ({error.problem}); {error.fix}"
            raise BadRunDirectory(f"{words}, or {GIVEN}") from error
        try:
            task = cast(Task, _Begun(task, read_arrays(path / INITIAL)[0]["x"]))
        except (Damage, KeyError) as error:
            raise BadRunDirectory(f"{path / INITIAL} {error}; restore it from a backup, or {GIVEN}") from error
    return task, method


class _Begun:
    """A task that begins at the model of a run."""

    def __init__(self, task: Task, x: Vector) -> None:
        self._task, self._x = task, x

    def initial(self) -> Vector:
        """Where the run began."""
        return self._x.copy()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name in ("_task", "_x"):  # while it is being unpickled there is no task yet
            raise AttributeError(name)
        return getattr(self._task, name)


# ------------------------------------------------------------------------------------- by pickle


def _unpickled(path: Path, trust: bool) -> tuple[Task | None, Method | None]:
    try:
        with (path / "job.pkl").open("rb") as file:
            owners = {os.fstat(file.fileno()).st_uid, path.stat().st_uid}
            data = file.read()
    except FileNotFoundError as error:
        raise BadRunDirectory(f"{path} has no job.pkl; {GIVEN}") from error
    if not trust and hasattr(os, "getuid") and owners != {os.getuid()}:
        why = "it is a pickle, which can run any code when it is read"
        fix = "if you trust that user, pass trust=True (--trust on the command line); if not, pass task and method"
        raise NotTrusted(f"{path / 'job.pkl'} belongs to another user, and {why}; {fix}")
    # First: what a damaged pickle makes may have lost its attributes, or be an array that NumPy breaks down on.
    pickled, mark, checksum = data.rpartition(CHECKED)
    if not mark or hashlib.sha256(pickled).digest() != checksum:
        words = f"{path / 'job.pkl'} is damaged (it does not match its checksum); restore it from a backup"
        raise BadRunDirectory(f"{words}, or {GIVEN}")
    try:
        task, method = pickle.loads(pickled)
    except (ImportError, AttributeError) as error:
        words = f"the task of {path} cannot be loaded here ({error}); run this where its modules can be imported"
        raise BadRunDirectory(f"{words}, or {GIVEN}") from error
    except Exception as error:  # the classes in it may have changed since
        words = f"{path / 'job.pkl'} cannot be loaded ({type(error).__name__}: {error})"
        raise BadRunDirectory(f"{words}; {GIVEN}") from error
    return task, method


# ------------------------------------------------------------------------------------- in words


def _spelled(method: Method) -> Any:
    """The method as plain data, or None if it cannot be made again from that."""
    try:
        data = json.loads(json.dumps(plain(method)))
        again = unplain(data)
        return data if again == method and repr(again) == repr(method) else None
    except Exception:  # a part of the user's may raise anything
        return None


def plain(value: Any) -> Any:
    """Return numbers, words and asyncsgd's own frozen parts as plain data; anything else is a TypeError."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) in (tuple, list):
        return {"list": [plain(item) for item in value], "tuple": type(value) is tuple}
    if is_dataclass(value) and type(value).__module__.startswith(OURS):
        parts = {part.name: plain(getattr(value, part.name)) for part in fields(value) if part.init}
        return {"part": f"{type(value).__module__}:{type(value).__qualname__}", "fields": parts}
    raise TypeError(f"{value!r} has no plain form")


def unplain(data: Any) -> Any:
    """Return what `plain` was given. It makes objects of asyncsgd's own parts only, whatever ``data`` says."""
    if not isinstance(data, dict):
        return data
    if "list" in data:
        items = [unplain(item) for item in data["list"]]
        return tuple(items) if data["tuple"] else items
    module, _, name = str(data["part"]).partition(":")
    found = getattr(import_module(module), name, None) if module.startswith(OURS) else None
    if not (isinstance(found, type) and is_dataclass(found) and found.__module__ == module):
        raise BadRunDirectory(f"run.json names {data['part']!r}, which is not a part of a method; {GIVEN}")
    return found(**{str(key): unplain(item) for key, item in data["fields"].items()})
