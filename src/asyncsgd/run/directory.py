"""A run on disk. Everything but the checkpoints is only ever appended to, and a checkpoint remembers the lengths.

::

    run.json            what was asked for, and with which versions of everything; written first
    job.pkl             the task and the method, for `replay` (written by and for this user: never load a stranger's)
    trace.log           the running trace; trace.parquet once the run has ended
    metrics.jsonl       one line per evaluation
    journal.jsonl       who joined, left, failed or was retired, when the run was started, resumed, ended; its diagnosis
    fingerprints.bin    four bytes per arrival: a check sum over its update (some coordinates of a long one)
    noise.jsonl         seeds of noise, a new one for every start and resume; a resume takes nothing of it back
    checkpoints/        the last few, the newest is the last iteration that nothing can take away; the first one is
                        written before any job is handed out
    last_finite.safetensors   of a run that diverged: ``x``, the last model with finite metrics, and its ``iteration``
    .starting           only from the start of a run to its first checkpoint: a start that was killed is started again
    report.html, ...    what others make of it
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadCheckpoint, BadParameter, BadRunDirectory, CannotWrite, NoRun, TraceError
from asyncsgd.core.events import Vector
from asyncsgd.run import checkpoint as checkpoints
from asyncsgd.run.checkpoint import Checkpoint
from asyncsgd.run.reading import (
    FORMAT,
    STARTING,
    as_path,
    check_complete,
    check_resumable,
    read_config,
    read_lines,
    read_metrics,
    read_trace,
)
from asyncsgd.run.writing import writing
from asyncsgd.trace import Recorder, Trace, TraceLog, locks
from asyncsgd.trace.atomic import write_bytes, write_text

LAST_FINITE = "last_finite.safetensors"
APPENDED = ("metrics.jsonl", "journal.jsonl", "fingerprints.bin")

__all__ = ["BadRunDirectory", "CannotWrite", "NoRun", "RunDirectory", "in_use"]
__all__ += ["read_config", "read_lines", "read_metrics", "read_trace"]


class RunDirectory:
    """One run's files, locked while it is written to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path(path)
        self._files: dict[str, int] = {}
        self._pending: dict[str, bytearray] = {name: bytearray() for name in APPENDED}
        self._log: TraceLog | None = None
        self._damaged: list[Path] = []  # checkpoints, newer than the one that can be read
        if not locks.AVAILABLE:
            fix = "leave it out, or train on Linux or macOS"
            raise BadParameter("directory", str(path), "cannot be locked on this system", fix)
        try:
            self._made = [folder for folder in (self.path, *self.path.parents) if not folder.exists()]
            self.path.mkdir(parents=True, exist_ok=True)
            self._lock = self._take()
        except OSError as error:
            problem = f"cannot be made or written to ({error.strerror})"
            raise BadParameter("directory", str(path), problem, "choose another") from error

    def _take(self) -> int:
        """The lock; one that its last owner took away with him is no lock any more."""
        while True:
            lock = os.open(self.path / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            while not locks.take(lock):
                if not locks.take(lock, shared=True):  # else somebody only looked, see `in_use`: once more
                    os.close(lock)
                    raise BadRunDirectory(f"another process is training in {self.path}; wait for it or choose another")
            if os.fstat(lock).st_nlink:
                return lock
            os.close(lock)

    # ------------------------------------------------------------------------------------------ beginning

    @property
    def begun(self) -> bool:
        """Whether there is a run in it."""
        return (self.path / "run.json").exists()

    def check(self, *, resume: bool) -> None:
        """Refuse to start where something of a run would be lost, and to resume where something is missing."""
        check_complete(self.path)
        if self.begun and not resume:
            fix = "pass resume=True to resume it (--resume on the command line), or choose another directory"
            raise BadParameter("directory", str(self.path), "holds a run already", fix)
        if self.begun:
            read_config(self.path)
            check_resumable(self.path)

    def begin(self, config: dict[str, Any], package: bytes, recorder: Recorder) -> None:
        """Start a new run. `check` has made sure that whatever is removed here is of a start without a checkpoint."""
        with writing(self.path, "start again with resume=True or --resume, or choose another directory"):
            (self.path / STARTING).touch()
            for name in (*APPENDED, "trace.log"):
                (self.path / name).unlink(missing_ok=True)
            self._describe(config, package)
            self._log = TraceLog(self.path / "trace.log")
            self._log.flush(recorder)

    def make_private(self) -> None:
        """Let only the owner in: seeds of noise and updates of clients are as secret as what the noise hides."""
        try:
            self.path.chmod(0o700)
        except OSError as error:
            fix = "choose one of your own, on a file system that knows owners"
            problem = f"cannot be made private ({error.strerror})"
            raise BadParameter("directory", str(self.path), problem, fix) from error

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest checkpoint that is whole, and what is wrong with newer ones; None if there is none at all.

        Refuses a directory in which a file lacks something that the checkpoint relies on. Changes nothing.
        """
        complaints: list[str] = []
        found = None
        self._damaged.clear()
        for path in checkpoints.listed(self.path / "checkpoints"):
            try:
                found = checkpoints.read(path)
                break
            except BadCheckpoint as error:
                complaints.append(str(error))
                self._damaged.append(path)
        if complaints and found is None:
            fix = "restore one from a backup, or begin a run in another directory"
            raise BadCheckpoint(f"{self.path} has no checkpoint that can be read: {'; '.join(complaints)}; {fix}")
        if found is not None:
            self._rewound = self._check_files(found)
        return found, complaints

    def _check_files(self, checkpoint: Checkpoint) -> tuple[Trace, bool]:
        """Return the trace as it was at the checkpoint, and whether more updates have arrived since then.

        Refuses if a file does not hold any more what it held then.
        """
        state = checkpoint.state
        active = [int(row[0]) for row in state["active"]]
        try:
            whole = Trace.read(self.path / "trace.log")
            trace = whole.rewind(len(state["outcomes"]), active)
            trace.check()
        except (OSError, TraceError) as error:
            fix = "restore it from a backup, or begin a run in another directory"
            raise BadRunDirectory(f"{self.path / 'trace.log'} is gone or damaged ({error}); {fix}") from error
        for name in APPENDED:
            path, length = self.path / name, checkpoint.lengths[name]
            if not path.exists() or path.stat().st_size < length:
                raise BadRunDirectory(f"{path} is shorter than at the last checkpoint; restore it from a backup")
        return trace, trace.iterations < whole.iterations

    def resume(self, checkpoint: Checkpoint, config: dict[str, Any], package: bytes) -> Recorder:
        """Take every file back to where it was at the checkpoint that `newest` found; return the recorder to use.

        Damaged checkpoints are put aside under another name: they are newer than what the files now hold.
        """
        trace, shortened = self._rewound
        with writing(self.path):
            for path in self._damaged:
                path.rename(path.with_name(f"{path.name}.damaged"))
            (self.path / STARTING).unlink(missing_ok=True)  # a kill right after the first checkpoint left it
            if shortened:  # trace.parquet would contradict the other files
                self.continued()
            for name in APPENDED:
                os.truncate(self.path / name, checkpoint.lengths[name])
            self._log = TraceLog.reopen(self.path / "trace.log", trace)
            self._describe(config, package)
        return Recorder.resume(trace)

    def continued(self) -> None:
        """Remove the trace of the end before the resume: read in place of trace.log, it would pass for the newer."""
        (self.path / "trace.parquet").unlink(missing_ok=True)

    def _describe(self, config: dict[str, Any], package: bytes) -> None:
        """What the run is, and open files for what it does; a resumed one may have a mended task."""
        for folder in (self.path, self.path / "checkpoints"):
            for file in folder.glob(".*.tmp"):  # a kill left it half written: nobody else writes here
                file.unlink()
        write_text(self.path / "run.json", json.dumps({"format": FORMAT, **config}, indent=2) + "\n")
        write_bytes(self.path / "job.pkl", package)
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
        with writing(self.path):
            self._log.flush(recorder, sync=sync)
            for name, pending in self._pending.items():
                while pending:
                    del pending[: os.write(self._files[name], pending)]  # at once: what is written stays so
                if sync:
                    os.fsync(self._files[name])

    def checkpoint(self, state: dict[str, Any], seconds: float, recorder: Recorder, keep: int) -> Path:
        """Write a checkpoint, after everything that it relies on."""
        self.flush(recorder, sync=True)
        lengths = {name: os.fstat(descriptor).st_size for name, descriptor in self._files.items()}
        with writing(self.path):
            written = checkpoints.write(self.path / "checkpoints", Checkpoint(state, lengths, seconds), keep)
            (self.path / STARTING).unlink(missing_ok=True)
        return written

    def finish(self, trace: Trace, kept: tuple[int, Vector] | None) -> None:
        """Write the trace as one Parquet file, and of a run that diverged the model that was ``kept``."""
        with writing(self.path):
            trace.write(self.path / "trace.parquet")
            if kept is None:  # a resume may have led around the divergence
                (self.path / LAST_FINITE).unlink(missing_ok=True)
            else:
                checkpoints.write_model(self.path / LAST_FINITE, *kept)

    def close(self) -> None:
        """Close the files and let others in; where no run has begun, take away what was made for it."""
        with ExitStack() as closing:
            if self._lock >= 0:
                closing.callback(os.close, self._lock)
                closing.callback(self._forget)
                self._lock = -1
            for descriptor in self._files.values():
                closing.callback(os.close, descriptor)
            self._files.clear()
            if self._log is not None:
                log, self._log = self._log, None
                with writing(self.path):
                    log.close()

    def _forget(self) -> None:
        with suppress(OSError):  # somebody else has something in it by now, or took it away himself
            if [file.name for file in self.path.iterdir()] == [".lock"]:
                (self.path / ".lock").unlink()
                for folder in self._made:
                    folder.rmdir()


def in_use(path: Path) -> bool:
    """Whether a process is training in it: whoever does holds the lock. Ours is given back at once."""
    if not locks.AVAILABLE:
        return False  # nothing trains on such a system
    try:
        descriptor = os.open(path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it is not there, or this user may not open it and so cannot know
        return False
    try:
        return not locks.take(descriptor, shared=True)
    finally:
        os.close(descriptor)
