"""Checkpoints: the server's whole state in one safetensors file, there whole or not at all, with a checksum."""

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
    """What a run goes on from."""

    state: dict[str, Any]
    """`asyncsgd.core.server.Server.state`."""
    marks: dict[str, Mark]
    """How long each file was that the run only appends to, and the checksum of what it held."""
    seconds: float
    """On the clock of the run."""

    @property
    def iteration(self) -> int:
        """T."""
        return int(self.state["iteration"])


def write(folder: Path, checkpoint: Checkpoint) -> tuple[Path, bytes]:
    """Write one; return its path and its bytes."""
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
    """The files, newest first."""
    return sorted((path for path in folder.glob(f"*{SUFFIX}") if path.stem.isdigit()), reverse=True)


def read(path: Path) -> Checkpoint:
    """Read one and check it against its checksum."""
    try:
        arrays, facts = read_arrays(path)
    except Damage as error:
        raise BadCheckpoint(f"{path} {error}; use an older checkpoint") from error
    if facts.get("format") != FORMAT:
        raise BadCheckpoint(f"{path} has format {facts.get('format')!r}, and this asyncsgd reads format {FORMAT!r}")
    marks = {name: Mark(*numbers) for name, numbers in json.loads(facts["marks"]).items()}
    return Checkpoint(unpack(arrays, facts["state"]), marks, float(facts["seconds"]))
