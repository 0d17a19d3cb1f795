"""The logs of the noise: lines that reach the disk before the run continues, and that a resume never removes."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncsgd._files import create, writing
from asyncsgd.core.errors import BadRunDirectory, Damage
from asyncsgd.trace.sealed import SUM, Mark, line, lines

NOISE = "noise.jsonl"
"""Seeds of the noise: one line per start or resume, with its iteration. As secret as the updates that they protect."""
RELEASES = "releases.jsonl"
"""Privacy spent so far: see `asyncsgd.flower.privacy`."""
NOISE_LOGS = (NOISE, RELEASES)
"""Files whose lines are only appended to."""


class NoiseLog:
    """A file of JSON lines that only its owner can read. An incomplete last line, left by a kill, is cut off."""

    def __init__(self, path: Path) -> None:
        text = path.read_bytes() if path.exists() else b""
        try:
            found = list(lines(text))
        except (Damage, ValueError) as error:
            fix = "restore it from a backup, or start a run in another directory"
            raise BadRunDirectory(f"{path} is damaged ({error}); {fix}") from error
        self.rows: list[dict[str, Any]] = [row for row, _ in found]
        mark = found[-1][1] if found else Mark()
        self._folder, self._chain = path.parent, mark.chain
        self._file = create(path, os.O_APPEND)
        try:
            os.ftruncate(self._file, mark.size)
            folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
            try:
                os.fsync(folder)  # else a power cut may lose the name of the file
            finally:
                os.close(folder)
        except OSError:
            self.close()
            raise

    def add(self, row: Mapping[str, Any]) -> None:
        """Add a line, and return once it is on the disk."""
        data, self._chain = line(row, self._chain)
        with writing(self._folder):
            while data:
                data = data[os.write(self._file, data) :]  # a full disk may leave a part, which the next start cuts off
            os.fsync(self._file)
        self.rows.append(dict(row))

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


def tail_mark(path: Path) -> Mark:
    """Return the length and the checksum of a log, from its last complete line alone."""
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
    """Record that noise is drawn from this seed since this iteration."""
    log = NoiseLog(folder / NOISE)
    try:
        log.add({"iteration": iteration, "seed": seed})
    finally:
        log.close()


def noise_seeds(rows: list[dict[str, Any]]) -> dict[int, int]:
    """Return the seed that is used from each iteration on, without iterations that a resume undid.

    >>> noise_seeds([{"iteration": 0, "seed": 5}, {"iteration": 9, "seed": 6}, {"iteration": 4, "seed": 7}])
    {0: 5, 4: 7}
    """
    seeds: dict[int, int] = {}
    for row in rows:
        seeds = {iteration: seed for iteration, seed in seeds.items() if iteration < row["iteration"]}
        seeds[int(row["iteration"])] = int(row["seed"])
    return seeds
