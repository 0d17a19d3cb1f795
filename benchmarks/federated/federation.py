"""Call `flwr run` on Flower's simulation engine, and read what an app wrote."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parents[2] / "examples" / "flower"))
from compare import superlink

import asyncsgd as asgd

APP = Path(__file__).parent / "app"
PATIENCE = 600.0

__all__ = ["Found", "flwr_run", "run", "superlink"]


class Found(NamedTuple):
    """What one run of the app wrote."""

    seconds: float
    rows: list[dict[str, float]]
    """The accuracies and when they were measured."""
    trace: asgd.trace.Trace | None


def flwr_run(environment: dict[str, str], app: Path, output: Path, log: Path, *, actors: int, **config: Any) -> None:
    """Run an app with ``actors`` processes that share its clients, and wait until it has written ``output``."""
    config = {"output": str(output), **config}
    words = " ".join(f"{key.replace('_', '-')}={json.dumps(value)}" for key, value in config.items())
    size = f"num-supernodes={config['clients']} client-resources-num-cpus=1 init-args-num-cpus={actors}"
    command = ["flwr", "run", str(app), "here", "--stream", "--federation-config", size, "--run-config", words]
    with log.open("wb") as file:
        done = subprocess.run(command, env=environment, stdout=file, stderr=file, check=False, timeout=PATIENCE)
    deadline = time.monotonic() + 5
    while not output.exists():
        if time.monotonic() > deadline:
            said = log.read_text("utf-8", "replace")[-4000:]
            raise SystemExit(f"{output.name} was not written (exit code {done.returncode}):\n{said}")
        time.sleep(0.1)


def run(home: Path, environment: dict[str, str], name: str, *, actors: int, **config: Any) -> Found:
    """Run the benchmark's own app, and return the figures that it wrote."""
    output = home / name
    flwr_run(environment, APP, output, home / f"{name}.log", actors=actors, **config)
    figures = json.loads((output / "figures.json").read_text("utf-8"))
    trace = output / "trace.parquet"
    return Found(figures["seconds"], figures["rows"], asgd.trace.Trace.read(trace) if trace.exists() else None)
