"""Start a federation with TLS and keys on this machine, and train: `python examples/flower_deployment/start.py`.

One command creates certificates and keys, starts a SuperLink and three SuperNodes on loopback, registers the keys, runs
the app of examples/flower with `flwr run` and shows its log. It starts a SuperNode that ends again. At the end, and
after Ctrl-C, it stops every process that it started. You need the extras flower and torch, and scikit-learn.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from keys import create_certificates, create_node_key

APP = Path(__file__).resolve().parents[1] / "flower"
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    # The apps' dependencies are those of this environment: Flower must not install them again for each run.
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
MARK = "ASYNCSGD_FEDERATION"
"""Environment variable that every process of one federation carries, with the same value."""

PAUSE = 10.0
"""Seconds between the end of a SuperNode and its next start."""

PATIENCE = 20.0
"""Seconds that programs get to end by themselves before they are killed."""


class Federation:
    """The folder of a federation, and the processes that work in it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.mark = folder, secrets.token_hex(12)
        self.port = free_port()
        home = folder / "flwr"
        home.mkdir(parents=True, exist_ok=True)
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(home), "PATH": path, MARK: self.mark}
        lines = ("[superlink]", 'default = "federation"', "", "[superlink.federation]")
        where = (f'address = "127.0.0.1:{self.port}"', f"root-certificates = {json.dumps(str(folder / 'ca.crt'))}")
        (home / "config.toml").write_text("\n".join((*lines, *where, "")), "utf-8")

    def start(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        """Start a program that writes to its own log. Its own session keeps Ctrl-C in the terminal away from it."""
        with self.log(name).open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def call(self, *command: str) -> str:
        """Run a command to its end and return what it printed. If it fails, end the script with its output."""
        options = {"cwd": self.folder, "env": self.environment, "stdin": subprocess.DEVNULL, "start_new_session": True}
        done = subprocess.run(command, capture_output=True, text=True, check=False, **options)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed:\n{done.stdout}{done.stderr}")
        return done.stdout

    def log(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def healthy(self) -> bool:
        context = ssl.create_default_context(cafile=str(self.folder / "ca.crt"))
        try:
            with urllib.request.urlopen(f"https://127.0.0.1:{self.port}/health", timeout=5, context=context) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def processes(self) -> set[int]:
        """Return every process that carries the mark, also those whose parent has died."""
        # BSD's spelling of the options is the one that Linux and macOS share; `e` adds the environment to each line.
        lines = subprocess.run(["ps", "axeww", "-o", "pid=,command="], capture_output=True, check=True).stdout
        mark = f"{MARK}={self.mark}".encode()
        return {int(line.split(None, 1)[0]) for line in lines.splitlines() if mark in line}

    def close(self) -> None:
        """Wait until every process has ended, and kill what has not ended after `PATIENCE` seconds."""
        deadline = time.monotonic() + PATIENCE
        while left := self.processes():
            if time.monotonic() > deadline:
                for process in left:
                    send(process, signal.SIGKILL)
            time.sleep(0.2)


class Supervisor(threading.Thread):
    """A thread that keeps one program running.

    Only this thread starts the program. `stop` may be called from any other thread: it sets the event first and then
    takes the lock, so either this thread sees the event before it starts the program again, or `stop` sees the program.
    """

    def __init__(self, federation: Federation, name: str, command: list[str]) -> None:
        super().__init__(name=name, daemon=True)
        self._federation, self._command = federation, command
        self._stopping, self._lock = threading.Event(), threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> None:
        while True:
            with self._lock:
                if self._stopping.is_set():
                    return
                self._process = self._federation.start(self.name, self._command)
            status = self._process.wait()
            if not self._stopping.is_set():
                log = self._federation.log(self.name)
                say(f"{self.name} ended with status {status} (see {log}); it starts again in {PAUSE:g} s.")
                self._stopping.wait(PAUSE)

    def stop(self) -> None:
        """Ask the program to end, and do not start it again."""
        self._stopping.set()
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                self._process.terminate()


def superlink_command(port: int) -> list[str]:
    """Return the command of the deployment guide, with this port."""
    files = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.crt", "--ssl-keyfile", "server.key"]
    where = ["--host", "127.0.0.1", "--port", str(port), "--database", "state.db"]
    return ["flower-superlink", *where, *files, "--enable-supernode-auth"]


def supernode_command(superlink: int, port: int, name: str, config: str) -> list[str]:
    """Return the command of the deployment guide, for the SuperNode of this name."""
    link = ["--superlink", f"127.0.0.1:{superlink}", "--root-certificates", "ca.crt"]
    own = ["--auth-supernode-private-key", f"{name}.key", "--node-config", config, "--port", str(port)]
    return ["flower-supernode", *link, *own]


def register_command(name: str) -> list[str]:
    """Return the command of the deployment guide that registers the key of this SuperNode, with its name."""
    return ["flwr", "supernode", "register", f"{name}.key.pub", "federation", "--name", name]


@contextmanager
def federation(folder: Path, nodes: int) -> Iterator[Federation]:
    """Start a SuperLink and SuperNodes in this folder, and stop them at the end."""
    names = [f"client-{number + 1}" for number in range(nodes)]
    create_certificates(folder)
    for name in names:
        create_node_key(folder, name)
    # Each start begins with an empty list of nodes and runs: asyncsgd recognises its clients by their keys.
    for old in folder.glob("state.db*"):
        old.unlink()
    here = Federation(folder)
    here.processes()  # raises before anything runs if this machine's `ps` does not have the options
    supervisors: list[Supervisor] = []
    superlink = None
    try:
        superlink = here.start("superlink", superlink_command(here.port))
        while not here.healthy():
            if superlink.poll() is not None:
                raise SystemExit(f"The SuperLink ended; its log ends with:\n{tail(here.log('superlink'))}")
            time.sleep(0.2)
        say(f"The SuperLink listens on 127.0.0.1:{here.port}. Logs, keys and the run are in {folder}.")
        with ThreadPoolExecutor() as pool:  # each call takes seconds to load Flower
            list(pool.map(lambda name: here.call(*register_command(name)), names))
        for number, name in enumerate(names):
            config = f"partition-id={number} num-partitions={nodes}"
            supervisors.append(Supervisor(here, name, supernode_command(here.port, free_port(), name, config)))
            supervisors[-1].start()
        say(f"{nodes} SuperNodes are registered and starting.")
        yield here
    finally:
        for name in (signal.SIGINT, signal.SIGTERM):  # an impatient second Ctrl-C must not leave processes behind
            signal.signal(name, signal.SIG_IGN)
        say("Stopping all processes.")
        for supervisor in supervisors:
            supervisor.stop()
        for supervisor in supervisors:
            supervisor.join(PATIENCE)
        if superlink is not None and superlink.poll() is None:
            superlink.terminate()
        here.close()


def run(here: Federation, nodes: int, options: list[str]) -> None:
    """Submit the app, show its log until it ends, and end the script with an error if the run failed."""
    # The app divides the data among `clients` and makes the last of them slow.
    config = [f"clients={nodes}", "slow-clients=1", f"directory={json.dumps(str(here.folder / 'run'))}", "resume=true"]
    command = ["flwr", "run", str(APP), "federation", "--stream", "--run-config", " ".join([*config, *options])]
    process = subprocess.Popen(
        command, cwd=here.folder, env=here.environment, stdin=subprocess.DEVNULL, start_new_session=True
    )
    try:
        process.wait()
    finally:
        if process.poll() is None:
            process.terminate()
    if process.returncode:
        raise SystemExit(f"flwr run failed with status {process.returncode}; see {here.log('superlink')}")
    [row] = json.loads(here.call("flwr", "list", "federation", "--format", "json"))["runs"]
    if row["status"] != "finished:completed":
        raise SystemExit(f"The run ended with the status {row['status']}; its log is above.")


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def send(process: int, number: signal.Signals) -> None:
    try:
        os.kill(process, number)
    except ProcessLookupError:
        return


def tail(path: Path) -> str:
    return path.read_text("utf-8", "replace")[-2000:]


def say(text: str) -> None:
    print(text, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=3, help="number of SuperNodes")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/federation"), help="folder for keys, logs and the run directory"
    )
    parser.add_argument("--config", action="append", default=[], help='a setting of the app, such as "target=0.9"')
    options = parser.parse_args()
    if options.nodes < 1:
        parser.error(f"--nodes is {options.nodes}; pass at least 1")
    if " " in sys.prefix:
        parser.error(f"Python is installed below {sys.prefix!r}; flwr 1.41 cannot start below a path with a space")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the context manager stops the processes
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell lets jobs in the background ignore SIGINT
    folder = options.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        with federation(folder, options.nodes) as here:
            run(here, options.nodes, options.config)
    except KeyboardInterrupt:
        sys.exit(130)
    say(f"The run has ended. Show it with: asyncsgd report {folder / 'run'}")


if __name__ == "__main__":
    main()
