"""Write files that exist whole or not at all, after a kill or a power cut at any instant; lock files and folders."""

from __future__ import annotations

import errno
import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from asyncsgd.core.errors import BadRunDirectory, CannotWrite, UsageError

# Locks on open files end with the process that holds them, however it ends. Windows does not have them.


try:
    import fcntl
except ModuleNotFoundError:  # Windows: reading, simulating and planning work without locks
    fcntl = None  # type: ignore[assignment]

AVAILABLE = fcntl is not None
"""Whether this system has locks on files."""


def take(descriptor: int, *, shared: bool = False) -> bool:
    """Take the lock unless another process holds it; return whether that worked. Closing the file releases it."""
    if fcntl is None:
        raise UsageError("this system cannot lock files (it has no fcntl); train on Linux or macOS")
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


PRIVATE_FILE, PRIVATE_FOLDER = 0o600, 0o700
"""Only the owner may read and write, whatever the umask says."""


def create(path: Path, flags: int = os.O_EXCL) -> int:
    """Open a file of a run for writing, and return its descriptor. Only its owner may read it.

    The mode is set explicitly as well, because a umask may remove even the owner's rights.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | flags, PRIVATE_FILE)
    if os.fstat(descriptor).st_mode & 0o777 != PRIVATE_FILE:
        with suppress(OSError):  # a file of another user, or a file system without owners
            os.fchmod(descriptor, PRIVATE_FILE)
    return descriptor


def make_folder(path: Path) -> list[Path]:
    """Make a folder and those above it that are missing, for their owner only; return them, innermost first."""
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(made):
        folder.mkdir(PRIVATE_FOLDER, exist_ok=True)
        folder.chmod(PRIVATE_FOLDER)
    return made


@contextmanager
def replacing(path: Path, *, private: bool = False) -> Iterator[IO[bytes]]:
    """Yield a file to write that replaces ``path`` if the block succeeds, and otherwise disappears.

    Only the owner may read a ``private`` file, at any moment.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        with os.fdopen(create(temporary), "wb") if private else temporary.open("xb") as file:
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


def write_bytes(path: str | Path, data: bytes, *, private: bool = False) -> Path:
    """Write a whole file; make missing folders above it."""
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    with replacing(target, private=private) as file:
        file.write(data)
    return target


def write_text(path: str | Path, text: str) -> Path:
    """Write a whole text file in UTF-8; make missing folders above it."""
    return write_bytes(path, text.encode())


RESUME = "resume with resume=True, or --resume on the command line"
FIXES = {
    errno.ENOSPC: "free some space",
    errno.EDQUOT: "free some space",
    errno.EFBIG: "raise the limit on the size of a file (ulimit -f unlimited)",
}


@contextmanager
def writing(path: Path, then: str = RESUME) -> Iterator[None]:
    """Turn an OSError into an error that names the directory, the cause and the fix."""
    try:
        yield
    except CannotWrite:
        raise
    except OSError as error:
        fix = FIXES.get(error.errno or 0, "fix that")
        raise CannotWrite(f"{path} cannot be written to ({error.strerror or error}); {fix} and {then}") from error


class DirectoryLock:
    """A locked file in a directory, which is made if it is missing. The lock ends with the process."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._made = make_folder(path)
        self._descriptor = self._take()

    def _take(self) -> int:
        """Return the descriptor of the locked file.

        The last owner may delete the file between our opening and locking it (`_remove_unused`). Such a lock protects
        nothing, because the next process creates a new file: try again.
        """
        while True:
            lock = create(self._path / ".lock", flags=0)
            while not take(lock):
                # If a shared lock can be had, `in_use` of another process held the lock for a moment: try again.
                if not take(lock, shared=True):
                    os.close(lock)
                    raise BadRunDirectory(f"another process is training in {self._path}; wait for it or choose another")
            if os.fstat(lock).st_nlink:
                return lock
            os.close(lock)

    def release(self) -> None:
        """Release the lock. If no run was started, remove the folders made for it. A second call does nothing."""
        if self._descriptor >= 0:
            descriptor, self._descriptor = self._descriptor, -1
            try:
                self._remove_unused()
            finally:
                os.close(descriptor)

    def _remove_unused(self) -> None:
        with suppress(OSError):  # another process has put files here, or removed the folder
            if [file.name for file in self._path.iterdir()] == [".lock"]:
                (self._path / ".lock").unlink()
                for folder in self._made:
                    folder.rmdir()


def in_use(path: Path) -> bool:
    """Return whether a process is training in the directory, that is, holds its lock."""
    if not AVAILABLE:
        return False  # nothing trains on such a system
    try:
        descriptor = os.open(path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # missing, or this user may not open it and cannot know
        return False
    try:
        return not take(descriptor, shared=True)
    finally:
        os.close(descriptor)
