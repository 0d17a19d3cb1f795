"""What was appended to a file since the last look. Every byte is read once, however long the run."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadTraceFile, Torn
from asyncsgd.trace import Jobs
from asyncsgd.trace.columns import DTYPES

CHUNK = 1 << 20


class Tail:
    """A file that grows, or is not there yet. The file stays open, so that its number cannot become another's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._offset = 0

    def look(self) -> bool:
        """Open the file if it is there by now; whether what was read before is void (replaced, shortened)."""
        try:
            now = os.stat(self.path)
        except FileNotFoundError:
            return self._file is not None
        if self._file is None:
            with suppress(FileNotFoundError):  # gone in between
                self._file = self.path.open("rb", buffering=0)  # a buffer would keep what is no longer there
            return False
        mine = os.fstat(self._file.fileno())
        return (mine.st_dev, mine.st_ino) != (now.st_dev, now.st_ino) or now.st_size < self._offset

    @property
    def changed(self) -> float | None:
        """When the file last grew, on the clock of its disk; None if it is not there."""
        return None if self._file is None else os.fstat(self._file.fileno()).st_mtime

    def close(self) -> None:
        """Let go of the file, to begin anew with whatever is there then."""
        if self._file is not None:
            self._file.close()
        self._file, self._offset = None, 0


class Lines(Tail):
    """Lines of JSON. A last one without its end has not been written whole yet."""

    def news(self) -> Iterator[dict[str, Any]]:
        """The lines that are new."""
        if self._file is None:
            return
        rest = b""
        while chunk := os.pread(self._file.fileno(), CHUNK, self._offset + len(rest)):
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                try:
                    row = json.loads(line)
                except ValueError as error:
                    raise Torn(f"{self.path} is damaged ({error})") from error
                if not isinstance(row, dict):
                    raise Torn(f"{self.path} is damaged (a line is no object)")
                self._offset += len(line) + 1
                yield row


class Log(Tail):
    """Batches of a running trace; see `asyncsgd.trace.TraceLog`. A torn last one is tried again at the next look."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._schema: Any = None

    def news(self) -> Iterator[Jobs]:
        """The batches that are new: jobs as they were assigned, and jobs that have ended."""
        import pyarrow as pa

        if self._file is None:
            return
        self._file.seek(self._offset)
        source = pa.PythonFile(self._file, "r")
        while True:
            try:
                message = pa.ipc.read_message(source)
                if self._schema is None:
                    self._schema = self._checked(pa.ipc.read_schema(message))
                    self._offset = self._file.tell()
                    continue
                batch = pa.ipc.read_record_batch(message, self._schema)
                batch.validate(full=True)
            except (pa.ArrowException, OSError, EOFError):
                return  # the end, or a batch that is only half there
            self._offset = self._file.tell()
            yield Jobs(**{name: batch.column(name).to_numpy() for name in DTYPES})

    def _checked(self, schema: Any) -> Any:
        from asyncsgd.trace.files import FORMAT, log_schema

        if not schema.equals(log_schema({})) or (schema.metadata or {}).get(b"asyncsgd.trace") != FORMAT:
            raise BadTraceFile(f"{self.path} is no log of this version of asyncsgd; use the asyncsgd that writes it")
        return schema

    def close(self) -> None:
        super().close()
        self._schema = None
