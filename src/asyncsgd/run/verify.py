"""`verify`: check that every file of a run directory is as the run wrote it.

Each file is checked against its own checksum, then against checksums.json, then against the other files. Harmless, and
therefore not reported: ``.lock`` (an empty file), temporary files and files moved aside (``*.tmp``, ``*.damaged``,
``damaged-N/``), files of other programs, and checkpoints that are no longer listed because they are old. An incomplete
last line or block after the length that checksums.json lists is reported as a note, not as damage: a kill leaves it,
readers skip it, and a resume cuts it off.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.core.errors import AsyncSGDError, BadRunDirectory, Damage, NoRun
from asyncsgd.run import checkpoints as checkpoints
from asyncsgd.run.checksums import BEST, NAME, Checksums, Whole
from asyncsgd.run.directory import APPENDED, FINGERPRINTS, INITIAL, LAST_FINITE
from asyncsgd.run.noise_log import NOISE_LOGS
from asyncsgd.run.read import STARTING, as_path, held, read_config
from asyncsgd.run.stored import CHECKED, needs_initial
from asyncsgd.tasks.model_file import read_facts
from asyncsgd.trace import Trace
from asyncsgd.trace.arrays import read_arrays, read_vector
from asyncsgd.trace.columns import DTYPES
from asyncsgd.trace.log import MAGIC
from asyncsgd.trace.log import read as read_log
from asyncsgd.trace.sealed import Mark, blocks, lines

CARRIED = "carried.safetensors"
UPDATES = "updates"
LOG, PARQUET, PICKLE = "trace.log", "trace.parquet", "job.pkl"


@dataclass(frozen=True)
class Finding:
    """A problem that `verify` found in one file."""

    file: str
    """Name of the file, relative to the directory."""
    problem: str
    """What is wrong, as a text that follows the name."""
    damage: bool = True
    """False for an incomplete end that a kill left: readers skip it, and a resume removes it."""

    def __str__(self) -> str:
        return f"{self.file} {self.problem}"


def verify(directory: str | PathLike[str]) -> list[Finding]:
    """Check every file of a run directory; return the findings, an empty list if all files are sound.

    Changes nothing, loads no pickle, and does not need the task. Use it after a disk failure, after copying a
    directory, or before a long resume; `repair` rebuilds what can be rebuilt. A run may train during the check.

    Args:
        directory: The run directory, as passed to `asyncsgd.train`.

    >>> import tempfile
    >>> import asyncsgd as asgd
    >>> from asyncsgd.testing.bench import Bowl
    >>> run = asgd.train(
    ...     Bowl(),
    ...     asgd.async_sgd(0.1),
    ...     engine=asgd.engines.processes(1),
    ...     iterations=9,
    ...     directory=tempfile.mkdtemp(),
    ...     progress=False,
    ... )
    >>> verify(run.directory)
    []
    >>> _ = (run.directory / "metrics.jsonl").write_bytes(b"")
    >>> print(verify(run.directory)[0])
    metrics.jsonl is shorter than it was (0 bytes, and ... were written)
    """
    path = as_path(directory)
    if not (path / "run.json").exists() and not held(path):
        raise NoRun(f"{path} holds no run (no run.json); pass a run directory, such as runs/task-1")
    while True:
        before = _bytes(path / NAME)
        found = _Look(path).findings
        if _bytes(path / NAME) == before:  # else a run is training there and has replaced files: check again
            return found


def _bytes(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() else None


class _Look:
    """One pass over a directory."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.findings: list[Finding] = []
        self._bad: set[str] = set()
        self._config = self._try("run.json", lambda: read_config(path)) or {}
        starting = (path / STARTING).exists() and not any((path / "checkpoints").glob("*"))
        listed = Checksums() if starting else self._try(NAME, lambda: Checksums.read(path))
        self._listed = listed or Checksums()
        self._check_listed()
        for name in (*APPENDED, *NOISE_LOGS):
            if (path / name).exists():
                self._try(name, lambda name=name: self._check_appended(name))  # type: ignore[misc]
        trace = self._check_trace()
        self._check_wholes(starting)
        self._check_updates(trace)

    def _add(self, name: str, problem: str, *, damage: bool = True) -> None:
        if damage and name in self._bad:
            return  # report one problem per file
        self._bad.add(name) if damage else None
        self.findings.append(Finding(name, problem, damage))

    def _try(self, name: str, check: Callable[[], Any]) -> Any:
        """Return what the check returns; if it refuses the file, add a finding and return None."""
        try:
            return check()
        except (AsyncSGDError, Damage, OSError, ValueError, KeyError, TypeError) as error:
            text = str(error).removeprefix(f"{self.path / name} ")
            plain = isinstance(error, AsyncSGDError) or text.startswith(("is ", "cannot "))
            problem = text if plain else f"is damaged ({text})"
            self._add(name, problem)
            return None

    def _check_listed(self) -> None:
        for name, problem in self._listed.problems(self.path).items():
            self._add(name, problem)
        for name, wanted in self._listed.whole.items():
            if name not in self._bad and Whole.of_file(self.path / name) != wanted:
                self._add(name, f"is damaged (it does not match {NAME})")

    # ------------------------------------------------------------------------------------------ files that grow

    def _check_appended(self, name: str) -> None:
        data = (self.path / name).read_bytes()
        self._check_mark(name, data, ends(name, data))

    def _check_mark(self, name: str, data: bytes, marks: Iterable[Mark]) -> None:
        wanted, last, met = self._listed.marks.get(name, Mark()), Mark(), False
        for mark in marks:
            last, met = mark, met or mark == wanted
        if wanted.size and not met:
            raise Damage(f"it does not hold what {NAME} lists")
        if last.size < len(data):
            self._add(
                name, f"ends in {len(data) - last.size:,} bytes of an incomplete entry, left by a kill", damage=False
            )

    def _check_trace(self) -> Trace | None:
        trace: Trace | None = None
        if (self.path / LOG).exists():
            self._try(LOG, lambda: self._check_appended(LOG))
            trace = self._try(LOG, lambda: read_log(self.path / LOG)[0])
            if trace is not None:
                self._try(LOG, trace.check)
        elif self._config and not (self.path / STARTING).exists():
            self._add(LOG, "is missing")
        if (self.path / PARQUET).exists() and PARQUET not in self._bad:
            whole = self._try(PARQUET, lambda: Trace.read(self.path / PARQUET))
            if whole is not None and trace is not None and LOG not in self._bad and not same_jobs(whole, trace):
                self._add(PARQUET, f"is not the trace that {LOG} holds")
        return trace

    # ------------------------------------------------------------------------------------------ files written whole

    def _check_wholes(self, starting: bool) -> None:
        for name in (LAST_FINITE, INITIAL, CARRIED):
            if (self.path / name).exists() and name not in self._bad:
                self._try(name, lambda name=name: read_arrays(self.path / name))  # type: ignore[misc]
        if (self.path / BEST).exists() and BEST not in self._bad:
            self._try(BEST, lambda: read_facts(self.path / BEST))
        for file in checkpoints.listed(self.path / "checkpoints"):
            name = f"checkpoints/{file.name}"
            if name not in self._bad:
                self._try(name, lambda file=file: checkpoints.read(file))  # type: ignore[misc]
        entry = self._config.get("job") or {}
        if (self.path / PICKLE).exists():
            self._try(PICKLE, lambda: check_pickle(self.path / PICKLE))
        elif self._config and None in (entry.get("task"), entry.get("method")) and not starting:
            self._add(PICKLE, "is missing")
        if needs_initial(entry) and not (self.path / INITIAL).exists() and not starting:
            self._add(INITIAL, "is missing")

    def _check_updates(self, trace: Trace | None) -> None:
        folder = self.path / UPDATES
        if not folder.exists():
            return
        there = {file.name for file in folder.glob("*.npy")}
        for name in sorted(there):
            self._try(f"{UPDATES}/{name}", lambda name=name: read_vector(folder / name))  # type: ignore[misc]
        for job in () if trace is None else np.flatnonzero(trace.jobs.arrived).tolist():
            if f"{job:012d}.npy" not in there:
                self._add(f"{UPDATES}/{job:012d}.npy", "is missing")


def ends(name: str, data: bytes) -> Iterable[Mark]:
    """Yield the ends of the complete lines or blocks of an appended file; raise `Damage` at a damaged one."""
    if name == LOG:
        if not data.startswith(MAGIC):
            raise Damage("it does not start with the header of a trace log")
        return (mark for _, mark in blocks(data[len(MAGIC) :], Mark(len(MAGIC))))
    return (mark for _, mark in (blocks(data) if name == FINGERPRINTS else lines(data)))


def check_pickle(path: Path) -> None:
    """Check job.pkl against its checksum, without loading it."""
    pickled, mark, checksum = path.read_bytes().rpartition(CHECKED)
    if not mark or hashlib.sha256(pickled).digest() != checksum:
        raise BadRunDirectory(f"{path} is damaged (it does not match its checksum)")


def same_jobs(one: Trace, other: Trace) -> bool:
    """Return whether two traces hold the same rows."""
    return all(getattr(one.jobs, name).tobytes() == getattr(other.jobs, name).tobytes() for name in DTYPES)
