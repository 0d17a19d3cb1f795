"""checksums.json: the list of all files of a run, which reveals files that were damaged, truncated or deleted.

Every file of a run carries a checksum of its own: lines and blocks (`asyncsgd.trace.sealed`), checkpoints, run.json,
trace.parquet, job.pkl. But a file cannot reveal that it is missing, or that its end was cut off between two lines. So
checksums.json lists the files that are written whole, with their SHA-256. For files that grow it lists the length and
the checksum of everything up to that length.

The file is replaced atomically: with every checkpoint, when a run is resumed, and when it ends. A name is removed from
the list before its file is replaced or deleted, and added afterwards. Lengths are lowered before files are cut. So
after a kill at any moment, every listed file exists. What a killed run wrote after its last checkpoint is not listed;
a resume cuts it off.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd._files import write_bytes
from asyncsgd.core.errors import BadRunDirectory, Damage
from asyncsgd.core.vectors import Vector
from asyncsgd.run.read import STARTING
from asyncsgd.trace.arrays import Whole as Whole
from asyncsgd.trace.log import REPAIR
from asyncsgd.trace.sealed import Mark, line, lines

# A fingerprint is a cheap checksum of an update: over all of it, or over 4096 fixed coordinates of a long one. A
# gradient computed with another order of additions differs in many coordinates, so this suffices to find the first job
# where a replay differs from the run. The final models are compared in all their bits.

PIECES = 64
"""Number of evenly spread pieces, and coordinates per piece: neighbours are fast to read."""
MARK = struct.Struct("<I")
UNKNOWN = 0
"""Stands for a fingerprint that a repair could not save. One update in 4 billion has this fingerprint by chance."""


def fingerprint(update: Vector) -> bytes:
    """Return the four bytes of an update's fingerprint.

    >>> fingerprint(np.arange(3.0)) == fingerprint(np.arange(3.0) + 1e-16)
    False
    """
    n = update.shape[0]
    if n > PIECES * PIECES:
        apart = n // PIECES
        update = update[: PIECES * apart].reshape(PIECES, apart)[:, :PIECES]
    return MARK.pack(zlib.crc32(update.tobytes()))


def marks(data: bytes) -> NDArray[np.uint32]:
    """Return the complete fingerprints in these bytes."""
    return np.frombuffer(data[: len(data) - len(data) % MARK.size], "<u4")


NAME = "checksums.json"
JOB = ("job.pkl", "initial.safetensors")
"""Files that are not needed by a caller who passes task and method. `asyncsgd.run.stored` checks them."""
BEST = "best.safetensors"
"""The best model, which `asyncsgd.callbacks.SaveBest` writes."""
VOLATILE = ("carried.safetensors", "updates/initial.npy", BEST)
"""Files that `asyncsgd.flower` or a callback rewrites at any time: only their existence is listed. They carry a
checksum."""


@dataclass
class Checksums:
    """The contents of checksums.json."""

    whole: dict[str, Whole] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    present: list[str] = field(default_factory=list)

    def write(self, path: Path) -> None:
        """Replace the file of a directory."""
        row = {
            "whole": {name: [entry.size, entry.sha256] for name, entry in sorted(self.whole.items())},
            "appended": as_numbers(self.marks),
            "present": self.present,
        }
        write_bytes(path / NAME, line(row, 0)[0], private=True)

    @classmethod
    def read(cls, path: Path) -> Checksums:
        """Read the file of a directory; refuse a damaged one, or none."""
        try:
            data = (path / NAME).read_bytes()
            [(row, mark)] = list(lines(data))
            if mark.size != len(data):
                raise Damage("more data follows its only line")
            whole = {str(name): Whole(int(size), str(sha)) for name, (size, sha) in row["whole"].items()}
            return cls(whole, as_marks(row["appended"]), [str(name) for name in row["present"]])
        except OSError as error:
            raise BadRunDirectory(f"{path / NAME} cannot be read ({error.strerror}); {REPAIR}") from error
        except (Damage, ValueError, KeyError, TypeError) as error:
            raise BadRunDirectory(f"{path / NAME} is damaged ({error}); {REPAIR}") from error

    def problems(self, path: Path) -> dict[str, str]:
        """Return the files that are missing or have a wrong size. Contents are not read, so this is quick."""
        found = {}
        for name, wanted in {**self.whole, **self.marks, **dict.fromkeys(self.present)}.items():
            try:
                size = (path / name).stat().st_size
            except OSError as error:
                found[name] = f"cannot be read ({error.strerror})"
                continue
            if isinstance(wanted, Whole) and size != wanted.size:
                found[name] = f"is damaged (it has {size:,} bytes, and {wanted.size:,} were written)"
            elif isinstance(wanted, Mark) and size < wanted.size:
                found[name] = f"is shorter than it was ({size:,} bytes, and {wanted.size:,} were written)"
        return found


def as_numbers(marks: Mapping[str, Mark]) -> dict[str, list[int]]:
    """Return marks as lists of numbers, for JSON."""
    return {name: [mark.size, mark.chain] for name, mark in marks.items()}


def as_marks(numbers: Mapping[str, Any]) -> dict[str, Mark]:
    """Return the marks that `as_numbers` was given."""
    return {str(name): Mark(int(size), int(chain)) for name, (size, chain) in numbers.items()}


def check_listed(path: Path, *, but: tuple[str, ...] = (), only: Collection[str] | None = None) -> Checksums:
    """Refuse a directory in which a file is missing or truncated; return its list.

    ``but``: folders and files to skip. ``only``: check no other files than these.
    """

    def asked(name: str) -> bool:
        return (only is None or name in only) and not name.startswith(but)

    # A run that is training may replace checksums.json and its files during the check: then check again.
    if (path / STARTING).exists() and not (path / NAME).exists():
        return Checksums()
    while True:
        listed = Checksums.read(path)
        problems = {name: problem for name, problem in listed.problems(path).items() if asked(name)}
        if not problems:
            return listed
        if Checksums.read(path) == listed:
            [(name, problem), *_] = problems.items()
            raise BadRunDirectory(f"{path / name} {problem}; {REPAIR}")
