"""docs/design.md: its table of rooms is the import contract, and every file and function that it names exists."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "asyncsgd"
TEXT = (ROOT / "docs" / "design.md").read_text("utf-8")
PLACES = sorted(set(re.findall(r"`([\w/]+\.py)`: `([\w.]+)`", TEXT)))
WALK = TEXT.split("**One update of a real run**")[1].split("**One simulated iteration**")[0]


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


def test_one_update_passes_through_few_files() -> None:
    assert len(set(re.findall(r"`([\w/]+\.py)`", WALK))) <= 15


def test_no_source_file_is_long() -> None:
    long = {str(path): n for path in SOURCE.rglob("*.py") if (n := len(path.read_text("utf-8").splitlines())) > 400}
    assert not long
