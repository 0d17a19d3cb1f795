"""What a disk that will not take a file is called, and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncsgd.core.errors import CannotWrite

RESUME = "resume with resume=True, or --resume on the command line"
FIXES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f unlimited)",
}


@contextmanager
def writing(path: Path, then: str = RESUME) -> Iterator[None]:
    """Say which directory cannot be written to, why, and what to do about it."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        fix = FIXES.get(error.errno or 0, "fix that")
        raise CannotWrite(f"{path} cannot be written to ({error.strerror or error}); {fix} and {then}") from error
