"""Every public function says what its arguments mean, and shows an example that runs (`make check` runs them)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import asyncsgd as asgd
from asyncsgd.core.errors import MissingLibrary

ROOT = Path(__file__).parents[2]
ROOMS = (asgd.core, asgd.pages, asgd.planning, asgd.run, asgd.simulation)
"""Packages that users may enter besides those in ``asgd.__all__``."""
VALUES = {"AsyncStrategy", "Checkpoints", "Limits", "Clients", "Privacy"}
"""Classes whose objects users pass as options."""

WITHOUT_EXAMPLE = {
    "asyncsgd.callbacks.mlflow": "needs an extra, and writes into a store; tests/loggers runs it",
    "asyncsgd.callbacks.tensorboard": "needs an extra, and writes into a folder; tests/loggers runs it",
    "asyncsgd.callbacks.wandb": "needs an extra, and writes into a folder; tests/loggers runs it",
}


def public() -> Iterator[tuple[str, Any]]:
    """Every public function, and the classes that users call like one, with the name that users write."""
    modules = [getattr(asgd, name) for name in asgd.__all__]
    names = {module: f"asyncsgd.{name}" for name, module in zip(asgd.__all__, modules, strict=True)}
    for module in (asgd, *(found for found in modules if isinstance(found, ModuleType)), *ROOMS):
        for name in getattr(module, "__all__", ()):
            try:
                found = getattr(module, name)
            except MissingLibrary:  # a class that is derived from one of an extra
                continue
            part = inspect.isclass(found) and (name.islower() or name in VALUES)
            if inspect.isfunction(found) or part:
                yield f"{names.get(module, module.__name__)}.{name}", found


def undocumented(found: Any) -> list[str]:
    """Parameters without a line in ``Args`` (or, for a field of a value, a mention in the text or a docstring)."""
    text = inspect.getdoc(found) or ""
    if inspect.isfunction(found):
        wanted = [name for name in inspect.signature(found).parameters if name != "self"]
        return [name for name in wanted if not re.search(rf"^ +\*{{0,2}}{name}: \S", text, re.MULTILINE)]
    if not is_dataclass(found):
        return []
    source = inspect.getsource(found)
    return [
        name
        for name in (field.name for field in fields(found) if field.name in found.__annotations__)  # not of its base
        if not re.search(rf"\b{name}\b", text) and not re.search(rf'^    {name}: .*\n    """', source, re.MULTILINE)
    ]


def symbols(found: Any) -> list[str]:
    """Arguments that the docstring describes by one word, such as ``smoothness: L.``."""
    return re.findall(r"^ +(\w+): \S+$", inspect.getdoc(found) or "", re.MULTILINE)


PUBLIC = dict(public())


def classes() -> Iterator[tuple[str, Any]]:
    """Every public class, with the name that users write; exceptions aside, which users only catch."""
    modules = [getattr(asgd, name) for name in asgd.__all__]
    seen = set()
    for module in (asgd, *(found for found in modules if isinstance(found, ModuleType)), *ROOMS):
        for name in getattr(module, "__all__", ()):
            found = getattr(module, name)
            if inspect.isclass(found) and not issubclass(found, BaseException) and found not in seen:
                seen.add(found)
                yield f"{module.__name__}.{name}", found


CLASSES = dict(classes())
UNSHOWN = {"asyncsgd.flower.KeptUpdates": "has the methods of a task, which docs/howto/task.md shows"}


def own_methods(found: Any) -> list[Any]:
    """The public methods that a class itself defines."""
    return [one for name, one in vars(found).items() if inspect.isfunction(one) and not name.startswith("_")]


def test_there_are_as_many_as_we_think() -> None:
    """The walk finds functions of every room, so that an empty walk does not pass."""
    assert {"asyncsgd.train", "asyncsgd.theory.theorem1", "asyncsgd.steps.constant"} <= PUBLIC.keys()
    assert len(PUBLIC) > 100
    assert PUBLIC.keys() >= WITHOUT_EXAMPLE.keys()


@pytest.mark.parametrize("name", PUBLIC)
def test_a_docstring_is_complete(name: str) -> None:
    found = PUBLIC[name]
    assert (found.__doc__ or "").strip(), f"{name} has no docstring"
    assert not undocumented(found), f"the docstring of {name} lacks a line for {undocumented(found)} in Args"
    assert not symbols(found), f"{symbols(found)} of {name} are described by a symbol: say in words what they are"
    if inspect.isfunction(found) and name not in WITHOUT_EXAMPLE:
        assert ">>>" in found.__doc__, f"the docstring of {name} has no example that runs"


WITHOUT_PAGE = {
    "asyncsgd.methods.table": "lists the recipes, each of which names its page",
    "asyncsgd.flower.Clients": "an option of AsyncStrategy, which names its page",
    "asyncsgd.flower.Privacy": "an option of AsyncStrategy, which names its page",
}


def pages(name: str, found: Any) -> list[str]:
    """The pages of the documentation that the docstring names; for a part of a method, those of its public module."""
    text = inspect.getdoc(found) or ""
    module = name.split(".")[1]
    if inspect.isclass(found) and module in ("steps", "dispatch", "aggregation"):
        text += getattr(asgd, module).__doc__ or ""
    return re.findall(r"\bdocs/[\w/-]+\.md\b", text)


@pytest.mark.parametrize("name", [name for name in PUBLIC if name not in WITHOUT_PAGE])
def test_a_docstring_says_where_to_read_more(name: str) -> None:
    named = pages(name, PUBLIC[name])
    assert named, f"the docstring of {name} names no page of the documentation: add 'See docs/theory.md for ...'"
    assert all((ROOT / page).exists() for page in named), named


@pytest.mark.parametrize("name", [name for name, found in CLASSES.items() if own_methods(found)])
def test_a_class_shows_how_its_methods_are_used(name: str) -> None:
    """By an example of the class or of each method, or by a page, as for classes that users derive their own from."""
    found = CLASSES[name]
    shown = ">>>" in (found.__doc__ or "") or all(">>>" in (one.__doc__ or "") for one in own_methods(found))
    if not shown and name not in UNSHOWN:
        named = pages(name, found)
        assert named, f"{name} shows none of its methods: add an example, or 'See docs/... for ...'"
        assert all((ROOT / page).exists() for page in named), named


def callables() -> Iterator[tuple[str, Any]]:
    """Every public function, and every public method of every public class, the constructor included."""
    for name, found in PUBLIC.items():
        if inspect.isfunction(found):
            yield name, found
    for name, found in CLASSES.items():
        for method, function in vars(found).items():
            if inspect.isfunction(function) and (not method.startswith("_") or method == "__init__"):
                yield f"{name}.{method}", function


WRITERS = ("write", "report")
"""First words of functions that write a file."""


@pytest.mark.parametrize(("name", "function"), list(callables()))
def test_arguments_keep_to_the_rules_of_the_interface(name: str, function: Any) -> None:
    """``every`` counts iterations, ``progress`` is a bool, and what writes to a path is called write."""
    parameters = inspect.signature(function).parameters
    if "every" in parameters:
        assert "float" not in str(parameters["every"].annotation), f"{name}: every counts iterations; seconds=..."
    if "progress" in parameters:
        assert parameters["progress"].annotation in (bool, "bool"), f"{name}: progress is True or False"
    returned = str(inspect.signature(function).return_annotation)
    short = name.rpartition(".")[2]
    if "path" in parameters and returned in ("None", "Path") and not short.startswith(("on_", "__")):
        assert short.startswith(WRITERS), f"{name} writes a file: call it write_..."


def test_a_gap_is_found() -> None:
    def good(steps: int) -> int:
        """Return it.

        Args:
            steps: The number of steps.
        """
        return steps

    def bad(steps: int, more: int) -> int:
        """Return it.

        Args:
            more: M.
        """
        return steps + more

    assert undocumented(good) == []
    assert undocumented(bad) == ["steps"]
    assert (symbols(good), symbols(bad)) == ([], ["more"])
