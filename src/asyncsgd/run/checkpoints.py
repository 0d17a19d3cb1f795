"""Checkpoints: the server's whole state in one safetensors file with a checksum, written atomically."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from asyncsgd._files import make_folder
from asyncsgd.core.errors import BadCheckpoint, Damage
from asyncsgd.core.snapshot import pack, unpack
from asyncsgd.trace.arrays import read_arrays, write_arrays
from asyncsgd.trace.sealed import Mark

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


def write(folder: Path, checkpoint: Checkpoint) -> tuple[Path, bytes]:
    """Write a checkpoint; return its path and its bytes."""
    arrays, text = pack(checkpoint.state)
    facts = {
        "format": FORMAT,
        "state": text,
        "marks": json.dumps({name: [mark.size, mark.chain] for name, mark in checkpoint.marks.items()}),
        "seconds": repr(checkpoint.seconds),
    }
    path = folder / f"{checkpoint.iteration:012d}{SUFFIX}"
    make_folder(folder)
    return path, write_arrays(path, arrays, facts)


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
