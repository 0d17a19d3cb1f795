"""A run on disk. Everything but the checkpoints is only ever appended to, and a checkpoint remembers the lengths.

::

    run.json            what was asked for, and with which versions of everything
    job.pkl             the task and the method, for `replay` (written by and for this user: never load a stranger's)
    trace.log           the running trace; trace.parquet once the run has ended
    metrics.jsonl       one line per evaluation
    journal.jsonl       who joined, left, failed or was retired, when the run was started, resumed, ended; its diagnosis
    fingerprints.bin    four bytes per arrival: a check sum over its update (some coordinates of a long one)
    noise.jsonl         seeds of noise, where it is secret; a resume takes nothing of it back
    checkpoints/        the last few, the newest is the last iteration that nothing can take away
    report.html, ...    what others make of it
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import AsyncSGDError, BadParameter, TraceError, UsageError
from asyncsgd.run import checkpoint as checkpoints
from asyncsgd.run.checkpoint import BadCheckpoint, Checkpoint
from asyncsgd.trace import Recorder, Trace, TraceLog
from asyncsgd.trace.atomic import write_bytes, write_text

APPENDED = ("metrics.jsonl", "journal.jsonl", "fingerprints.bin")
FORMAT = 1


class BadRunDirectory(AsyncSGDError):
    """A directory that is no run, or that somebody else writes to."""


class NoRun(BadRunDirectory, UsageError):
    """A directory that is not there, or that nobody trained in: another one was meant."""


class RunDirectory:
    """One run's files, locked while it is written to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._files: dict[str, int] = {}
        self._pending: dict[str, bytearray] = {name: bytearray() for name in APPENDED}
        self._log: TraceLog | None = None
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise BadParameter(
                "directory", str(path), f"cannot be made or written to ({error.strerror})", "choose another"
            ) from error
        while not _locked(self._lock, fcntl.LOCK_EX):
            if not _locked(self._lock, fcntl.LOCK_SH):  # else somebody only looked, see `in_use`: once more
                os.close(self._lock)
                raise BadRunDirectory(f"another process is training in {self.path}; wait for it or choose another")

    # ------------------------------------------------------------------------------------------ beginning

    @property
    def begun(self) -> bool:
        """Whether there is a run in it."""
        return (self.path / "run.json").exists()

    def begin(self, config: dict[str, Any], package: bytes, recorder: Recorder) -> None:
        """A new run: whatever an earlier start left that never came to a checkpoint goes."""
        for name in (*APPENDED, "trace.log", "trace.parquet"):
            (self.path / name).unlink(missing_ok=True)
        for file in checkpoints.listed(self.path / "checkpoints"):
            file.unlink()
        self._sweep()
        write_bytes(self.path / "job.pkl", package)
        write_text(self.path / "run.json", json.dumps({"format": FORMAT, **config}, indent=2) + "\n")
        self._open()
        self._log = TraceLog(self.path / "trace.log")
        self._log.flush(recorder)

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """The newest checkpoint that is whole, or None if there has never been one; what is wrong with newer ones.

        Those are put aside under another name, as the files beside them are about to be shortened.
        """
        complaints: list[str] = []
        damaged: list[Path] = []
        found = None
        for path in checkpoints.listed(self.path / "checkpoints"):
            try:
                found = checkpoints.read(path)
                break
            except BadCheckpoint as error:
                complaints.append(str(error))
                damaged.append(path)
        if damaged and found is None:
            fix = "restore one from a backup, or begin a run in another directory"
            raise BadCheckpoint(f"{self.path} has no checkpoint that can be read: {'; '.join(complaints)}; {fix}")
        for path in damaged:
            path.rename(path.with_name(f"{path.name}.damaged"))
        return found, complaints

    def resume(self, checkpoint: Checkpoint, config: dict[str, Any], package: bytes) -> Recorder:
        """Take every file back to where it was at the checkpoint; the recorder to go on with."""
        state = checkpoint.state
        active = [int(row[0]) for row in state["active"]]
        try:
            trace = Trace.read(self.path / "trace.log").rewind(len(state["outcomes"]), active)
        except (FileNotFoundError, TraceError) as error:
            raise BadRunDirectory(f"the trace of {self.path} is gone or damaged ({error}); restore it") from error
        (self.path / "trace.parquet").unlink(missing_ok=True)  # it would pass for the newer one
        for name in APPENDED:
            path, length = self.path / name, checkpoint.lengths[name]
            if not path.exists() or path.stat().st_size < length:
                raise BadRunDirectory(f"{path} is shorter than at the last checkpoint; restore it from a backup")
            os.truncate(path, length)
        self._log = TraceLog.reopen(self.path / "trace.log", trace)
        self._sweep()
        write_bytes(self.path / "job.pkl", package)  # the user may have mended the task
        write_text(self.path / "run.json", json.dumps({"format": FORMAT, **config}, indent=2) + "\n")
        self._open()
        return Recorder.resume(trace)

    def _sweep(self) -> None:
        """Whatever a kill left half written; nobody else writes here, as we hold the lock."""
        for folder in (self.path, self.path / "checkpoints"):
            for file in folder.glob(".*.tmp"):
                file.unlink()

    def _open(self) -> None:
        for name in APPENDED:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            self._files[name] = os.open(self.path / name, flags, 0o666)

    # ------------------------------------------------------------------------------------------ going on

    def append(self, name: str, data: bytes) -> None:
        """Add to one of the files, with the next flush."""
        self._pending[name] += data

    def add_line(self, name: str, row: Mapping[str, Any]) -> None:
        """Add one line of JSON."""
        self.append(name, json.dumps(row).encode() + b"\n")

    def flush(self, recorder: Recorder, *, sync: bool = False) -> None:
        """Hand everything to the operating system; with ``sync``, to the disk."""
        assert self._log is not None
        self._log.flush(recorder, sync=sync)
        for name, pending in self._pending.items():
            rest = memoryview(bytes(pending))
            while rest:
                rest = rest[os.write(self._files[name], rest) :]
            pending.clear()
            if sync:
                os.fsync(self._files[name])

    def checkpoint(self, state: dict[str, Any], seconds: float, recorder: Recorder, keep: int) -> Path:
        """Write a checkpoint, after everything that it relies on."""
        self.flush(recorder, sync=True)
        lengths = {name: os.fstat(descriptor).st_size for name, descriptor in self._files.items()}
        return checkpoints.write(self.path / "checkpoints", Checkpoint(state, lengths, seconds), keep)

    def finish(self, trace: Trace) -> None:
        """The run has ended: one Parquet file for everybody to read."""
        trace.write(self.path / "trace.parquet")

    def close(self) -> None:
        """Close the files and let others in."""
        if self._log is not None:
            self._log.close()
            self._log = None
        for descriptor in self._files.values():
            os.close(descriptor)
        self._files.clear()
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


# ---------------------------------------------------------------------------------------------- reading


def in_use(path: Path) -> bool:
    """Whether a process is training in it: whoever does holds the lock. Ours is given back at once."""
    try:
        descriptor = os.open(path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        return not _locked(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def read_config(path: Path) -> dict[str, Any]:
    """run.json."""
    try:
        config: dict[str, Any] = json.loads((path / "run.json").read_text("utf-8"))
    except FileNotFoundError as error:
        raise NoRun(f"{path} holds no run (no run.json); pass the directory given to asgd.train") from error
    except ValueError as error:
        raise BadRunDirectory(f"{path / 'run.json'} is damaged ({error}); restore it from a backup") from error
    if not isinstance(config, dict):
        raise BadRunDirectory(f"{path / 'run.json'} is damaged (it is no object); restore it from a backup")
    if config.get("format") != FORMAT:
        raise BadRunDirectory(f"{path} has format {config.get('format')!r}, this version reads {FORMAT}")
    return config


def read_trace(path: Path) -> Trace:
    """The trace, ended or still being written."""
    for name in ("trace.parquet", "trace.log"):
        if (path / name).exists():
            return Trace.read(path / name)
    raise TraceError(f"{path} has no trace; was it a run?")


def read_lines(path: Path, name: str) -> list[dict[str, Any]]:
    """The lines of metrics.jsonl or journal.jsonl; a last one that a kill tore is left out."""
    try:
        text = (path / name).read_bytes()
    except FileNotFoundError:
        return []
    return [json.loads(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]


def read_metrics(path: Path) -> dict[str, list[Any]]:
    """The columns of metrics.jsonl."""
    rows = read_lines(path, "metrics.jsonl")
    return {name: [row.get(name) for row in rows] for name in (rows[0] if rows else ())}
