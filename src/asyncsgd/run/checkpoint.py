"""Checkpoints: the server's whole state in one safetensors file, there whole or not at all, with a checksum."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadCheckpoint
from asyncsgd.core.events import Vector
from asyncsgd.core.snapshot import pack, unpack
from asyncsgd.trace.atomic import replacing

FORMAT = "1"
SUFFIX = ".safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """What a run goes on from."""

    state: dict[str, Any]
    """`asyncsgd.core.server.Server.state`."""
    lengths: dict[str, int]
    """How long each file was that the run only appends to."""
    seconds: float
    """On the clock of the run."""

    @property
    def iteration(self) -> int:
        """T."""
        return int(self.state["iteration"])


def write(folder: Path, checkpoint: Checkpoint, keep: int) -> Path:
    """Write one and delete all but the newest ``keep``."""
    from safetensors.numpy import save

    arrays, text = pack(checkpoint.state)
    arrays = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    facts = {
        "format": FORMAT,
        "state": text,
        "lengths": json.dumps(checkpoint.lengths),
        "seconds": repr(checkpoint.seconds),
    }
    facts["sha256"] = _checksum(arrays, facts)
    path = folder / f"{checkpoint.iteration:012d}{SUFFIX}"
    folder.mkdir(exist_ok=True)
    with replacing(path) as file:
        file.write(save(arrays, facts))
    for old in listed(folder)[keep:]:
        old.unlink()
    return path


def write_model(path: Path, iteration: int, x: Vector) -> None:
    """Write the model of one iteration alone: an array ``x``, with ``iteration`` in the metadata."""
    from safetensors.numpy import save

    with replacing(path) as file:
        file.write(save({"x": np.ascontiguousarray(x)}, {"iteration": str(iteration)}))


def listed(folder: Path) -> list[Path]:
    """The files, newest first."""
    return sorted((path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit()), reverse=True)


def read(path: Path) -> Checkpoint:
    """Read one and check it against its checksum."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            facts = dict(file.metadata() or {})
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dict
    except (SafetensorError, OSError, ValueError) as error:
        raise BadCheckpoint(f"{path} cannot be read ({error}); use an older checkpoint") from error
    claimed = facts.pop("sha256", "")
    if facts.get("format") != FORMAT:
        raise BadCheckpoint(f"{path} has format {facts.get('format')!r}, this version reads {FORMAT!r}")
    if _checksum(arrays, facts) != claimed:
        raise BadCheckpoint(f"{path} is damaged: its checksum does not match; use an older checkpoint")
    return Checkpoint(unpack(arrays, facts["state"]), json.loads(facts["lengths"]), float(facts["seconds"]))


def _checksum(arrays: dict[str, NDArray[Any]], facts: dict[str, str]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).view(np.uint8).data if arrays[name].size else b"")
    return digest.hexdigest()
