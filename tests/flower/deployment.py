"""A SuperLink with TLS and SuperNode keys on loopback, as the guide says, and SuperNodes to start and kill."""

from __future__ import annotations

import json
import shlex
import ssl
import subprocess
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from flower.guide import block
from flower.programs import Programs, free_port

APP = Path(__file__).parent / "app"
DIGITS = Path(__file__).parents[2] / "examples" / "flower"
DILOCO = Path(__file__).parents[2] / "examples" / "flower_diloco"
NGINX = """
worker_processes 1;
pid nginx.pid;
error_log nginx.error.log;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path body;
    proxy_temp_path proxy;
    fastcgi_temp_path fastcgi;
    uwsgi_temp_path uwsgi;
    scgi_temp_path scgi;
    {server}
}}
"""


class Deployment(Programs):
    """Everything that a federation needs, in one folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.port, self.outside = free_port(), free_port()
        self.directory = folder / "runs" / "async"
        self.run("sh", "-e", "-c", block("certificates"))
        lines = ("[superlink]", 'default = "federation"', "[superlink.federation]")
        where = (f'address = "127.0.0.1:{self.port}"', f'root-certificates = "{folder / "ca.crt"}"')
        (self.home / "config.toml").write_text("\n".join((*lines, *where, "")), "utf-8")

    # ------------------------------------------------------------------------------------------ programs

    def superlink(self) -> subprocess.Popen[bytes]:
        command = block("superlink", ("--port 8000", f"--port {self.port}"))
        process = self.start("superlink", *_words(command))
        self.until(lambda: self._healthy() or process.poll() is not None, "the SuperLink")
        assert process.poll() is None, self.said()
        return process

    def nginx(self, program: str) -> subprocess.Popen[bytes]:
        changes = (
            ("listen 443", f"listen 127.0.0.1:{self.outside}"),
            ("127.0.0.1:8000", f"127.0.0.1:{self.port}"),
            ("/etc/flower/", f"{self.folder}/"),
        )
        (self.folder / "nginx.conf").write_text(NGINX.format(server=block("nginx", *changes)), "utf-8")
        where = ("-p", str(self.folder), "-c", "nginx.conf", "-e", "nginx.error.log")
        process = self.start("nginx", program, *where, "-g", "daemon off; master_process off;")
        self.until(lambda: self._reachable() or process.poll() is not None, "nginx")
        assert process.poll() is None, self.said() + (self.folder / "nginx.error.log").read_text("utf-8")
        return process

    def register(self, *names: str) -> None:
        """Several at once, as the command takes seconds to load."""
        for name in names:
            self.key(name)
        commands = [_words(block("register", ("hospital-1", name))) for name in names]
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda command: self.run(*command), commands))

    def key(self, name: str) -> None:
        """Make a key pair for a SuperNode that is not registered yet."""
        self.run("sh", "-e", "-c", block("key", ("hospital-1", name)))

    def supernode(self, name: str, partition: int, *, role: str = "", port: int = 0) -> subprocess.Popen[bytes]:
        config = f"partition-id={partition} num-partitions=4" + (f" role='{role}'" if role else "")
        changes = (
            ("federation.example.org:443", f"127.0.0.1:{port or self.port}"),
            ("hospital-1", name),
            ("partition-id=0 num-partitions=2", config),
            ("--port 9094", f"--port {free_port()}"),
        )
        return self.start(name, *_words(block("supernode", *changes)))

    def flwr_run(self, app: Path, **config: Any) -> str:
        """Returns once it has been submitted: the number of the run."""
        words = [f"{name}={json.dumps(value)}" for name, value in config.items()]
        said = self.run("flwr", "run", str(app), "federation", "--format", "json", "--run-config", " ".join(words))
        return str(json.loads(said)["run-id"])

    def train(self, **config: Any) -> str:
        """The NumPy app, in ``directory``."""
        return self.flwr_run(APP, methods="async", directory=str(self.directory.parent), **config)

    # ------------------------------------------------------------------------------------------ what can be seen

    def ask(self, port: int, path: str, data: bytes | None = None) -> int:
        """The status of a request over TLS."""
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        request = urllib.request.Request(f"https://127.0.0.1:{port}{path}", data)
        try:
            with urllib.request.urlopen(request, timeout=10, context=context) as answer:
                return int(answer.status)
        except urllib.error.HTTPError as error:
            with error:
                return error.code

    def _healthy(self) -> bool:
        try:
            return self.ask(self.port, "/health") == 200
        except OSError:
            return False

    def _reachable(self) -> bool:
        try:
            return self.ask(self.outside, "/") == 403
        except OSError:
            return False

    def lines(self, name: str) -> list[dict[str, Any]]:
        """The whole lines of a file of the run."""
        path = self.directory / name
        return [json.loads(line) for line in (path.read_bytes().split(b"\n")[:-1] if path.exists() else [])]

    def journal(self, event: str) -> list[dict[str, Any]]:
        return [row for row in self.lines("journal.jsonl") if row["event"] == event]

    def iteration(self) -> int:
        """Of the last checkpoint."""
        return max((int(path.stem) for path in (self.directory / "checkpoints").glob("*.safetensors")), default=0)

    def heard(self, worker: int) -> int:
        """Updates that have arrived from a worker."""
        from asyncsgd.run.read import read_trace

        return int((read_trace(self.directory).worker == worker).sum())


def _words(command: str) -> list[str]:
    return shlex.split(command.replace("\\\n", " "))
