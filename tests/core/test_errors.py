"""One tree holds every error and warning, and the drawing at its top shows all of them."""

from __future__ import annotations

import ast
import builtins
import pickle
import re
from pathlib import Path

import asyncsgd
from asyncsgd.core import errors

SOURCE = Path(asyncsgd.__file__).parent
TREE = {name: kind for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, BaseException)}
BUILT_IN = {name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)}


def strays(text: str) -> list[str]:
    """Names of the exception classes that a module defines."""
    known, found = BUILT_IN | set(TREE), []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            bases = {ast.unparse(base).rpartition(".")[2] for base in node.bases}
            if bases & known:
                known.add(node.name)
                found.append(node.name)
    return found


def drawn(text: str) -> dict[str, set[str]]:
    """Every name of the drawing, with the names that stand above it and those it says it also is."""
    found: dict[str, set[str]] = {}
    path: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"    (?P<indent>(?:│   |    )*)[├└]── (?P<name>\w+)(?P<rest>.*)", line):
            path = [*path[: len(match["indent"]) // 4 + 1], match["name"]]
            also = re.findall(r"\((?:also )?(\w+)\)", match["rest"])
            found.setdefault(match["name"], set()).update({path[-2], *also} & (BUILT_IN | set(TREE)))
        elif match := re.match(r"    (\w[\w ]*)$", line):
            path = [match[1]]
    return found


def test_no_other_module_defines_an_exception() -> None:
    found = {path: strays(path.read_text(encoding="utf-8")) for path in SOURCE.rglob("*.py")}
    assert [path for path in found if found[path]] == [SOURCE / "core" / "errors.py"]


def test_an_exception_in_another_module_is_found() -> None:
    text = "def f():\n    class Odd(errors.BadTask): ...\n    class Odder(Odd): ...\nclass Fine(Base): ..."
    assert strays(text) == ["Odd", "Odder"]


def test_the_drawing_shows_every_class_below_its_bases() -> None:
    assert errors.__doc__ is not None
    bases = {name: {base.__name__ for base in kind.__bases__} for name, kind in TREE.items()}
    del bases["AsyncSGDError"]  # the root
    assert drawn(errors.__doc__) == bases


def test_every_error_survives_pickling() -> None:
    """They cross the borders of processes."""
    made = {
        "BadParameter": ("stepsize", -1.0, "is bad", "pass another"),
        "MissingLibrary": ("asgd.plot", "Matplotlib", "asyncsgd[plot]"),
        "TargetNotReached": ("no step size reached it", "a sweep"),
        "ReplayDiffers": ("job 3 differs", 3, 7),
    }
    for name, kind in TREE.items():
        error = kind(*made.get(name, ("a message",)))
        copy = pickle.loads(pickle.dumps(error))
        assert (type(copy), str(copy), vars(copy)) == (kind, str(error), vars(error))
