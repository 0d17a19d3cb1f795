"""Files that are there whole or not at all, after a kill or a power cut at any instant."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Give a file to write that takes the place of ``path`` if the block succeeds, and else disappears."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with temporary.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if not hasattr(os, "O_DIRECTORY"):
        return  # Windows cannot open a directory
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)  # or the new name may not survive a power cut
    finally:
        os.close(directory)


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write a whole file; folders on the way to it are made."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target) as file:
        file.write(data)
    return target


def write_text(path: str | Path, text: str) -> Path:
    """The same for text, in UTF-8."""
    return write_bytes(path, text.encode())
