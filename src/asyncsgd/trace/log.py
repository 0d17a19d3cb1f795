"""The running log: a trace that is appended while the run goes on, and readable after a kill at any instant.

It is an Arrow IPC stream: a header, then one record batch per flush. A batch holds the jobs assigned since
the last flush and those that ended since; a later row of a job supersedes an earlier one. So the batches up
to any of them are the whole trace as it stood at that flush.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import numpy as np

from asyncsgd.core.errors import TraceError
from asyncsgd.core.events import Outcome
from asyncsgd.trace.atomic import replacing
from asyncsgd.trace.columns import DTYPES, Ints, Jobs

if TYPE_CHECKING:
    from asyncsgd.trace.recorder import Recorder
    from asyncsgd.trace.trace import Trace

END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""How an Arrow stream says that it was closed in good order."""


class TraceLog:
    """Appends a recorder's news to a file, one batch per ``flush``.

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
        """Begin a new file; an existing one is never overwritten."""
        self.path = Path(path)
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            fix = "go on with it by TraceLog.reopen(path), or choose another name"
            raise FileExistsError(error.errno, f"there is a log already; {fix}", str(self.path)) from None
        self._start(size=0, jobs=0, in_flight=np.empty(0, dtype=np.int64))

    @classmethod
    def reopen(cls, path: str | PathLike[str], trace: Trace | None = None) -> TraceLog:
        """Go on with a log after a crash: keep what can be read of it, or ``trace`` (a rewound one) instead.

        The kept rows are written to a new file that then takes the old one's place, so that a kill in between
        loses nothing and a torn tail disappears.
        """
        from asyncsgd.trace.files import read

        trace = read(path) if trace is None else trace
        data = _header(trace.metadata) + _batch(trace.jobs)
        with replacing(Path(path)) as file:
            file.write(data)
            file.flush()
            descriptor = os.dup(file.fileno())
        log = cls.__new__(cls)
        log.path, log._file = Path(path), descriptor
        log._start(size=len(data), jobs=len(trace), in_flight=np.flatnonzero(trace.jobs.in_flight))
        return log

    def _start(self, size: int, jobs: int, in_flight: Ints) -> None:
        self._size = size
        self._jobs = jobs
        self._in_flight = in_flight
        self._closed = False

    def flush(self, recorder: Recorder, *, sync: bool = False) -> int:
        """Hand everything that is new to the operating system; return the number of rows written.

        What was flushed survives the death of the process. With ``sync`` it also survives a power cut.
        """
        if self._closed:
            raise TraceError(f"{self.path} is closed; TraceLog.reopen(path) goes on with it")
        if len(recorder) < self._jobs:
            raise TraceError(
                f"{self.path} holds {self._jobs} jobs, the recorder only {len(recorder)};"
                " a log belongs to one recorder: Recorder.resume(Trace.read(path)) goes on with this one"
            )
        outcome = recorder.outcome
        new = np.arange(self._jobs, len(recorder))
        ended = self._in_flight[outcome[self._in_flight] != Outcome.IN_FLIGHT]
        rows = np.concatenate((ended, new))
        data = b"" if self._size else _header(recorder.metadata)
        if len(rows):
            data += _batch(recorder.rows(rows))
        self._append(data)
        if sync:
            os.fsync(self._file)
        candidates = np.concatenate((self._in_flight, new))
        self._in_flight = candidates[outcome[candidates] == Outcome.IN_FLIGHT]
        self._jobs = len(recorder)
        return len(rows)

    def _append(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                rest = rest[os.write(self._file, rest) :]
        except BaseException:
            os.ftruncate(self._file, self._size)  # a full disk must not leave half a batch with more behind it
            os.lseek(self._file, self._size, os.SEEK_SET)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Mark the end and close the file. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._size:
                self._append(END)
            os.fsync(self._file)
        finally:
            os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


def _header(metadata: Mapping[str, str]) -> bytes:
    from asyncsgd.trace.files import log_schema

    return bytes(log_schema(metadata).serialize())


def _batch(jobs: Jobs) -> bytes:
    import pyarrow as pa

    return bytes(pa.record_batch({name: pa.array(getattr(jobs, name)) for name in DTYPES}).serialize())
