"""The running log: a trace that grows during the run and is readable after a kill at any instant.

A log starts with a fixed text, followed by checksummed blocks (`asyncsgd.trace.sealed`). The first block is the header:
JSON with the format, the columns and the metadata. Every other block holds the rows of one flush as records: the jobs
assigned since the last flush and those that ended since. A later row of a job replaces an earlier one. So the first k
blocks are the whole trace at the time of their last flush. An empty block ends a log that was closed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from asyncsgd._files import create, replacing
from asyncsgd.core.errors import BadTraceFile, Damage, TraceError
from asyncsgd.core.events import Outcome
from asyncsgd.trace.columns import DTYPES, Ints, Jobs
from asyncsgd.trace.sealed import HEAD, Mark, block, blocks

if TYPE_CHECKING:
    from asyncsgd.trace.recorder import Recorder
    from asyncsgd.trace.trace import Trace

FORMAT = 2
"""The format of logs and Parquet files. It increases when an older reader would misunderstand a file."""
MAGIC = b"asyncsgd trace log\n"
"""The first bytes of every log, in every format."""
ROW = np.dtype([(name, dtype.newbyteorder("<")) for name, dtype in DTYPES.items()])
"""One row as it is written."""
REPAIR = "restore it from a backup, or run `asyncsgd repair DIR` to save what is whole"
"""The fix in messages about a damaged file of a run."""
END = HEAD.size
"""Bytes of the block that ends a closed log."""


class TraceLog:
    """Append what a recorder has recorded to a file, one block per ``flush``.

    >>> import tempfile
    >>> from asyncsgd.core.events import Assign, Job
    >>> from asyncsgd.trace import Recorder, Trace
    >>> path = tempfile.mkdtemp() + "/run.log"
    >>> recorder = Recorder()
    >>> with TraceLog(path) as log:
    ...     recorder.record(0.0, [Assign(Job(0, 3, 0, 0, 0, seed=1), np.zeros(2), 0)], [])
    ...     log.flush(recorder)
    1
    >>> Trace.read(path)
    <Trace: 1 jobs, 0 iterations: 1 in flight>
    """

    def __init__(self, path: str | PathLike[str]) -> None:
        """Create a new file; never overwrite an existing one."""
        self.path = Path(path)
        try:
            self._file = create(self.path)
        except FileExistsError as error:
            fix = "continue it with TraceLog.reopen(path), or choose another name"
            raise FileExistsError(error.errno, f"the log already exists; {fix}", str(self.path)) from None
        self._start(Mark(), jobs=0, in_flight=np.empty(0, dtype=np.int64))

    @classmethod
    def reopen(cls, path: str | PathLike[str], trace: Trace | None = None) -> TraceLog:
        """Continue a log after a crash: keep what can be read of the log, or a rewound ``trace`` instead.

        The kept rows are written to a new file that then replaces the old one, so that a kill in between loses nothing
        and a torn last block disappears.
        """
        trace = read(Path(path))[0] if trace is None else trace
        head, chain = header(trace.metadata)
        rows, chain = block(records(trace.jobs).tobytes(), chain) if len(trace) else (b"", chain)
        with replacing(Path(path), private=True) as file:
            file.write(head + rows)
            file.flush()
            descriptor = os.dup(file.fileno())
        log = cls.__new__(cls)
        log.path, log._file = Path(path), descriptor
        log._start(Mark(len(head + rows), chain), len(trace), np.flatnonzero(trace.jobs.in_flight))
        return log

    @classmethod
    def shorten(cls, path: Path, mark: Mark, trace: Trace) -> TraceLog:
        """Continue a log from ``mark``, when it held ``trace``, and cut off everything after."""
        log = cls.__new__(cls)
        log.path, log._file = path, os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        os.ftruncate(log._file, mark.size)
        os.lseek(log._file, mark.size, os.SEEK_SET)
        log._start(mark, len(trace), np.flatnonzero(trace.jobs.in_flight))
        return log

    def _start(self, mark: Mark, jobs: int, in_flight: Ints) -> None:
        self.mark = mark
        """The length of the log, and its checksum."""
        self._jobs = jobs
        self._in_flight = in_flight
        self._closed = False

    def flush(self, recorder: Recorder, *, sync: bool = False) -> int:
        """Pass all new rows to the operating system; return the number of rows written.

        Flushed rows survive the death of the process. With ``sync`` they also survive a power cut.
        """
        if self._closed:
            raise TraceError(f"{self.path} is closed; TraceLog.reopen(path) continues it")
        if len(recorder) < self._jobs:
            raise TraceError(
                f"{self.path} holds {self._jobs} jobs, the recorder only {len(recorder)};"
                " a log belongs to one recorder: Recorder.resume(Trace.read(path)) continues this one"
            )
        new = np.arange(self._jobs, len(recorder))
        candidates = np.concatenate((self._in_flight, new))
        known = recorder.rows(candidates)
        ended = known.outcome != Outcome.IN_FLIGHT
        changed = ended | (candidates >= self._jobs)
        data, chain = (b"", self.mark.chain) if self.mark.size else header(recorder.metadata)
        if changed.any():
            rows, chain = block(records(known.take(changed)).tobytes(), chain)
            data += rows
        self._append(data, chain)
        if sync:
            os.fsync(self._file)
        self._in_flight = candidates[~ended]
        self._jobs = len(recorder)
        return int(np.count_nonzero(changed))

    def sync(self) -> None:
        """Write flushed rows to the disk. Another thread may call this while the log grows."""
        os.fsync(self._file)

    def _append(self, data: bytes, chain: int) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except BaseException:
            os.ftruncate(self._file, self.mark.size)  # remove half a block that a full disk left
            os.lseek(self._file, self.mark.size, os.SEEK_SET)
            raise
        self.mark = Mark(self.mark.size + len(data), chain)

    def close(self) -> None:
        """Mark the end and close the file. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        try:
            if self.mark.size:
                self._append(*block(b"", self.mark.chain))
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def header(metadata: Mapping[str, str]) -> tuple[bytes, int]:
    """Return the first bytes of a log, header included, and the checksum of its first block."""
    facts = {"format": FORMAT, "columns": _columns(), "metadata": dict(metadata)}
    data, chain = block(json.dumps(facts).encode(), 0)
    return MAGIC + data, chain


def _columns() -> list[list[str]]:
    return [[name, ROW[name].str] for name in DTYPES]


def records(jobs: Jobs) -> NDArray[np.void]:
    """Return rows as the records that are written to the file."""
    records = np.empty(len(jobs), ROW)
    for name in DTYPES:
        records[name] = getattr(jobs, name)
    return records


# ------------------------------------------------------------------------------------- reading


def metadata(path: Path, payload: memoryview) -> dict[str, str]:
    """Return the metadata in the first block of a log; raise for a log of another format."""
    try:
        facts = json.loads(bytes(payload))
        version, columns, found = facts["format"], facts["columns"], facts["metadata"]
    except (ValueError, KeyError, TypeError) as error:
        raise BadTraceFile(f"{path} has a damaged header ({error}); restore it from a backup") from error
    if version != FORMAT or columns != _columns():
        fix = "use the asyncsgd that wrote it"
        raise BadTraceFile(f"{path} has trace format {version}, and this asyncsgd reads {FORMAT}; {fix}")
    return dict(found)


def batch(path: Path, payload: memoryview) -> Jobs:
    """Return the rows of a block."""
    if len(payload) % ROW.itemsize:
        raise BadTraceFile(f"{path} holds a block that is not whole rows; restore it from a backup")
    records = np.frombuffer(payload, ROW)
    return Jobs(**{name: np.ascontiguousarray(records[name], DTYPES[name]) for name in DTYPES})


def arrivals(path: Path) -> int:
    """Return how many updates arrived according to a log; 0 if it cannot be read."""
    try:
        return read(path)[0].iterations
    except (OSError, TraceError):
        return 0


def read(path: Path, mark: Mark | None = None) -> tuple[Trace, Mark]:
    """Return the trace of a log, and where its last whole block of rows ends. With ``mark``, read only up to there.

    A torn last block is left out, and the trace is marked as truncated. Damage raises `BadTraceFile`.
    """
    from asyncsgd.trace.trace import Trace

    data = path.read_bytes()
    if mark is not None:
        data = data[: mark.size]
    if len(data) < len(MAGIC) and MAGIC.startswith(data):
        problem = "is torn" if data else "is empty"
        raise BadTraceFile(f"{path} {problem}: the run ended before its first flush; start it again")
    found: list[Any] = []
    facts: dict[str, str] | None = None
    place, closed = Mark(len(MAGIC)), False
    try:
        for payload, end in blocks(memoryview(data)[len(MAGIC) :], place):
            if closed:
                raise Damage(f"there is more after the end, at byte {place.size}")
            if facts is None:
                facts = metadata(path, payload)
            elif not payload:
                closed = True
                continue
            else:
                found.append(np.frombuffer(payload, ROW) if len(payload) % ROW.itemsize == 0 else batch(path, payload))
            place = end
    except Damage as error:
        raise BadTraceFile(f"{path} is damaged ({error}); {REPAIR}") from error
    if facts is None:
        raise BadTraceFile(f"{path} has no complete header: the run ended in its first flush; start it again")
    if mark is not None and place != mark:
        raise BadTraceFile(f"{path} is damaged (it differs from what it held at the checkpoint); {REPAIR}")
    records = np.concatenate(found) if found else np.empty(0, ROW)
    job = records["job"]
    # Check numbers from the file before using them as indices: a wrong one could allocate or overwrite any memory.
    size = int(job.max(initial=-1)) + 1
    if size > len(job) or job.min(initial=0) < 0 or (np.bincount(job, minlength=size) == 0).any():
        raise BadTraceFile(f"{path}: its jobs are not numbered 0, 1, 2, ... without gaps; it is damaged")
    columns: dict[str, Any] = {}
    for name, dtype in DTYPES.items():
        columns[name] = np.empty(size, dtype)
        columns[name][job] = records[name]  # the last of several rows of a job wins
    return Trace(Jobs(**columns), facts, truncated=place.size + closed * END < len(data)), place
