"""Look up what the command line names: a task as ``module:name``, a method by its recipe, an engine by its options."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from asyncsgd import recipes
from asyncsgd.core.errors import AsyncSGDError, BadParameter, UsageError
from asyncsgd.core.method import Method
from asyncsgd.core.validate import nearest
from asyncsgd.engines import Engine, Group, processes, ray
from asyncsgd.tasks.base import Task

OPTIONS = (
    "stepsize",
    "schedule",
    "warmup",
    "total",
    "final",
    "concurrency",
    "clip",
    "noise",
    "momentum",
    "optimizer",
    "local_steps",
    "local_stepsize",
    "local_optimizer",
    "local_state",
    "local_clip",
    "per_worker",
    "compressed",
    "compressed_down",
)
"""The options of a method that have a name on the command line; others go through --set."""
PYTHON = {"True": True, "False": False, "None": None}
"""Python's spelling of values that JSON writes in lower case; as text they would count as true."""
NEEDS = ("num_cpus", "num_gpus", "resources", "threads")
"""Options of a Ray worker; on the command line they apply to all workers."""


def named_task(name: str) -> Task:
    """Return the task that ``module:name`` names, or the one that a function of this name returns.

    Python looks for the module in the current directory first.
    """
    found = _named("task", name)
    if callable(found) and (isinstance(found, type) or not hasattr(found, "update")):
        try:
            inspect.signature(found).bind()
        except (TypeError, ValueError) as error:
            fix = "give its parameters defaults, or name a task instead of a function"
            raise BadParameter("task", name, f"cannot be called without arguments ({error})", fix) from error
        found = _called(name, found)
    if not hasattr(found, "update"):
        fix = "name a task such as asgd.tasks.torch(...), or a function that returns one"
        raise BadParameter("task", name, f"is a {type(found).__name__}", fix)
    task: Task = found
    _NAMES[id(task)] = task, name
    return task


_NAMES: dict[int, tuple[Task, str]] = {}
"""Tasks that were looked up, by identity. Keeping the task prevents another object from getting its identity."""


def name_of(task: Any) -> str | None:
    """Return the ``module:name`` of a task: as passed to `named_task`, or where a module holds it.

    >>> from asyncsgd.testing.bench import Bowl
    >>> name_of(named_task("asyncsgd.testing.bench:Bowl")), name_of(Bowl())
    ('asyncsgd.testing.bench:Bowl', None)
    """
    if id(task) in _NAMES:
        return _NAMES[id(task)][1]
    for module_name, module in sorted(sys.modules.items()):
        if module_name not in ("__main__", "__mp_main__") and getattr(module, "__spec__", None) is not None:
            for name, value in list(vars(module).items()):
                if value is task and not name.startswith("_"):
                    return f"{module_name}:{name}"
    return None


def _called(name: str, function: Callable[[], Any]) -> Any:
    try:
        return function()
    except AsyncSGDError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{frame.filename}, line {frame.lineno}"
        raise UsageError(
            f"{name}: calling it failed with {type(error).__name__}: {error} ({where}); fix that line"
        ) from error


def named_method(name: str, options: Mapping[str, Any]) -> Method:
    """Return the method of this name, or of a ``module:name``, with these options.

    Errors spell options as on the command line.

    >>> named_method("federated_async_sgd", {"stepsize": 0.1, "concurrency": 4}).name
    'federated_async_sgd'
    """
    try:
        if ":" not in name:
            return recipes.make(name, options)
        found = _named("method", name)
        if _makes(found):
            return recipes.make(name, options, found)
        if not isinstance(found, Method):
            fix = "name a method such as asgd.async_sgd(0.1), or a function that returns one"
            raise BadParameter("method", name, f"is a {type(found).__name__}", fix)
        return recipes.adapt(found, options)
    except BadParameter as error:
        raise _as_typed(error, name, options) from error


def _as_typed(error: BadParameter, method: str, options: Mapping[str, Any]) -> BadParameter:
    """Return an error about a method with its options, and their values, as the user typed them."""
    spelling = {known: _option(known) for known in ("method", *OPTIONS, *recipes.COMMON, *_parameters(method))}
    value, fix = options.get(error.name, error.value), error.fix
    if isinstance(value, Mapping):
        value = value.get("kind", error.value)
    if error.problem.startswith("is not an option of"):
        table, dot, _ = error.name.rpartition(".")
        fix = re.sub(r"(?<=did you mean )\w+", lambda found: _option(table + dot + found[0]), fix)
        if fix.startswith("pass one of: "):
            names = fix.removeprefix("pass one of: ").split(", ")
            fix = f"pass one of: {', '.join(_option(table + dot + known) for known in names)}"
    problem, fix = as_options(error.problem, spelling), as_options(fix, spelling)
    return BadParameter(_option(error.name), value, problem, fix)


def _option(name: str) -> str:
    """Return an option of a method as it is typed: ``--clip``, or ``--set buffer``."""
    return f"--{name.replace('_', '-')}" if name == "method" or name in OPTIONS else f"--set {name}"


def _parameters(method: str) -> Iterable[str]:
    """Return the names of a recipe's own options."""
    known = recipes.recipes()
    return inspect.signature(known[method]).parameters if method in known else ()


def settable() -> set[str]:
    """Return the names of the options of methods that go through --set."""
    return {name for method in recipes.recipes() for name in _parameters(method)}.difference(OPTIONS)


def as_options(text: str, spelling: Mapping[str, str]) -> str:
    """Return a text with arguments written as on the command line, where the text names them as arguments.

    A name counts as an argument before ``=`` and its value, in a comparison, after "pass" and "leave", and before
    "needs it". A name with an underscore is always one. Elsewhere "noise" and "steps" are ordinary words.

    >>> as_options("pass every >= 1, or resume=True", {"every": "--every", "resume": "--resume"})
    'pass --every >= 1, or --resume'
    >>> as_options('less noise needs noise=0.1 and rule="drop"', {"noise": "--noise", "rule": "--set rule"})
    'less noise needs --noise 0.1 and --set rule=drop'
    """
    if not spelling:
        return text
    names = "|".join(sorted(map(re.escape, spelling), key=len, reverse=True))
    value = r"""(?:=(\.\.\.|"[^"]*"|'[^']*'|[\w+-]+(?:\.\w+)*))?"""

    def written(found: re.Match[str]) -> str:
        shown, given = spelling[found[1]], found[2]
        before, after = text[: found.start()], text[found.end() :]
        if before.endswith("--set "):
            return found[0]
        if given is None:
            named = re.match(r" (=|[<>]=?) | needs it\b", after) or re.search(r"(\bpass|\bleave|[<>]=?) $", before)
            return shown if named or "_" in found[1] else found[1]
        bare = given if " " in given else given.strip("\"'")
        if given == "..." or (given == "True" and not shown.startswith("--set ")):
            return shown
        return f"{shown}={bare}" if shown.startswith("--set ") else f"{shown} {bare}"

    return re.sub(rf"(?<![\w.'\"(-])({names}){value}(?![\w(])", written, text)


def _makes(found: Any) -> bool:
    """Return whether an object is a recipe to call; other objects may be callable too."""
    try:
        parameters = inspect.signature(found).parameters
    except (TypeError, ValueError):
        return False
    return isinstance(found, type | partial) or inspect.isroutine(found) or "stepsize" in parameters


def method_options(given: Mapping[str, Any], pairs: Iterable[str]) -> dict[str, Any]:
    """Return the options of a method: those with a name (None: left out), and the pairs of ``--set``.

    >>> method_options({"stepsize": 0.1, "clip": None, "optimizer": "adamw"}, ["optimizer.beta1=0.8"])
    {'stepsize': 0.1, 'optimizer': {'kind': 'adamw', 'beta1': 0.8}}
    """
    options = {name: value for name, value in given.items() if value is not None}
    for name, value in settings(pairs).items():
        table, dot, key = name.partition(".")
        if dot:
            inner = options.get(table, {})
            options[table] = {**(inner if isinstance(inner, dict) else {"kind": inner}), key: value}
        elif name in options:
            fix = f"leave out --{name.replace('_', '-')} or --set {name}"
            raise BadParameter(f"--set {name}", value, f"is given twice, the other time as {options[name]!r}", fix)
        else:
            options[name] = value
    return options


def named_engine(described: Mapping[str, Any], changes: Mapping[str, Any]) -> Engine:
    """Return the engine that run.json describes, with changes. A new number of workers resets the artificial delays.

    >>> named_engine({"engine": "processes", "workers": 2, "slowdown": [1, 3]}, {"threads": 1}).describe()["slowdown"]
    (1.0, 3.0)
    """
    options = {key: value for key, value in described.items() if key != "engine"}
    for name in ("slowdown", "min_seconds"):
        options[name] = None if "workers" in changes else options.get(name) or None
    match described.get("engine"):
        case "processes":
            options["threads"] = options.pop("threads_each", None)
            options["devices"] = options.get("devices") or None
            return processes(**_known(processes, {**options, **changes}, "--engine ray"))
        case "ray":
            return _on_ray(options, dict(changes))
    if "workers" not in changes:
        fix = "resume in Python with resume=True, or pass --workers to resume with worker processes"
        raise UsageError(f"engine {described.get('engine')!r} cannot be started from the command line; {fix}")
    return processes(**_known(processes, dict(changes), "--engine ray"))


def _on_ray(options: dict[str, Any], changes: dict[str, Any]) -> Engine:
    """Return a Ray engine with the groups of before, changed by the options that apply to all workers."""
    groups = [Group(**group) for group in options.pop("groups", [])] or [Group(options["workers"])]
    needs = {name: changes.pop(name) for name in NEEDS if name in changes}
    workers = changes.pop("workers", None)
    if workers is not None:
        if len(groups) > 1 and not needs:
            fix = (
                "also pass what each worker needs (--num-cpus, --num-gpus, --resource), or resume in Python with groups"
            )
            raise BadParameter("--workers", workers, f"is ambiguous: the run has {len(groups)} groups of workers", fix)
        groups = [replace(groups[0] if len(groups) == 1 else Group(1), workers=workers)]
    options["workers"] = [replace(group, **needs) for group in groups]
    if "at_least" in options:
        options["at_least"] = min(options["at_least"], sum(group.workers for group in groups))
    options |= changes
    directory = options.pop("working_dir", None)
    if directory is not None:
        if not os.path.isdir(directory):
            raise BadParameter(
                "--working-dir", directory, "is not a directory", "pass the folder that holds your modules"
            )
        options["runtime_env"] = {"working_dir": os.path.abspath(directory)}
    return ray(**_known(ray, options, "--engine processes"))


def _known(recipe: Callable[..., Engine], options: dict[str, Any], other: str) -> dict[str, Any]:
    """Return the options if the engine takes all of them; else refuse the first unknown one."""
    for name, value in options.items():
        if name not in inspect.signature(recipe).parameters:
            raise BadParameter(f"--{name.replace('_', '-')}", value, "is an option of another engine", f"pass {other}")
    return options


def settings(
    pairs: Iterable[str], option: str = "--set", example: str = "name=value, for instance concurrency=4"
) -> dict[str, Any]:
    """Return options written as ``name=value``. A value is read as JSON or as a Python constant, else as text.

    >>> settings(["concurrency=4", "weights=linear", "early=False"])
    {'concurrency': 4, 'weights': 'linear', 'early': False}
    """
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not all(part.isidentifier() for part in name.split(".")):
            raise BadParameter(option, pair, "is not a setting", f"write {example}")
        try:
            found[name] = PYTHON[text] if text in PYTHON else json.loads(text)
        except ValueError:
            found[name] = text
    return found


def numbers(name: str, text: str | None) -> list[float] | None:
    """Return numbers that are separated by commas.

    >>> numbers("slowdown", "1,1,10")
    [1.0, 1.0, 10.0]
    """
    if text is None:
        return None
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise BadParameter(name, text, "is not a list of numbers", "write one per worker: 1,1,1,10") from error


def fresh_directory(name: str) -> Path:
    """Return ``runs/name-1``, or the next number that is free."""
    base = name.rpartition(":")[2] or "run"
    number = 1
    while (path := Path("runs") / f"{base}-{number}").exists():
        number += 1
    return path


def look_here() -> None:
    """Let Python find modules in the current directory, as it does for a script."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def _named(what: str, name: str) -> Any:
    module_name, colon, attribute = name.partition(":")
    if not colon or not attribute or not module_name or module_name.startswith("."):
        problem = f"is missing the {what} name" if not colon else "is not a module and a name"
        raise BadParameter(what, name, problem, f"write module:{what}, e.g. examples.digits:task")
    look_here()
    if module_name.endswith(".py"):
        fix = f"name the module: {module_name.removesuffix('.py').replace(os.sep, '.')}:{attribute}"
        raise BadParameter(what, name, "names a file", fix)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name is None or not (module_name == error.name or module_name.startswith(f"{error.name}.")):
            raise UsageError(f"{name}: importing {module_name} failed: {error}; install the missing module") from error
        fix = f"run this where {module_name.replace('.', '/')}.py is, or install the package"
        raise BadParameter(what, name, f"cannot be found (no module {error.name!r})", fix) from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            public = [other for other in dir(found) if not other.startswith("_")]
            fix = nearest(part, public) if public else "check the spelling"
            raise BadParameter(what, name, f"cannot be found ({module_name} has no {part!r})", fix)
        found = getattr(found, part)
    return found
