"""checksums.json: what a run directory must hold, so that a file that was damaged, cut off or deleted is noticed.

Every file of a run carries a checksum of its own: lines and blocks (`asyncsgd.trace.sealed`), checkpoints, run.json,
trace.parquet, job.pkl. But a file cannot tell that it is gone, or that its end was cut off between two lines. For that,
checksums.json lists the files that were written whole, with their SHA-256. Of those that are appended to it lists how
long they were, and the checksum of all up to there.

It is written whole or not at all: with every checkpoint, when a run is resumed, and when it ends. A name is taken out
before its file is replaced or removed and put in afterwards, and lengths are lowered before files are cut. So whenever
a kill comes, what is listed is there. What a run that was killed wrote after its last checkpoint is not listed; a
resume cuts it off.
"""

from __future__ import annotations

import hashlib
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
from asyncsgd.trace.log import REPAIR
from asyncsgd.trace.sealed import Mark, line, lines

# --------------------------------------------------------------------------------------------------------------
# A cheap mark of an update: a check sum over all of it, or over 4096 coordinates of a long one, always the same.
# A gradient computed in another order of additions differs in a good part of its coordinates, so these are enough to
# find the job with which a replay parts from the run. Whether the models agree is judged by all of their bits.


PIECES = 64
"""So many pieces of so many neighbours, spread evenly: memory is read in runs."""
MARK = struct.Struct("<I")
UNKNOWN = 0
"""In place of a mark that a repair could not save. One update in four thousand million has this mark by chance."""


def fingerprint(update: Vector) -> bytes:
    """Four bytes.

    >>> fingerprint(np.arange(3.0)) == fingerprint(np.arange(3.0) + 1e-16)
    False
    """
    n = update.shape[0]
    if n > PIECES * PIECES:
        apart = n // PIECES
        update = update[: PIECES * apart].reshape(PIECES, apart)[:, :PIECES]
    return MARK.pack(zlib.crc32(update.tobytes()))


def marks(data: bytes) -> NDArray[np.uint32]:
    """The marks of a file, whole ones only."""
    return np.frombuffer(data[: len(data) - len(data) % MARK.size], "<u4")


NAME = "checksums.json"
JOB = ("job.pkl", "initial.safetensors")
"""Not needed by a caller who has the task and the method. `asyncsgd.run.stored` checks them when it reads them."""
VOLATILE = ("carried.safetensors", "updates/initial.npy")
"""Files that `asyncsgd.flower` rewrites at any time: only that they are there is listed. They carry a checksum."""


@dataclass(frozen=True)
class Whole:
    """A file that was written at once."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Whole:
        """The checksum of these bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass
class Checksums:
    """What checksums.json says."""

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
                raise Damage("there is more after its line")
            whole = {str(name): Whole(int(size), str(sha)) for name, (size, sha) in row["whole"].items()}
            return cls(whole, as_marks(row["appended"]), [str(name) for name in row["present"]])
        except OSError as error:
            raise BadRunDirectory(f"{path / NAME} cannot be read ({error.strerror}); {REPAIR}") from error
        except (Damage, ValueError, KeyError, TypeError) as error:
            raise BadRunDirectory(f"{path / NAME} is damaged ({error}); {REPAIR}") from error

    def problems(self, path: Path) -> dict[str, str]:
        """What is gone or has another size, by name. It looks at no contents, so it is quick."""
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
    """For JSON."""
    return {name: [mark.size, mark.chain] for name, mark in marks.items()}


def as_marks(numbers: Mapping[str, Any]) -> dict[str, Mark]:
    """The inverse of `as_numbers`."""
    return {str(name): Mark(int(size), int(chain)) for name, (size, chain) in numbers.items()}


def check_listed(path: Path, *, but: tuple[str, ...] = (), only: Collection[str] | None = None) -> Checksums:
    """Refuse a directory in which a file is gone or has been cut off.

    ``but`` are folders and files that are not looked at; ``only`` these files are.
    """

    def asked(name: str) -> bool:
        return (only is None or name in only) and not name.startswith(but)

    # A run that goes on may replace checksums.json and its files meanwhile: then all is looked at again.
    if (path / STARTING).exists() and not (path / NAME).exists():
        return Checksums()
    while True:
        listed = Checksums.read(path)
        problems = {name: words for name, words in listed.problems(path).items() if asked(name)}
        if not problems:
            return listed
        if Checksums.read(path) == listed:
            [(name, words), *_] = problems.items()
            raise BadRunDirectory(f"{path / name} {words}; {REPAIR}")
