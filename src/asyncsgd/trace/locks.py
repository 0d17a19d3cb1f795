"""Locks on open files: they end with the process that holds them, however it ends. Windows does not have them."""

from __future__ import annotations

from asyncsgd.core.errors import UsageError

try:
    import fcntl
except ModuleNotFoundError:  # Windows: what only reads, simulates or plans works there all the same
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None
"""Whether this system has them."""


def take(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock unless another process holds it; whether that worked. Closing the file gives it back."""
    if fcntl is None:
        raise UsageError("this system cannot lock files (it has no fcntl); train on Linux or macOS")
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
