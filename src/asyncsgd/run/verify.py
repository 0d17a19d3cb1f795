"""`verify`: is every file of a run directory what the run wrote?

Each file is checked against the checksum it carries, then against checksums.json, then against the others. These are
harmless, and no finding: ``.lock`` (empty, and nobody reads it), temporary files and what was set aside (``*.tmp``,
``*.damaged``, ``damaged-N/``), files that others put there, and checkpoints that are not listed, as they are older than
those that are kept. A torn last line or block after what checksums.json lists is a note: a kill leaves it, no reader
counts it, and a resume cuts it off.
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
from asyncsgd.run.checksums import NAME, Checksums, Whole
from asyncsgd.run.directory import APPENDED, FINGERPRINTS, INITIAL, LAST_FINITE
from asyncsgd.run.noise_log import LEDGERS
from asyncsgd.run.read import STARTING, as_path, held, read_config
from asyncsgd.run.stored import CHECKED
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
    """Something that `verify` found in one file."""

    file: str
    """Its name, relative to the directory."""
    problem: str
    """What is wrong with it, in words that follow the name."""
    damage: bool = True
    """False for what a kill leaves behind: no reader counts it, and a resume removes it."""

    def __str__(self) -> str:
        return f"{self.file} {self.problem}"


def verify(directory: str | PathLike[str]) -> list[Finding]:
    """Check every file of a run directory; return what was found, an empty list if all is as the run wrote it.

    Nothing is changed, nothing is unpickled, and the task is not needed. Use it after a disk has failed, after copying
    a directory, or before a long resume; `repair` saves what can be saved. A run that is going on can be checked too.

    Args:
        directory: What was given to `asyncsgd.train`.

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
        raise NoRun(f"{path} holds no run (no run.json); pass the directory given to asgd.train")
    while True:
        before = _bytes(path / NAME)
        found = _Look(path).findings
        if _bytes(path / NAME) == before:  # else a run goes on there, and has replaced files meanwhile
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
        for name in (*APPENDED, *LEDGERS):
            if (path / name).exists():
                self._try(name, lambda name=name: self._check_appended(name))  # type: ignore[misc]
        trace = self._check_trace()
        self._check_wholes(starting)
        self._check_updates(trace)

    def _add(self, name: str, problem: str, *, damage: bool = True) -> None:
        if damage and name in self._bad:
            return  # one is enough
        self._bad.add(name) if damage else None
        self.findings.append(Finding(name, problem, damage))

    def _try(self, name: str, check: Callable[[], Any]) -> Any:
        """What the check returns; None, and a finding, if it refuses the file."""
        try:
            return check()
        except (AsyncSGDError, Damage, OSError, ValueError, KeyError, TypeError) as error:
            words = str(error).removeprefix(f"{self.path / name} ")
            plain = isinstance(error, AsyncSGDError) or words.startswith(("is ", "cannot "))
            problem = words if plain else f"is damaged ({words})"
            self._add(name, problem)
            return None

    def _check_listed(self) -> None:
        for name, problem in self._listed.problems(self.path).items():
            self._add(name, problem)
        for name, wanted in self._listed.whole.items():
            if name not in self._bad and Whole.of((self.path / name).read_bytes()) != wanted:
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
            self._add(name, f"ends in {len(data) - last.size:,} bytes that a kill has torn", damage=False)

    def _check_trace(self) -> Trace | None:
        trace: Trace | None = None
        if (self.path / LOG).exists():
            self._try(LOG, lambda: self._check_appended(LOG))
            trace = self._try(LOG, lambda: read_log(self.path / LOG)[0])
            if trace is not None:
                self._try(LOG, trace.check)
        elif self._config and not (self.path / STARTING).exists():
            self._add(LOG, "is gone")
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
        for file in checkpoints.listed(self.path / "checkpoints"):
            name = f"checkpoints/{file.name}"
            if name not in self._bad:
                self._try(name, lambda file=file: checkpoints.read(file))  # type: ignore[misc]
        said = self._config.get("job") or {}
        if (self.path / PICKLE).exists():
            self._try(PICKLE, lambda: check_pickle(self.path / PICKLE))
        elif self._config and None in (said.get("task"), said.get("method")) and not starting:
            self._add(PICKLE, "is gone")
        if said.get("task") is not None and not (self.path / INITIAL).exists() and not starting:
            self._add(INITIAL, "is gone")

    def _check_updates(self, trace: Trace | None) -> None:
        folder = self.path / UPDATES
        if not folder.exists():
            return
        there = {file.name for file in folder.glob("*.npy")}
        for name in sorted(there):
            self._try(f"{UPDATES}/{name}", lambda name=name: read_vector(folder / name))  # type: ignore[misc]
        for job in () if trace is None else np.flatnonzero(trace.jobs.arrived).tolist():
            if f"{job:012d}.npy" not in there:
                self._add(f"{UPDATES}/{job:012d}.npy", "is gone")


def ends(name: str, data: bytes) -> Iterable[Mark]:
    """Where the whole lines or blocks of an appended file end; raises `Damage`."""
    if name == LOG:
        if not data.startswith(MAGIC):
            raise Damage("it does not begin as a log does")
        return (mark for _, mark in blocks(data[len(MAGIC) :], Mark(len(MAGIC))))
    return (mark for _, mark in (blocks(data) if name == FINGERPRINTS else lines(data)))


def check_pickle(path: Path) -> None:
    """Check job.pkl against its checksum. Nothing is unpickled."""
    pickled, mark, checksum = path.read_bytes().rpartition(CHECKED)
    if not mark or hashlib.sha256(pickled).digest() != checksum:
        raise BadRunDirectory(f"{path} is damaged (it does not match its checksum)")


def same_jobs(one: Trace, other: Trace) -> bool:
    """Whether two traces hold the same rows."""
    return all(getattr(one.jobs, name).tobytes() == getattr(other.jobs, name).tobytes() for name in DTYPES)
