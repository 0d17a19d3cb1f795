"""A run on disk. Everything but the checkpoints is only ever appended to, and a checkpoint remembers the lengths.

::

    run.json            what was asked for, and with which versions of everything; written first
    job.pkl             the task and the method, for `replay`, where they cannot be named in run.json. A pickle can run
                        any code: it is read only if this user owns it, or says that it is to be trusted
    initial.safetensors ``x``, the model that a task with a name began at
    trace.log           the running trace; trace.parquet once the run has ended
    metrics.jsonl       one line per evaluation
    journal.jsonl       what happened, see `asyncsgd.run.journal`; the diagnosis
    fingerprints.bin    four bytes per arrival: a checksum over its update (some coordinates of a long one)
    noise.jsonl         seeds of noise, a new one for every start and resume; a resume takes nothing of it back
    checkpoints/        the last few, the newest is the last iteration that nothing can take away; the first one is
                        written before any job is handed out
    checksums.json      what must be there, see `asyncsgd.run.checksums`
    last_finite.safetensors   of a run that diverged: ``x``, the last model with finite metrics, and its ``iteration``
    .starting           only from the start of a run to its first checkpoint: a start that was killed is started again
    damaged-1/, ...     what `asyncsgd repair` has set aside
    report.html, ...    what others make of it

Only the owner may read any of it: folders have mode 0700 and files 0600, whatever the umask says.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from asyncsgd import _files
from asyncsgd._files import create, make_folder, write_bytes, writing
from asyncsgd.core.errors import BadCheckpoint, BadParameter, BadRunDirectory, CannotWrite, Damage, NoRun, TraceError
from asyncsgd.core.vectors import Vector
from asyncsgd.run import checkpoints as checkpoints
from asyncsgd.run.checkpoints import Checkpoint
from asyncsgd.run.checksums import JOB, NAME, VOLATILE, Checksums, Whole, check_listed
from asyncsgd.run.noise_log import LEDGERS, remember_noise, tail_mark
from asyncsgd.run.read import (
    STARTING,
    as_path,
    check_complete,
    check_resumable,
    config_text,
    read_config,
    read_lines,
    read_metrics,
    read_trace,
)
from asyncsgd.trace import Recorder, Trace, TraceLog
from asyncsgd.trace import log as logs
from asyncsgd.trace.arrays import write_arrays
from asyncsgd.trace.files import write as write_parquet
from asyncsgd.trace.sealed import Mark, block, blocks, line, lines

INITIAL = "initial.safetensors"
"""The model that a task with a name began at: another import of it may begin elsewhere."""
LAST_FINITE = "last_finite.safetensors"
FINGERPRINTS = "fingerprints.bin"
APPENDED = ("metrics.jsonl", "journal.jsonl", FINGERPRINTS)

__all__ = ["BadRunDirectory", "CannotWrite", "NoRun", "RunDirectory", "in_use"]
__all__ += ["read_config", "read_lines", "read_metrics", "read_trace"]


class RunDirectory:
    """One run's files, locked while it is written to."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path(path)
        self._files: dict[str, int] = {}
        self._pending: dict[str, bytearray] = {name: bytearray() for name in APPENDED}  # sealed, to be written
        self._chains: dict[str, int] = dict.fromkeys(APPENDED, 0)  # with what is to be written
        self._marks: dict[str, Mark] = dict.fromkeys(APPENDED, Mark())  # what has been written whole
        self._fingerprints = bytearray()  # those of the next block
        self._listed = Checksums()
        self._log: TraceLog | None = None
        self._damaged: list[Path] = []  # checkpoints, newer than the one that can be read
        if not _files.AVAILABLE:
            fix = "leave it out, or train on Linux or macOS"
            raise BadParameter("directory", str(path), "cannot be locked on this system", fix)
        try:
            self._made = make_folder(self.path)
            self._lock = self._take()
        except OSError as error:
            problem = f"cannot be made or written to ({error.strerror})"
            raise BadParameter("directory", str(path), problem, "choose another") from error

    def _take(self) -> int:
        """The lock; one that its last owner took away with him is no lock any more."""
        while True:
            lock = create(self.path / ".lock", flags=0)
            while not _files.take(lock):
                if not _files.take(lock, shared=True):  # else somebody only looked, see `in_use`: once more
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
            self._listed = check_listed(self.path, but=("checkpoints/", *JOB))  # `newest` falls back to older ones

    def begin(
        self, config: dict[str, Any], package: bytes | None, recorder: Recorder, initial: Vector | None = None
    ) -> None:
        """Start a new run. `check` has made sure that whatever is removed here is of a start without a checkpoint."""
        with writing(self.path, "start again with resume=True or --resume, or choose another directory"):
            os.close(create(self.path / STARTING, flags=0))
            for name in (*APPENDED, "trace.log", NAME, INITIAL):
                (self.path / name).unlink(missing_ok=True)
            self._listed = Checksums()
            if initial is not None:
                write_arrays(self.path / INITIAL, {"x": initial}, {})
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
        there = {f"checkpoints/{path.name}" for path in checkpoints.listed(self.path / "checkpoints")}
        gone = [name for name in self._listed.whole if name.startswith("checkpoints/") and name not in there]
        complaints = [f"{self.path / name} is gone; an older checkpoint is used" for name in gone[-1:]]
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
        fix = "restore it from a backup, or begin a run in another directory"
        path, mark = self.path / "trace.log", checkpoint.marks["trace.log"]
        try:
            trace, _ = logs.read(path, mark)
            trace.check()
        except (OSError, TraceError) as error:
            raise BadRunDirectory(f"{path} is gone or damaged ({error}); {fix}") from error
        for name in APPENDED:
            path = self.path / name
            try:
                if mark_of(path, checkpoint.marks[name].size) != checkpoint.marks[name]:
                    raise BadRunDirectory(f"{path} is damaged: it does not hold what it held at the checkpoint; {fix}")
            except (OSError, Damage) as error:
                raise BadRunDirectory(f"{path} is gone or damaged ({error}); {fix}") from error
        return trace, (self.path / "trace.log").stat().st_size > mark.size + logs.END

    def resume(self, checkpoint: Checkpoint, config: dict[str, Any], package: bytes | None) -> Recorder:
        """Take every file back to where it was at the checkpoint that `newest` found; return the recorder to use.

        Damaged checkpoints are put aside under another name: they are newer than what the files now hold.
        """
        trace, shortened = self._rewound
        with writing(self.path):
            # First the list, then the files: whenever a kill comes, what is listed is there.
            here = {f"checkpoints/{path.name}" for path in checkpoints.listed(self.path / "checkpoints")}
            here -= {f"checkpoints/{path.name}" for path in self._damaged}
            kept = {name: entry for name, entry in self._listed.whole.items() if name in here}
            if not shortened and "trace.parquet" in self._listed.whole:
                kept["trace.parquet"] = self._listed.whole["trace.parquet"]
            for name in here - kept.keys():  # a kill came between the checkpoint and the list
                kept[name] = Whole.of((self.path / name).read_bytes())
            self._listed.whole = kept
            self._listed.marks |= checkpoint.marks
            self._listed.write(self.path)
            for path in self._damaged:
                path.rename(path.with_name(f"{path.name}.damaged"))
            (self.path / STARTING).unlink(missing_ok=True)  # a kill right after the first checkpoint left it
            if shortened:  # trace.parquet would contradict the other files
                (self.path / "trace.parquet").unlink(missing_ok=True)
            for name in APPENDED:
                os.truncate(self.path / name, checkpoint.marks[name].size)
                self._marks[name], self._chains[name] = checkpoint.marks[name], checkpoint.marks[name].chain
            self._log = TraceLog.shorten(self.path / "trace.log", checkpoint.marks["trace.log"], trace)
            self._describe(config, package)
            self._seal()
        recorder = Recorder.resume(trace)
        recorder.forget()
        return recorder

    def continued(self) -> None:
        """Remove the trace of the end before the resume: read in place of trace.log, it would pass for the newer."""
        if (self.path / "trace.parquet").exists():
            self._unlist("trace.parquet")
            (self.path / "trace.parquet").unlink()

    def remember_noise(self, iteration: int, seed: int) -> None:
        """Write down the seed that noise is drawn from, since this iteration."""
        remember_noise(self.path, iteration, seed)
        if not (self.path / STARTING).exists():
            self._seal()

    def _describe(self, config: dict[str, Any], package: bytes | None) -> None:
        """What the run is, and open files for what it does; a resumed one may have a mended task."""
        for folder in (self.path, self.path / "checkpoints"):
            for file in folder.glob(".*.tmp"):  # a kill left it half written: nobody else writes here
                file.unlink()
        self._write("run.json", config_text(config).encode())
        if (self.path / INITIAL).exists():  # a resume keeps where the run began
            self._listed.whole[INITIAL] = Whole.of((self.path / INITIAL).read_bytes())
        if package is None:
            self._listed.whole.pop("job.pkl", None)
            (self.path / "job.pkl").unlink(missing_ok=True)
        else:
            self._write("job.pkl", package)
        for name in APPENDED:
            self._files[name] = create(self.path / name, os.O_APPEND)

    def _write(self, name: str, data: bytes) -> None:
        """Write a whole file, to be listed with the next `_seal`."""
        write_bytes(self.path / name, data, private=True)
        self._listed.whole[name] = Whole.of(data)

    def _unlist(self, *names: str) -> None:
        """Take files off the list, before they are replaced or removed."""
        for name in names:
            self._listed.whole.pop(name, None)
        self._listed.write(self.path)

    def _seal(self) -> None:
        """Write checksums.json: all that is there by now must stay."""
        assert self._log is not None
        ledgers = {name: tail_mark(self.path / name) for name in LEDGERS if (self.path / name).exists()}
        self._listed.marks = {**self._marks, "trace.log": self._log.mark, **ledgers}
        self._listed.present = [name for name in VOLATILE if (self.path / name).exists()]
        self._listed.write(self.path)

    # ------------------------------------------------------------------------------------------ going on

    def add_fingerprint(self, mark: bytes) -> None:
        """Add the fingerprint of an arrival, with the next flush."""
        self._fingerprints += mark

    def add_line(self, name: str, row: Mapping[str, Any]) -> None:
        """Add one line of JSON, with the next flush."""
        data, self._chains[name] = line(row, self._chains[name])
        self._pending[name] += data

    def flush(self, recorder: Recorder, *, sync: bool = False) -> None:
        """Hand everything to the operating system; with ``sync``, to the disk."""
        assert self._log is not None
        if self._fingerprints:
            data, self._chains[FINGERPRINTS] = block(bytes(self._fingerprints), self._chains[FINGERPRINTS])
            self._pending[FINGERPRINTS] += data
            self._fingerprints.clear()
        with writing(self.path):
            self._log.flush(recorder, sync=sync)
            recorder.forget()
            for name, pending in self._pending.items():
                while pending:
                    del pending[: os.write(self._files[name], pending)]  # at once: what is written stays so
                self._marks[name] = Mark(os.fstat(self._files[name]).st_size, self._chains[name])
                if sync:
                    os.fsync(self._files[name])

    def checkpoint(self, state: dict[str, Any], seconds: float, recorder: Recorder, keep: int) -> Path:
        """Write a checkpoint, after everything that it relies on."""
        assert self._log is not None
        self.flush(recorder, sync=True)
        marks = {**self._marks, "trace.log": self._log.mark}
        folder = self.path / "checkpoints"
        with writing(self.path):
            written, data = checkpoints.write(folder, Checkpoint(state, marks, seconds))
            self._listed.whole[f"checkpoints/{written.name}"] = Whole.of(data)
            old = checkpoints.listed(folder)[keep:]
            for path in old:
                self._listed.whole.pop(f"checkpoints/{path.name}", None)
            self._seal()
            for path in old:
                path.unlink()
            (self.path / STARTING).unlink(missing_ok=True)
        return written

    def trace(self, recorder: Recorder, final_concurrency: int) -> Trace:
        """Return the trace so far: all of it is on disk, so that memory holds no more than the jobs in flight."""
        self.flush(recorder)
        trace, _ = logs.read(self.path / "trace.log")
        return replace(trace, final_concurrency=final_concurrency)

    def finish(self, trace: Trace, kept: tuple[int, Vector] | None) -> None:
        """Write the trace as one Parquet file, and of a run that diverged the model that was ``kept``."""
        with writing(self.path):
            self._unlist("trace.parquet", LAST_FINITE)
            write_parquet(trace, self.path / "trace.parquet", private=True)
            self._listed.whole["trace.parquet"] = Whole.of((self.path / "trace.parquet").read_bytes())
            if kept is None:  # a resume may have led around the divergence
                (self.path / LAST_FINITE).unlink(missing_ok=True)
            else:
                iteration, x = kept
                data = write_arrays(self.path / LAST_FINITE, {"x": x}, {"iteration": str(iteration)})
                self._listed.whole[LAST_FINITE] = Whole.of(data)

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
                closing.callback(setattr, self, "_log", None)
                with writing(self.path):
                    self._log.close()
                    if not (self.path / STARTING).exists():
                        self._seal()

    def _forget(self) -> None:
        with suppress(OSError):  # somebody else has something in it by now, or took it away himself
            if [file.name for file in self.path.iterdir()] == [".lock"]:
                (self.path / ".lock").unlink()
                for folder in self._made:
                    folder.rmdir()


def mark_of(path: Path, size: int) -> Mark:
    """Where the first ``size`` bytes of an appended file stand, and their checksum; of whole lines or blocks only."""
    with path.open("rb") as file:
        data = file.read(size)
    ends: list[Mark] = [mark for _, mark in (blocks(data) if path.name == FINGERPRINTS else lines(data))]
    return ends[-1] if ends else Mark()


def in_use(path: Path) -> bool:
    """Whether a process is training in it: whoever does holds the lock. Ours is given back at once."""
    if not _files.AVAILABLE:
        return False  # nothing trains on such a system
    try:
        descriptor = os.open(path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # it is not there, or this user may not open it and so cannot know
        return False
    try:
        return not _files.take(descriptor, shared=True)
    finally:
        os.close(descriptor)
