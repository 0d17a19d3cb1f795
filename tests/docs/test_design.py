"""docs/design.md: its table of rooms is the import contract, and every file and function that it names exists."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import asyncsgd as asgd

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "asyncsgd"
TEXT = (ROOT / "docs" / "design.md").read_text("utf-8")
PLACES = sorted(set(re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", TEXT)))
WALK, HELPERS = (
    set(re.findall(r"`([\w/]+\.py)`", part))
    for part in TEXT.split("**One update of a real run**")[1]
    .split("**One simulated iteration**")[0]
    .split("These are the 15 files that decide about an update.")
)
WORKERS = {"engines/_processes/worker.py", "engines/job.py"}
"""Files of the walk that run in the worker."""
IF_ANY = {"core/aggregation.py", "core/optimizers.py"}
"""Files of the walk that run if the method has such a part."""
VALUES = {"core/events.py"}
"""Files of the walk with values only: they have no function that a profile could show."""


def contract() -> dict[str, int]:
    """The level of every room by the import contract, the lowest first."""
    tables = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]["contracts"]
    (layers,) = [table["layers"] for table in tables if table["id"] == "layers"]
    rooms = [re.split(r" [|:] ", layer) for layer in reversed(layers)]
    return {room: level for level, siblings in enumerate(rooms) for room in siblings}


def test_the_table_of_rooms_is_the_import_contract() -> None:
    rows = re.findall(r"^\| (-?\d+) \| (.+?) \| .+ \|$", TEXT, re.MULTILINE)
    table = {room: int(level) for level, rooms in rows for room in re.findall(r"`(\w+)`", rooms)}
    lowest = min(table.values())
    wanted = {room: level for room, level in contract().items() if room != "__main__"}
    assert {room: level - lowest for room, level in table.items()} == wanted


def test_every_room_exists() -> None:
    here = {path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()}
    assert here - {"__init__"} == set(contract())


@pytest.mark.parametrize(("file", "name"), PLACES)
def test_a_named_function_exists(file: str, name: str) -> None:
    body: list[ast.stmt] = ast.parse((SOURCE / file).read_text("utf-8")).body
    for part in name.split("."):
        found = [node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef) and node.name == part]
        assert found, f"{file} has no {name}"
        body = found[0].body


def test_one_update_is_decided_in_few_files() -> None:
    assert len(WALK) == 15
    assert not WALK & HELPERS


class Profile(asgd.Callback):
    """Which files of the package each of some updates runs through, in the thread of the server."""

    first, last = 50, 80

    def __init__(self) -> None:
        self.iteration = 0
        self.seen: dict[str, set[int]] = defaultdict(set)

    def on_update(self, view: Any, control: Any) -> None:
        self.iteration = view.iteration
        if view.iteration == self.first:
            sys.setprofile(self.look)
        elif view.iteration == self.last:
            sys.setprofile(None)

    def look(self, frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            self.seen[path.relative_to(SOURCE).as_posix()].add(self.iteration)

    @property
    def files(self) -> set[str]:
        """Those that ran again and again, without what the clock makes due. One poll may return several updates."""
        return {file for file, when in self.seen.items() if 4 * len(when) >= self.last - self.first}


@pytest.mark.processes
@pytest.mark.slow
def test_one_update_runs_the_files_of_the_walk_and_the_helpers(tmp_path: Path) -> None:
    profile = Profile()
    task, method = asgd.tasks.quadratic(workers=2), asgd.delay_adaptive(0.01)
    try:
        asgd.train(
            *(task, method, asgd.engines.processes(2)),
            **{"iterations": 100, "every": 1000, "directory": tmp_path, "progress": False, "callbacks": [profile]},
        )
    finally:
        sys.setprofile(None)
    assert profile.files == (WALK - WORKERS - IF_ANY - VALUES) | HELPERS


def test_no_source_file_is_long() -> None:
    long = {str(path): n for path in SOURCE.rglob("*.py") if (n := len(path.read_text("utf-8").splitlines())) > 400}
    assert not long
