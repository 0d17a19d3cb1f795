"""Start Flower's own programs on free ports of this machine, and stop them afterwards."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower"))
from compare import OFFLINE, end

APP = Path(__file__).parent / "app"
PATIENCE = 300.0


class Federation:
    """Start a SuperLink with SuperNodes, or one that simulates them."""

    def __init__(self, folder: Path, nodes: int, *, simulated: bool) -> None:
        self._folder, self._simulated, self._nodes = folder, simulated, nodes
        self._programs: list[subprocess.Popen[bytes]] = []
        self._port = free_port()
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self._environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(folder), "PATH": path, "TMPDIR": str(folder)}
        connection = f'[superlink]\ndefault = "here"\n[superlink.here]\naddress = "127.0.0.1:{self._port}"\n'
        (folder / "config.toml").write_text(f"{connection}insecure = true\n", "utf-8")

    def __enter__(self) -> Self:
        kind = ["--simulation"] if self._simulated else []
        self._start("superlink", "flower-superlink", "--insecure", *kind, "--host", "127.0.0.1", "--port", self._port)
        self._until(self._healthy, "the SuperLink")
        for node in range(0 if self._simulated else self._nodes):
            where = ("--superlink", f"127.0.0.1:{self._port}", "--port", free_port())
            self._start(f"node-{node}", "flower-supernode", "--insecure", *where)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        for process in reversed(self._programs):
            end(process)

    def run(self, parameters: int, updates: int, rounds: int) -> dict[str, list[dict[str, float]]]:
        """Return the figures that the app has written."""
        output = self._folder / f"{parameters}.json"
        config = f'output="{output}" parameters={parameters} updates={updates} rounds={rounds}'
        command = ["flwr", "run", str(APP), "here", "--run-config", config]
        if self._simulated:
            size = f"num-supernodes={self._nodes} client-resources-num-cpus=1 init-args-num-cpus={self._nodes}"
            command += ["--federation-config", size]
        subprocess.run(command, env=self._environment, check=True, stdout=subprocess.DEVNULL)
        self._until(output.exists, f"the figures for {parameters} parameters")
        found: dict[str, list[dict[str, float]]] = json.loads(output.read_text("utf-8"))
        return found

    def _start(self, name: str, *command: Any) -> None:
        with (self._folder / f"{name}.log").open("wb") as log:
            words = [str(word) for word in command]
            self._programs.append(
                subprocess.Popen(words, env=self._environment, stdout=log, stderr=log, start_new_session=True)
            )

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def _until(self, done: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + PATIENCE
        while not done():
            if time.monotonic() > deadline or any(process.poll() is not None for process in self._programs):
                logs = "\n".join(log.read_text("utf-8", "replace")[-3000:] for log in self._folder.glob("*.log"))
                raise SystemExit(f"{what} did not appear in time:\n{logs}")
            time.sleep(0.2)


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
