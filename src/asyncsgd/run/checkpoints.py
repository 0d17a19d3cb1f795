"""Checkpoints: the server's whole state in one safetensors file with a checksum, written atomically."""

from __future__ import annotations

import json
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd._files import make_folder
from asyncsgd.core.errors import BadCheckpoint, Damage
from asyncsgd.core.vectors import Vector
from asyncsgd.trace.arrays import Whole, read_arrays, write_arrays
from asyncsgd.trace.sealed import Mark

# --------------------------------------------------------------------------------------------------------------
# A server's state as named arrays and one JSON text, for any file format that holds arrays.


Array = NDArray[Any]


def pack(state: Any) -> tuple[dict[str, Array], str]:
    """Return (arrays by name, JSON text) of nested dicts, lists, arrays and numbers, without losing a bit.

    >>> arrays, text = pack({"x": np.ones(2), "memory": {7: np.zeros(1)}, "eta": 0.1})
    >>> sorted(arrays)
    ['memory.7', 'x']
    >>> unpack(arrays, text)
    {'x': array([1., 1.]), 'memory': {7: array([0.])}, 'eta': 0.1}
    """
    arrays: dict[str, Array] = {}
    return arrays, json.dumps(_packed(state, "", arrays))


# These two are not inner functions: one that calls itself is a cycle, which would keep its arrays alive long after.


def _packed(value: Any, path: str, arrays: dict[str, Array]) -> Any:
    if isinstance(value, np.ndarray):
        arrays[path] = value
        return {"array": path}
    if isinstance(value, dict):  # as pairs, because keys may be worker ids
        pairs = ((key, f"{path}.{key}" if path else str(key), item) for key, item in value.items())
        return {"dict": [[key, _packed(item, place, arrays)] for key, place, item in pairs]}
    if isinstance(value, list | tuple | deque):
        return [_packed(item, f"{path}.{place}", arrays) for place, item in enumerate(value)]
    return value


def unpack(arrays: dict[str, Array], text: str) -> Any:
    """Return the state that `pack` was given."""
    return _unpacked(json.loads(text), arrays)


def _unpacked(value: Any, arrays: dict[str, Array]) -> Any:
    if isinstance(value, list):
        return [_unpacked(item, arrays) for item in value]
    if isinstance(value, dict):
        if "array" in value:
            return arrays[value["array"]]
        return {key: _unpacked(item, arrays) for key, item in value["dict"]}
    return value


FORMAT = "2"
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """The state that a run is resumed from."""

    state: dict[str, Any]
    """`asyncsgd.core.server.Server.state`."""
    marks: dict[str, Mark]
    """Length and checksum of every appended file at the checkpoint."""
    seconds: float
    """Time on the clock of the run."""

    @property
    def iteration(self) -> int:
        """Number of updates that had arrived."""
        return int(self.state["iteration"])


def model_of(checkpoint: Checkpoint) -> Vector:
    """Return the model in a checkpoint: the newest version, or the average if the method averages."""
    points, memory = checkpoint.state["update"]["points"], checkpoint.state["update"]["memory"]
    average: Vector | None = memory["average"]
    newest: Vector = points["live"][points["current"]]
    return newest if average is None else average


def write(folder: Path, checkpoint: Checkpoint) -> tuple[Path, Whole]:
    """Write a checkpoint straight from its arrays; return its path, and its size and checksum."""
    arrays, text = pack(checkpoint.state)
    facts = {
        "format": FORMAT,
        "state": text,
        "marks": json.dumps({name: [mark.size, mark.chain] for name, mark in checkpoint.marks.items()}),
        "seconds": repr(checkpoint.seconds),
    }
    path = path_of(folder, checkpoint.iteration)
    make_folder(folder)
    return path, write_arrays(path, arrays, facts)


def path_of(folder: Path, iteration: int) -> Path:
    """Return the file for the checkpoint of this iteration."""
    return folder / f"{iteration:012d}{SUFFIX}"


def listed(folder: Path) -> list[Path]:
    """Return the checkpoint files of a folder, newest first."""
    return sorted((path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit()), reverse=True)


def read(path: Path) -> Checkpoint:
    """Read a checkpoint and check it against its checksum."""
    try:
        arrays, facts = read_arrays(path)
    except Damage as error:
        raise BadCheckpoint(f"{path} {error}; use an older checkpoint") from error
    if facts.get("format") != FORMAT:
        raise BadCheckpoint(f"{path} has format {facts.get('format')!r}, and this asyncsgd reads format {FORMAT!r}")
    marks = {name: Mark(*numbers) for name, numbers in json.loads(facts["marks"]).items()}
    return Checkpoint(unpack(arrays, facts["state"]), marks, float(facts["seconds"]))
