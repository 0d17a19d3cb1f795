"""What a command line names: a task as ``module:name``, a method by its recipe, an engine by what run.json says."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from asyncsgd import methods
from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.core.method import Method
from asyncsgd.engines import Engine, processes
from asyncsgd.tasks.base import Task


def named_task(name: str) -> Task:
    """The task that ``module:name`` names, or what the function of that name returns.

    Modules are looked for in the current directory first.
    """
    found = _named("task", name)
    if callable(found) and not hasattr(found, "update"):
        found = found()
    if not hasattr(found, "update"):
        fix = "let it be a task such as asgd.tasks.torch(...), or a function that returns one"
        raise BadParameter("task", name, f"is a {type(found).__name__}", fix)
    task: Task = found
    return task


def named_method(name: str, options: Mapping[str, Any]) -> Method:
    """The recipe of this name called with these options, or ``module:name`` of your own.

    >>> named_method("federated_async_sgd", {"stepsize": 0.1, "concurrency": 4}).name
    'federated_async_sgd'
    """
    if ":" in name:
        found = _named("method", name)
        made = found(**options) if callable(found) else found
    else:
        recipes = {key: value for key, value in vars(methods).items() if _is_recipe(key, value)}
        if name not in recipes:
            raise BadParameter("method", name, "is no recipe", f"pass one of: {', '.join(sorted(recipes))}")
        try:
            inspect.signature(recipes[name]).bind(**options)
        except TypeError as error:
            takes = ", ".join(inspect.signature(recipes[name]).parameters)
            fix = f"{name} takes: {takes}; set them with --set name=value"
            raise BadParameter("method", name, f"cannot be made ({error})", fix) from error
        made = recipes[name](**options)
    if not isinstance(made, Method):
        raise BadParameter("method", name, f"is a {type(made).__name__}", "let it be a method, or return one")
    return made


def named_engine(described: Mapping[str, Any]) -> Engine:
    """The engine that run.json describes."""
    options = {key: value for key, value in described.items() if key != "engine"}
    if described.get("engine") != "processes":
        raise UsageError(f"engine {described.get('engine')!r} is unknown to this version; pass --workers anew")
    threads = options.pop("threads_each", None)
    lists: dict[str, Any] = {key: options.pop(key, None) or None for key in ("slowdown", "seconds")}
    return processes(**options, **lists, threads=threads)


def settings(pairs: Iterable[str]) -> dict[str, Any]:
    """Options given as ``name=value``; a value is read as JSON where it is some.

    >>> settings(["concurrency=4", "weights=linear"])
    {'concurrency': 4, 'weights': 'linear'}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name.isidentifier():
            raise BadParameter("--set", pair, "is no setting", "write name=value, for instance concurrency=4")
        try:
            found[name] = json.loads(text)
        except ValueError:
            found[name] = text
    return found


def numbers(name: str, text: str | None) -> list[float] | None:
    """Numbers with commas between them.

    >>> numbers("slowdown", "1,1,10")
    [1.0, 1.0, 10.0]
    """
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise BadParameter(name, text, "is no list of numbers", "write one per worker: 1,1,1,10") from error


def fresh_directory(name: str) -> Path:
    """``runs/name-1``, or the next number that is free."""
    base = name.rpartition(":")[2] or "run"
    number = 1
    while (path := Path("runs") / f"{base}-{number}").exists():
        number += 1
    return path


def _is_recipe(name: str, value: Any) -> bool:
    if name.startswith("_") or not inspect.isfunction(value) or value.__module__ != methods.__name__:
        return False
    return "stepsize" in inspect.signature(value).parameters


def _named(what: str, name: str) -> Any:
    module_name, colon, attribute = name.partition(":")
    if not colon or not module_name or not attribute:
        raise BadParameter(what, name, "names nothing", f"write module:{what}, as in examples.digits:task")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(f"{name}: importing {module_name} failed: {error}; install what it needs") from error
        fix = f"run this where {module_name.replace('.', '/')}.py is, or install the package"
        raise BadParameter(what, name, f"cannot be found (no module {error.name!r})", fix) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise BadParameter(what, name, f"cannot be found ({module_name} has no {part!r})", "check the spelling")
        found = getattr(found, part)
    return found
