"""Lines that are on the disk before anything goes on, and that no resume takes back."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadRunDirectory
from asyncsgd.run.writing import writing

NOISE = "noise.jsonl"
"""The seeds of noise: one line per start, with the iteration that it began at. As secret as what the noise hides."""


class Ledger:
    """A file of JSON lines, readable by its owner alone; a line that a kill tore is cut off."""

    def __init__(self, path: Path) -> None:
        text = path.read_bytes() if path.exists() else b""
        whole = text[: text.rfind(b"\n") + 1]
        try:
            self.rows: list[dict[str, Any]] = [json.loads(line) for line in whole.splitlines()]
        except ValueError as error:
            fix = "restore it from a backup, or begin a run in another directory"
            raise BadRunDirectory(f"{path} is damaged ({error}); {fix}") from error
        self._folder = path.parent
        self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(self._file, len(whole))
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
        data = json.dumps(row).encode() + b"\n"
        with writing(self._folder):
            while data:
                data = data[os.write(self._file, data) :]  # a part that a full disk leaves is cut off as a torn line
            os.fsync(self._file)
        self.rows.append(dict(row))

    def close(self) -> None:
        """Nothing more is added."""
        os.close(self._file)


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
