"""A watch over a cluster that was started here, so that none of its processes outlives the run, however that ends."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path


class Watch:
    """A process beside this one, which ends what works in the folder once it is told to, or this process is gone."""

    def __init__(self, folder: Path) -> None:
        self._watchman: subprocess.Popen[bytes] | None = None
        if not hasattr(os, "pidfd_open"):
            return
        line, self._line = os.pipe()
        try:
            program = [sys.executable, "-I", "-S", str(Path(__file__).with_name("watchman.py"))]
            about = [str(line), str(folder), str(os.getpgid(0))]
            self._watchman = subprocess.Popen([*program, *about], pass_fds=[line], start_new_session=True)
        except BaseException:
            os.close(self._line)
            raise
        finally:
            os.close(line)

    def end(self, *, clean: bool) -> None:
        """Nothing is left to watch, if ``clean``; else what is there is ended first."""
        if self._watchman is None:
            return
        watchman, self._watchman = self._watchman, None
        try:
            if clean:
                with suppress(BrokenPipeError):  # somebody has killed it
                    os.write(self._line, b".")
        finally:
            os.close(self._line)
        watchman.wait()
