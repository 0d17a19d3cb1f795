"""The directory of a run. Growing files are only appended to, and a checkpoint remembers their lengths.

::

    run.json            the options of the run and the versions of all libraries; written first
    job.pkl             the task and the method, if run.json cannot describe them. A pickle can run any code, so it is
                        read only if the current user owns it or passes trust=True
    initial.safetensors ``x``, the initial model, if run.json names the task or job.pkl holds it without its parameters
    trace.log           the running trace; trace.parquet once the run has ended
    metrics.jsonl       one line per evaluation
    journal.jsonl       events, see `asyncsgd.run.journal`, and the diagnosis
    fingerprints.bin    four bytes per arrival: a checksum over its update (some coordinates of a long one)
    noise.jsonl         seeds of noise, a new one for every start and resume; a resume never removes a line
    checkpoints/        the newest few checkpoints; the first one is written before any job is handed out
    checksums.json      the list of all files, see `asyncsgd.run.checksums`
    last_finite.safetensors   if the run diverged: ``x``, see `asyncsgd.run.last_good`, and its ``iteration``
    best.safetensors    the best model, if the run has the callback `asyncsgd.callbacks.SaveBest`
    .starting           exists from the start of a run to its first checkpoint
    damaged-1/, ...     damaged files that `asyncsgd repair` has moved
    report.html, ...    files that other commands write

Only the owner may read these files: folders have mode 0700 and files 0600, independent of the umask.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from asyncsgd import _files
from asyncsgd._files import DirectoryLock, create, in_use, write_bytes, writing
from asyncsgd.core.errors import BadCheckpoint, BadParameter, BadRunDirectory, CannotWrite, Damage, NoRun, TraceError
from asyncsgd.core.vectors import Vector
from asyncsgd.run import checkpoints as checkpoints
from asyncsgd.run.checkpoints import BackgroundCall, Checkpoint
from asyncsgd.run.checksums import BEST, JOB, NAME, VOLATILE, Checksums, Whole, check_listed
from asyncsgd.run.noise_log import NOISE_LOGS, remember_noise, tail_mark
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
"""The initial model: importing a task again may give another one, and a pickled task may not hold it."""
LAST_FINITE = "last_finite.safetensors"
FINGERPRINTS = "fingerprints.bin"
APPENDED = ("metrics.jsonl", "journal.jsonl", FINGERPRINTS)

__all__ = ["BadRunDirectory", "CannotWrite", "NoRun", "RunDirectory", "in_use"]
__all__ += ["read_config", "read_lines", "read_metrics", "read_trace"]


class Saved(NamedTuple):
    """A checkpoint that was written, and when, by `time.monotonic`."""

    path: Path
    at: float


class RunDirectory:
    """The files of one run, locked while the run is written.

    Files are appended to in `flush`, and checksums.json is replaced only after the files that it lists were written,
    so a kill at any moment leaves a directory that can be resumed.

    The loop's thread calls every method. While a checkpoint is written, a second thread runs `_write_checkpoint`. That
    thread alone uses ``_listed`` and replaces checksums.json then; methods that need them wait for it first. The loop's
    thread only appends meanwhile, behind the lengths that the checkpoint remembers.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = as_path(path)
        self._files: dict[str, int] = {}
        self._pending: dict[str, bytearray] = {
            name: bytearray() for name in APPENDED
        }  # lines and blocks with checksums, not yet written
        self._chains: dict[str, int] = dict.fromkeys(APPENDED, 0)  # checksums including what is not yet written
        self._marks: dict[str, Mark] = dict.fromkeys(APPENDED, Mark())  # length and checksum of what has been written
        self._fingerprints = bytearray()  # for the next block
        self._listed = Checksums()
        self._log: TraceLog | None = None
        self._damaged: list[Path] = []  # checkpoints that are newer than the one that can be read
        self._writer: BackgroundCall[Saved] = BackgroundCall()
        if not _files.AVAILABLE:
            fix = "leave it out, or train on Linux or macOS"
            raise BadParameter("directory", str(path), "cannot be locked on this system", fix)
        try:
            self._lock = DirectoryLock(self.path)
        except OSError as error:
            problem = f"cannot be made or written to ({error.strerror})"
            raise BadParameter("directory", str(path), problem, "choose another") from error

    # ------------------------------------------------------------------------------------------ start and resume

    @property
    def begun(self) -> bool:
        """Whether the directory holds a run."""
        return (self.path / "run.json").exists()

    def check(self, *, resume: bool) -> None:
        """Refuse to start where something of a run would be lost, and to resume where something is missing."""
        check_complete(self.path)
        if self.begun and not resume:
            fix = "pass resume=True to continue it, or choose another directory"
            raise BadParameter("directory", str(self.path), "already contains a run", fix)
        if self.begun:
            read_config(self.path)
            check_resumable(self.path)
            self._listed = check_listed(
                self.path, but=("checkpoints/", *JOB)
            )  # `newest` falls back to older checkpoints

    def begin(
        self, config: dict[str, Any], package: bytes | None, recorder: Recorder, initial: Vector | None = None
    ) -> None:
        """Start a new run. Files removed here belong to a start without a checkpoint, as `check` has made sure."""
        with writing(self.path, "start again with resume=True or --resume, or choose another directory"):
            os.close(create(self.path / STARTING, flags=0))
            for name in (*APPENDED, "trace.log", NAME, INITIAL, BEST):
                (self.path / name).unlink(missing_ok=True)
            self._listed = Checksums()
            self._describe(config, package, initial)
            self._log = TraceLog(self.path / "trace.log")
            self._log.flush(recorder)

    def make_private(self) -> None:
        """Let only the owner open the directory: noise seeds and client updates are as secret as the clients' data."""
        try:
            self.path.chmod(0o700)
        except OSError as error:
            fix = "choose one that you own, on a file system with permissions"
            problem = f"cannot be made private ({error.strerror})"
            raise BadParameter("directory", str(self.path), problem, fix) from error

    def newest(self) -> tuple[Checkpoint | None, list[str]]:
        """Return the newest intact checkpoint (None if there is none) and notes about what is lost after it.

        Refuses a directory in which a file is shorter than the checkpoint needs. Changes nothing.
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
            fix = "restore one from a backup, or start a run in another directory"
            raise BadCheckpoint(f"{self.path} has no checkpoint that can be read: {'; '.join(complaints)}; {fix}")
        if found is not None:
            trace, shortened = self._rewound = self._check_files(found)
            if shortened and (lost := logs.arrivals(self.path / "trace.log") - trace.iterations) > 0:
                point = f"the last checkpoint, iteration {found.iteration:,}"
                complaints.append(f"the run continues from {point}; later updates are lost ({lost:,} were recorded)")
        return found, complaints

    def _check_files(self, checkpoint: Checkpoint) -> tuple[Trace, bool]:
        """Return the trace at the checkpoint, and whether more updates arrived after it.

        Refuses a directory in which a file no longer holds what it held at the checkpoint.
        """
        fix = "restore it from a backup, or start a run in another directory"
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

    def resume(
        self, checkpoint: Checkpoint, config: dict[str, Any], package: bytes | None, initial: Vector | None = None
    ) -> Recorder:
        """Cut every file back to the checkpoint that `newest` found, and return the recorder to use.

        Damaged checkpoints are renamed: they are newer than the files after the cut.
        """
        trace, shortened = self._rewound
        with writing(self.path):
            # First the list, then the files, so that after a kill at any moment every listed file exists.
            here = {f"checkpoints/{path.name}" for path in checkpoints.listed(self.path / "checkpoints")}
            here -= {f"checkpoints/{path.name}" for path in self._damaged}
            kept = {name: entry for name, entry in self._listed.whole.items() if name in here}
            if not shortened and "trace.parquet" in self._listed.whole:
                kept["trace.parquet"] = self._listed.whole["trace.parquet"]
            for name in here - kept.keys():  # a kill came between writing the checkpoint and listing it
                kept[name] = Whole.of_file(self.path / name)
            self._listed.whole = kept
            self._listed.marks |= checkpoint.marks
            self._listed.write(self.path)
            for path in self._damaged:
                path.rename(path.with_name(f"{path.name}.damaged"))
            (self.path / STARTING).unlink(missing_ok=True)  # left by a kill right after the first checkpoint
            if shortened:  # trace.parquet holds more updates than the other files now
                (self.path / "trace.parquet").unlink(missing_ok=True)
            for name in APPENDED:
                os.truncate(self.path / name, checkpoint.marks[name].size)
                self._marks[name], self._chains[name] = checkpoint.marks[name], checkpoint.marks[name].chain
            self._log = TraceLog.shorten(self.path / "trace.log", checkpoint.marks["trace.log"], trace)
            self._describe(config, package, initial)
            self._seal()
        recorder = Recorder.resume(trace)
        recorder.forget()
        return recorder

    def continued(self) -> None:
        """Remove trace.parquet of the earlier end: readers would prefer it to trace.log, which is newer."""
        self._writer.wait()
        if (self.path / "trace.parquet").exists():
            self._unlist("trace.parquet")
            (self.path / "trace.parquet").unlink()

    def remember_noise(self, iteration: int, seed: int) -> None:
        """Record the seed that noise is drawn from since this iteration."""
        self._writer.wait()
        remember_noise(self.path, iteration, seed)
        if not (self.path / STARTING).exists():
            self._seal()

    def _describe(self, config: dict[str, Any], package: bytes | None, initial: Vector | None) -> None:
        """Write run.json and job.pkl, and open the growing files. A resumed run may have a corrected task."""
        for folder in (self.path, self.path / "checkpoints"):
            for file in folder.glob(".*.tmp"):  # left half written by a kill; the lock keeps other writers out
                file.unlink()
        self._write("run.json", config_text(config).encode())
        if (self.path / INITIAL).exists():  # a resume keeps the initial model
            self._listed.whole[INITIAL] = Whole.of_file(self.path / INITIAL)
        elif initial is not None:
            self._listed.whole[INITIAL] = write_arrays(self.path / INITIAL, {"x": initial}, {})
        if package is None:
            self._listed.whole.pop("job.pkl", None)
            (self.path / "job.pkl").unlink(missing_ok=True)
        else:
            self._write("job.pkl", package)
        for name in APPENDED:
            self._files[name] = create(self.path / name, os.O_APPEND)

    def _write(self, name: str, data: bytes) -> None:
        """Write a whole file; the next `_seal` lists it."""
        write_bytes(self.path / name, data, private=True)
        self._listed.whole[name] = Whole.of(data)

    def _unlist(self, *names: str) -> None:
        """Remove files from the list before they are replaced or deleted."""
        for name in names:
            self._listed.whole.pop(name, None)
        self._listed.write(self.path)

    @property
    def _written(self) -> dict[str, Mark]:
        """Length and checksum of every growing file."""
        assert self._log is not None
        return {**self._marks, "trace.log": self._log.mark}

    @property
    def _all_marks(self) -> dict[str, Mark]:
        """The same, and of the noise logs."""
        return self._written | {name: tail_mark(self.path / name) for name in NOISE_LOGS if (self.path / name).exists()}

    def _seal(self, marks: dict[str, Mark] | None = None) -> None:
        """Write checksums.json: every file written so far must exist from now on, growing ones up to ``marks``."""
        self._listed.marks = self._all_marks if marks is None else marks
        self._listed.present = [name for name in VOLATILE if (self.path / name).exists()]
        self._listed.write(self.path)

    # ------------------------------------------------------------------------------------------ during the run

    def add_fingerprint(self, mark: bytes) -> None:
        """Add the fingerprint of an arrival; the next flush writes it."""
        self._fingerprints += mark

    def add_line(self, name: str, row: Mapping[str, Any]) -> None:
        """Add one line of JSON; the next flush writes it."""
        data, self._chains[name] = line(row, self._chains[name])
        self._pending[name] += data

    def flush(self, recorder: Recorder, *, sync: bool = False) -> None:
        """Write everything to the operating system; with ``sync``, to the disk."""
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
                    del pending[
                        : os.write(self._files[name], pending)
                    ]  # drop what was written at once, so that an error cannot write it twice
                self._marks[name] = Mark(os.fstat(self._files[name]).st_size, self._chains[name])
                if sync:
                    os.fsync(self._files[name])

    def begin_checkpoint(self, state: dict[str, Any], seconds: float, recorder: Recorder, keep: int) -> None:
        """Start to write a checkpoint in another thread, which owns ``state`` from now on; `written` returns it."""
        self.flush(recorder)
        checkpoint, marks = Checkpoint(state, self._written, seconds), self._all_marks
        self._writer.start(lambda: self._write_checkpoint(checkpoint, marks, keep))

    def written(self, *, wait: bool) -> Saved | None:
        """Return the checkpoint that was begun, once; None if it is not written yet. Raise the error of its thread."""
        return self._writer.result(wait=wait)

    def _write_checkpoint(self, checkpoint: Checkpoint, marks: dict[str, Mark], keep: int) -> Saved:
        """Write everything that a checkpoint relies on, then the checkpoint, then the list. In the writer's thread.

        ``marks`` are of the moment when the state was copied: what was appended since may not be on the disk yet.
        """
        assert self._log is not None
        folder = self.path / "checkpoints"
        with writing(self.path):
            self._log.sync()
            for descriptor in self._files.values():
                os.fsync(descriptor)
            target = f"checkpoints/{checkpoints.path_of(folder, checkpoint.iteration).name}"
            if target in self._listed.whole:  # saved twice at one iteration, as at the end of a run
                self._unlist(target)
            written, self._listed.whole[target] = checkpoints.write(folder, checkpoint)
            old = checkpoints.listed(folder)[keep:]
            for path in old:
                self._listed.whole.pop(f"checkpoints/{path.name}", None)
            self._seal(marks)
            for path in old:
                path.unlink()
            (self.path / STARTING).unlink(missing_ok=True)
        return Saved(written, time.monotonic())

    def trace(self, recorder: Recorder, final_concurrency: int) -> Trace:
        """Return the trace so far, from the disk: memory holds only the jobs in flight."""
        self.flush(recorder)
        trace, _ = logs.read(self.path / "trace.log")
        return replace(trace, final_concurrency=final_concurrency)

    def finish(self, trace: Trace, kept: tuple[int, Vector] | None) -> None:
        """Write the trace as one Parquet file and, if the run diverged, the last finite model (``kept``)."""
        self._writer.wait()
        with writing(self.path):
            self._unlist("trace.parquet", LAST_FINITE)
            write_parquet(trace, self.path / "trace.parquet", private=True)
            self._listed.whole["trace.parquet"] = Whole.of_file(self.path / "trace.parquet")
            if kept is None:  # the run may have diverged before a resume
                (self.path / LAST_FINITE).unlink(missing_ok=True)
            else:
                iteration, x = kept
                found = write_arrays(self.path / LAST_FINITE, {"x": x}, {"iteration": str(iteration)})
                self._listed.whole[LAST_FINITE] = found

    def close(self) -> None:
        """Close the files and release the lock. If no run was started, remove the folders made for it."""
        self._writer.wait()  # it uses the files and the lock
        with ExitStack() as closing:
            closing.callback(self._lock.release)
            for descriptor in self._files.values():
                closing.callback(os.close, descriptor)
            self._files.clear()
            if self._log is not None:
                closing.callback(setattr, self, "_log", None)
                with writing(self.path):
                    self._log.close()
                    if not (self.path / STARTING).exists():
                        self._seal()


def mark_of(path: Path, size: int) -> Mark:
    """Return length and checksum of the complete lines or blocks in the first ``size`` bytes of an appended file."""
    with path.open("rb") as file:
        data = file.read(size)
    ends: list[Mark] = [mark for _, mark in (blocks(data) if path.name == FINGERPRINTS else lines(data))]
    return ends[-1] if ends else Mark()
