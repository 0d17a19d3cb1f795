"""Flower's own programs for tests: free ports, a home of their own, and no process left behind."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

GUARD = 240.0
"""Seconds after which something that should have happened counts as missing; nothing waits that long if all is well."""

OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


WARDEN = """
import os, signal, sys
mark = sys.argv[1].encode()
sys.stdin.read()
while True:
    left = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/environ", "rb") as file:
                if mark in file.read():
                    left.append(int(name))
                    os.kill(int(name), signal.SIGKILL)
        except OSError:
            continue
    if not left:
        break
"""
"""Kills every process with the mark once the test's end of the pipe closes, even if the test was killed."""


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


class Programs:
    """Processes that carry a mark in their environment, and so do all that they start."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, secrets.token_hex(12)
        self.home = folder / "flwr"
        self.home.mkdir()
        self._scratch = Path(tempfile.mkdtemp(prefix="flwr"))  # a short name, as Ray puts sockets there
        here = Path(sys.executable).parent
        self.environment = {
            **os.environ,
            **OFFLINE,
            "FLWR_HOME": str(self.home),
            "ASYNCSGD_TEST_MARK": self.mark,
            "PATH": f"{here}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(self._scratch),
        }
        self.environment.pop("PYTHONWARNINGS", None)
        self._logs: dict[str, Path] = {}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._all: list[subprocess.Popen[bytes]] = []
        self._warden = subprocess.Popen(
            [sys.executable, "-S", "-c", WARDEN, self.mark], stdin=subprocess.PIPE, start_new_session=True
        )

    def start(self, name: str, *command: str) -> subprocess.Popen[bytes]:
        self._logs[name] = log = self.folder / f"{name}.log"
        with log.open("ab") as file:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self.processes[name] = process
        self._all.append(process)
        return process

    def run(self, *command: str, folder: Path | None = None) -> str:
        done = subprocess.run(
            command,
            cwd=folder or self.folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=2 * GUARD,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}\n{done.stdout}\n{done.stderr}\n{self.said()}"
        return done.stdout

    def kill(self, process: subprocess.Popen[bytes]) -> None:
        """SIGKILL to it and to its own group: no good-bye."""
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def said(self, name: str | None = None) -> str:
        logs = self._logs if name is None else {name: self._logs[name]}
        return "\n".join(f"--- {key}\n{log.read_text('utf-8', 'replace')[-4000:]}" for key, log in logs.items())

    def until(self, done: Callable[[], Any], what: str) -> Any:
        """Ask until it is so; Flower has nothing that one could wait for."""
        deadline = time.monotonic() + GUARD
        while not (found := done()):
            assert time.monotonic() < deadline, f"waited in vain for {what}\n{self.said()}"
            threading.Event().wait(0.5)  # looking costs time that the programs need
        return found

    def relatives(self) -> set[int]:
        found = set()
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if self.mark.encode() in environment:
                    found.add(int(entry.name))
        return found

    def running(self, program: str) -> set[int]:
        """Those of its processes that run this program."""
        found = set()
        for process in self.relatives():
            try:
                if program.encode() in Path(f"/proc/{process}/cmdline").read_bytes():
                    found.add(process)
            except OSError:
                continue
        return found

    def close(self) -> None:
        """Kill every process that is left, and check that none is."""
        deadline = time.monotonic() + GUARD
        while found := self.relatives():
            assert time.monotonic() < deadline, f"still there: {found}"
            for process in found:
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            for own in self._all:
                own.poll()
            threading.Event().wait(0.05)
        for own in self._all:
            own.wait()
        self._warden.communicate()
        shutil.rmtree(self._scratch, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()
