"""A program in a process of its own, all of whose descendants can be found by a mark in their environment."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self

GUARD = 300.0
"""Seconds after which something that should have happened counts as missing; nothing waits that long if all is well."""


class Subject:
    def __init__(self, program: str, folder: Path, *, how: str = "file", arguments: tuple[str, ...] = ()) -> None:
        self.mark = secrets.token_hex(12)
        environment = {**os.environ, "ASYNCSGD_TEST_MARK": self.mark, "PYTHONUNBUFFERED": "1"}
        command = [sys.executable, "-W", "error"]
        given: str | None = None
        if how == "file":
            script = folder / "program.py"
            script.write_text(program, "utf-8")
            command.append(str(script))
        elif how == "stdin":
            command.append("-")
            given = program
        else:
            command += ["-c", program]
        self.process = subprocess.Popen(
            [*command, *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE if given is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            start_new_session=True,
        )
        if given is not None:
            assert self.process.stdin is not None
            self.process.stdin.write(given)
            self.process.stdin.close()
            self.process.stdin = None

    def line(self) -> str:
        """The next line that it prints."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline().strip()
        if not line:
            raise AssertionError(f"it ended: {self.end()}")
        return line

    def end(self, patience: float = GUARD) -> tuple[int, str, str]:
        """(exit code, what it printed, its complaints), once it has ended."""
        said, complaints = self.process.communicate(timeout=patience)
        return self.process.returncode, said, complaints

    def relatives(self) -> set[int]:
        """The processes that live on with its mark, itself included."""
        found = set()
        for folder in Path("/proc").iterdir():
            if folder.name.isdigit():
                try:
                    environment = (folder / "environ").read_bytes()
                except OSError:
                    continue
                if self.mark.encode() in environment:
                    found.add(int(folder.name))
        return found

    def none_left(self) -> None:
        """Wait until no process with the mark is left: killed processes may need a moment."""
        deadline = time.monotonic() + GUARD
        while found := self.relatives():
            assert time.monotonic() < deadline, f"still there: {found}"
            threading.Event().wait(0.01)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for process in self.relatives():
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        self.process.wait()
        for pipe in (self.process.stdout, self.process.stderr):
            if pipe is not None:
                pipe.close()
