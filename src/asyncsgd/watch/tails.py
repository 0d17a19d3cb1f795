"""What was appended to a file since the last look. Every byte is read once, however long the run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import BadTraceFile, Damage, Torn
from asyncsgd.trace import Jobs
from asyncsgd.trace.log import MAGIC, batch, metadata
from asyncsgd.trace.sealed import Mark, blocks, lines

CHUNK = 1 << 20


class Tail:
    """A file that grows, or is not there yet. The file stays open, so that its number cannot become another's."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None
        self._offset = self._chain = 0

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
        self._file = None
        self._offset = self._chain = 0


class Lines(Tail):
    """Lines of JSON. A last one without its end has not been written whole yet."""

    def news(self) -> Iterator[dict[str, Any]]:
        """The lines that are new."""
        if self._file is None:
            return
        rest = b""
        while chunk := os.pread(self._file.fileno(), CHUNK, self._offset + len(rest)):
            rest += chunk
            seen = self._offset
            try:
                for row, mark in lines(rest, Mark(self._offset, self._chain)):
                    self._offset, self._chain = mark.size, mark.chain
                    yield row
            except (Damage, ValueError) as error:
                raise Torn(f"{self.path} is damaged ({error})") from error
            rest = rest[self._offset - seen :]


class Log(Tail):
    """Blocks of a running trace; see `asyncsgd.trace.TraceLog`. A torn last one is tried again at the next look."""

    def news(self) -> Iterator[Jobs]:
        """The blocks that are new: jobs as they were assigned, and jobs that have ended."""
        if self._file is None:
            return
        if self._offset == 0:
            self._file.seek(0)
            begin = self._file.read(len(MAGIC))
            if begin != MAGIC:
                if MAGIC.startswith(begin):
                    return  # it has not been written yet
                fix = "use the asyncsgd that writes it"
                raise BadTraceFile(f"{self.path} is not a log of this version of asyncsgd; {fix}")
            self._offset = len(MAGIC)
        size = os.fstat(self._file.fileno()).st_size
        self._file.seek(self._offset)
        data = self._file.read(max(0, size - self._offset))
        try:
            for payload, mark in blocks(data, Mark(self._offset, self._chain)):
                first, self._offset, self._chain = self._offset == len(MAGIC), mark.size, mark.chain
                if first:
                    metadata(self.path, payload)  # refuses another format
                elif payload:
                    yield batch(self.path, payload)
        except Damage as error:
            raise Torn(f"{self.path} is damaged ({error})") from error
