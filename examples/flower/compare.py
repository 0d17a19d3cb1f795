"""Compare synchronous and asynchronous training with the same clients: `python examples/flower/compare.py`.

Runs the app of this folder with `flwr run` on Flower's simulation engine, once per method, prints when each method
reached the target, and writes a page with all of them. Two of the eight clients take ten times as long as the others.
You need the extras flower and torch, and scikit-learn. The program stops every process that it started.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

HERE = Path(__file__).parent
METHODS = ("flower-fedavg", "rounds", "over-selection", "fedbuff", "algorithm-2", "delay-adaptive")
OFFLINE = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ADDRESS": "local",
}


@contextmanager
def superlink(home: Path) -> Iterator[dict[str, str]]:
    """Start a SuperLink for simulations on a free port, in its own process group, and yield the environment to use."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    connection = f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "127.0.0.1:{port}"\ninsecure = true\n'
    (home / "config.toml").write_text(connection, "utf-8")
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, **OFFLINE, "FLWR_HOME": str(home), "PATH": path}
    command = ["flower-superlink", "--insecure", "--simulation", "--host", "127.0.0.1", "--port", str(port)]
    with (home / "superlink.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        while not healthy(port):
            if process.poll() is not None:
                raise SystemExit((home / "superlink.log").read_text("utf-8", "replace"))
            time.sleep(0.2)
        yield environment
    finally:
        end(process)


def family(process: int) -> set[int]:
    """Return a process and all its descendants. Flower starts some of them in their own process groups."""
    lines = subprocess.run(["ps", "-eo", "pid=,ppid="], capture_output=True, text=True, check=True).stdout.splitlines()
    parents = {int(child): int(parent) for child, parent in (line.split() for line in lines)}
    found = {process}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a program to end, and wait until all its descendants have ended. Kill them after 30 seconds."""
    left = family(process.pid)
    process.send_signal(signal.SIGTERM)
    deadline = time.monotonic() + 30
    while left:
        process.poll()
        for pid in tuple(left):
            try:
                os.kill(pid, signal.SIGKILL if time.monotonic() > deadline else 0)
            except ProcessLookupError:
                left.discard(pid)
        time.sleep(0.1)


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def run(method: str, directory: Path, environment: dict[str, str], clients: int, options: list[str]) -> None:
    """Call `flwr run` for one method and wait until it has ended."""
    config = [f'method="{method}"', f'directory="{directory}"', f"clients={clients}", "evaluate-clients=false"]
    config += ["warm-up=true", *options]
    size = f"num-supernodes={clients} client-resources-num-cpus=1 init-args-num-cpus={clients}"
    command = ["flwr", "run", str(HERE), "here", "--stream", "--federation-config", size, "--run-config"]
    log = directory.with_suffix(".log")
    with log.open("wb") as file:
        done = subprocess.run([*command, " ".join(config)], env=environment, stdout=file, stderr=file, check=False)
    if done.returncode or not (directory / "metrics.jsonl").exists():
        raise SystemExit(f"{method} failed:\n{log.read_text('utf-8', 'replace')[-4000:]}")


def row(method: str, directory: Path, target: float) -> str:
    lines = (directory / "metrics.jsonl").read_text("utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    reached = next((row for row in rows if row["accuracy"] >= target), None)
    best = max(row["accuracy"] for row in rows)
    if reached is None:
        return f"{method:16} {'not reached':>12} {rows[-1]['iteration']:9d} {best:9.3f}"
    return f"{method:16} {reached['time']:10.1f} s {reached['iteration']:9d} {best:9.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("methods", nargs="*", default=METHODS, help=f"some of {', '.join(METHODS)}")
    parser.add_argument("--target", type=float, default=0.95, help="accuracy on the test set to reach")
    parser.add_argument("--clients", type=int, default=8, help="number of simulated clients")
    parser.add_argument("--output", type=Path, default=Path("runs/flower"), help="directory for the runs")
    parser.add_argument(
        "--config", action="append", default=[], help='a setting of the app, such as "slow-seconds=2.0"'
    )
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the context manager stops the SuperLink
    output = options.output.resolve()
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="asyncsgd-flower-") as home, superlink(Path(home)) as environment:
        print(f"{'method':16} {'time':>12} {'updates':>9} {'best':>9}   to accuracy {options.target:g}", flush=True)
        for method in options.methods:
            directory = output / method
            if directory.exists():
                raise SystemExit(f"{directory} already exists; pass another --output")
            config = [f"target={options.target}", *options.config]
            run(method, directory, environment, options.clients, config)
            print(row(method, directory, options.target), flush=True)
    runs = [str(output / method) for method in options.methods if (output / method / "run.json").exists()]
    if runs:
        page = ["--output", str(output / "report.html")]
        subprocess.run([sys.executable, "-m", "asyncsgd", "report", *runs, *page], check=True)


if __name__ == "__main__":
    main()
