"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path


def write_bytes(path: str | Path, data: bytes) -> Path:
    """Write beside the file, then put it in place in one step."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    beside = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        beside.write_bytes(data)
        beside.replace(target)
    except BaseException:
        beside.unlink(missing_ok=True)
        raise
    return target


def write_text(path: str | Path, text: str) -> Path:
    """The same for text, in UTF-8."""
    return write_bytes(path, text.encode())
