"""Lines that are on the disk before anything goes on, and that no resume takes back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncsgd._files import create, writing
from asyncsgd.core.errors import BadRunDirectory, Damage
from asyncsgd.trace.sealed import SUM, Mark, line, lines

NOISE = "noise.jsonl"
"""The seeds of noise: one line per start, with the iteration that it began at. As secret as what the noise hides."""


RELEASES = "releases.jsonl"
"""What privacy has cost: see `asyncsgd.flower.privacy`."""
LEDGERS = (NOISE, RELEASES)


class Ledger:
    """A file of JSON lines, readable by its owner alone; a line that a kill tore is cut off."""

    def __init__(self, path: Path) -> None:
        text = path.read_bytes() if path.exists() else b""
        try:
            found = list(lines(text))
        except (Damage, ValueError) as error:
            fix = "restore it from a backup, or begin a run in another directory"
            raise BadRunDirectory(f"{path} is damaged ({error}); {fix}") from error
        self.rows: list[dict[str, Any]] = [row for row, _ in found]
        mark = found[-1][1] if found else Mark()
        self._folder, self._chain = path.parent, mark.chain
        self._file = create(path, os.O_APPEND)
        try:
            os.ftruncate(self._file, mark.size)
            folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)  # or its name may not survive a power cut
            finally:
                os.close(folder)
        except OSError:
            self.close()
            raise

    def add(self, row: Mapping[str, Any]) -> None:
        """Returns once the line is on the disk."""
        data, self._chain = line(row, self._chain)
        with writing(self._folder):
            while data:
                data = data[os.write(self._file, data) :]  # a part that a full disk leaves is cut off as a torn line
            os.fsync(self._file)
        self.rows.append(dict(row))

    def close(self) -> None:
        """Nothing more is added."""
        os.close(self._file)


def tail_mark(path: Path) -> Mark:
    """How long a ledger is, and the checksum of all of it, from its last whole line alone."""
    size = path.stat().st_size
    with path.open("rb") as file:
        reach = 1 << 12
        while True:
            file.seek(max(0, size - reach))
            data = file.read(min(size, reach))
            end = data.rfind(b"\n")
            begin = data.rfind(b"\n", 0, max(end, 0))
            if (end >= 0 and begin >= 0) or reach >= size:
                break
            reach *= 8
    found = SUM.search(data[begin + 1 : max(end, 0)])
    return Mark(size - len(data) + end + 1, int(found[1], 16)) if found else Mark()


def remember_noise(folder: Path, iteration: int, seed: int) -> None:
    """A start at this iteration draws its noise from this seed."""
    ledger = Ledger(folder / NOISE)
    try:
        ledger.add({"iteration": iteration, "seed": seed})
    finally:
        ledger.close()


def noise_seeds(rows: list[dict[str, Any]]) -> dict[int, int]:
    """Iteration -> the seed from there on, without those of time that a resume took back.

    >>> noise_seeds([{"iteration": 0, "seed": 5}, {"iteration": 9, "seed": 6}, {"iteration": 4, "seed": 7}])
    {0: 5, 4: 7}
    """
    seeds: dict[int, int] = {}
    for row in rows:
        seeds = {iteration: seed for iteration, seed in seeds.items() if iteration < row["iteration"]}
        seeds[int(row["iteration"])] = int(row["seed"])
    return seeds
