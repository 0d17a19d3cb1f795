"""What ``dir(asyncsgd)`` shows, and that every dotted name that we mention is there."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import asyncsgd as asgd

ROOT = Path(__file__).parents[1]
DOTTED = re.compile(r"\b(?:asyncsgd|asgd)(?:\.[A-Za-z_]\w*)+")
MODULES = {"core", "pages", "planning", "run", "simulation"}
"""Rooms that users may enter besides those in ``__all__``."""

MISTYPED = "asyncsgd.run.Listner"

REACH = """
import contextlib, os, sys
from itertools import groupby
import asyncsgd

with contextlib.suppress(ModuleNotFoundError):
    import numba  # the only heavy library that a name loads: once, and not in every child

# Names with the same first attribute share a child, which has loaded only what this attribute loads.
for _, names in groupby(sys.argv[1:], key=lambda name: name.split(".")[1]):
    child = os.fork()
    if child == 0:
        for name in names:
            found = asyncsgd
            for part in name.split(".")[1:]:
                found = getattr(found, part, None)
                if found is None:
                    print(name, flush=True)
                    break
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        print(*names, "ended the process", flush=True)
"""


def pages() -> Iterator[tuple[str, str]]:
    """Every dotted name of the documentation, and where it stands."""
    for path in (*ROOT.glob("*.md"), *(file for top in ("docs", "examples") for file in (ROOT / top).rglob("*.md"))):
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
            for name in DOTTED.findall(line):
                yield name, f"{path.relative_to(ROOT)}:{number}"


def sources() -> Iterator[tuple[str, str]]:
    """Every dotted name in a docstring, an error or any other text of the source, and where it stands."""
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                for name in DOTTED.findall(node.value):
                    yield name, f"{path.relative_to(ROOT)}:{node.lineno}"


@pytest.fixture(scope="module")  # tests/markers.py runs the tests that use it in one process
def unreachable() -> set[str]:
    """Those of all names, and of one more, that attributes do not lead to after ``import asyncsgd`` alone."""
    names = sorted({MISTYPED, *dict(pages()), *dict(sources())}, key=lambda name: name.split(".")[1:])
    done = subprocess.run([sys.executable, "-c", REACH, *names], capture_output=True, encoding="utf-8", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.splitlines())


def is_module(name: str) -> bool:
    """Whether it names one of our modules, or something in one, that is imported by its path."""
    path, parts = "asyncsgd", name.split(".")[1:]
    while parts:
        module = importlib.import_module(path)
        if hasattr(module, "__path__") and importlib.util.find_spec(f"{path}.{parts[0]}") is not None:
            path, parts = f"{path}.{parts[0]}", parts[1:]
        else:
            return all(hasattr(module, part) and (module := getattr(module, part)) is not None for part in parts)
    return True


@pytest.mark.slow
def test_dir_shows_the_public_names_only() -> None:
    script = "import asyncsgd as a; a.train, a.simulate, a.plan, a.flower; print(*dir(a), sep='\\n')"
    shown = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", cwd=ROOT)
    assert shown.stdout.split() == sorted({*asgd.__all__, *MODULES, "__version__"}), shown.stderr


@pytest.mark.slow
def test_the_pages_mention_names_that_attributes_lead_to(unreachable: set[str]) -> None:
    found = dict(pages())
    assert len(found) > 50
    lost = unreachable & set(found)
    assert not lost, {name: found[name] for name in lost}


@pytest.mark.slow
def test_the_source_mentions_names_that_there_are(unreachable: set[str]) -> None:
    """Those of our own rooms need only be there; what a user is told about must be reachable as it is written."""
    found = dict(sources())
    assert "asyncsgd.Callback" in found.keys() - unreachable
    lost = {name for name in unreachable & set(found) if not (name.startswith("asyncsgd.") and is_module(name))}
    assert not lost, {name: found[name] for name in lost}


@pytest.mark.slow
def test_a_name_that_is_not_there_is_found(unreachable: set[str]) -> None:
    assert MISTYPED in unreachable
    assert not is_module("asyncsgd.run.callbcks.Control")
    assert is_module("asyncsgd.engines._processes.fork_server")


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    citation = (ROOT / "CITATION.cff").read_text("utf-8")
    assert project["version"] == asgd.__version__
    assert f"\nversion: {asgd.__version__}\n" in citation
    assert f"\nlicense: {project['license']}\n" in citation
