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


PUBLIC = dict(public())


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
    if inspect.isfunction(found) and name not in WITHOUT_EXAMPLE:
        assert ">>>" in found.__doc__, f"the docstring of {name} has no example that runs"


@pytest.mark.parametrize("name", [name for name in asgd.methods.__all__ if name != "table"])
def test_a_recipe_says_where_to_read_more(name: str) -> None:
    pages = re.findall(r"\bdocs/[\w/-]+\.md\b", inspect.getdoc(getattr(asgd.methods, name)) or "")
    assert pages, f"the docstring of {name} names no page of the documentation: add 'See docs/theory.md for ...'"
    assert all((ROOT / page).exists() for page in pages), pages


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
            more: The number of further steps.
        """
        return steps + more

    assert undocumented(good) == []
    assert undocumented(bad) == ["steps"]
