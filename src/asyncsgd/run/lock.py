"""The lock of a run directory: at most one process trains there."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from asyncsgd import _files
from asyncsgd._files import create, make_folder
from asyncsgd.core.errors import BadRunDirectory


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
            while not _files.take(lock):
                # If a shared lock can be had, `in_use` of another process held the lock for a moment: try again.
                if not _files.take(lock, shared=True):
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
    if not _files.AVAILABLE:
        return False  # nothing trains on such a system
    try:
        descriptor = os.open(path / ".lock", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:  # missing, or this user may not open it and cannot know
        return False
    try:
        return not _files.take(descriptor, shared=True)
    finally:
        os.close(descriptor)
