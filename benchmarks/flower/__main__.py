"""Compare the server's cost per update with Flower's own FedAvg, with the same clients: make bench-flower.

All contestants take turns within one run of one Flower app, so they have the same clients, which compute nothing.
Figures are medians over the rounds. They go to the terminal and to results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import statistics
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent / "app"))

from bench_app.contestants import CLIENTS, CONTESTANTS, measured, model
from federation import Federation
from instant import InstantGrid

SIZES = (10, 10_000_000)
PARTS = {
    "server": "the server alone: replies are available at once",
    "deployment": "a SuperLink and two SuperNodes on this machine",
    "simulation": "Flower's simulation engine",
}
UPDATES = {"server": (8000, 80), "simulation": (60, 10), "deployment": (2, 2)}
"""Per contestant and round, of a small model and of a large one; a deployment takes seconds for each."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--sizes", nargs="+", type=lambda text: int(float(text)), default=list(SIZES))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # context managers stop Flower's programs
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    figures: dict[str, Any] = {"rounds": {}}
    if options.output.exists():  # keep figures that are not measured this time
        figures |= json.loads(options.output.read_text("utf-8"))
    figures["machine"] = machine
    for part in options.parts:
        print(f"-- {PARTS[part]}", flush=True)
        for size, row in measure(part, options):
            figures.setdefault(part, {})[str(size)] = row
            figures["rounds"][part] = options.rounds
            options.output.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")


def measure(part: str, options: argparse.Namespace) -> Iterator[tuple[int, Any]]:
    """Return the figures of all contestants, per number of parameters."""
    wanted = {size: UPDATES[part][size > 100_000] for size in options.sizes}
    if part == "server":
        for size, updates in wanted.items():
            yield size, shown(size, measured(InstantGrid(model(size)), size, updates, options.rounds))
        return
    with (
        tempfile.TemporaryDirectory(prefix="asyncsgd-bench-") as folder,
        Federation(Path(folder), CLIENTS, simulated=part == "simulation") as here,
    ):
        for size, updates in wanted.items():
            yield size, shown(size, here.run(size, updates, options.rounds))


def shown(size: int, found: dict[str, list[dict[str, float]]]) -> dict[str, Any]:
    """Print and return the medians."""
    rows = {}
    for name in CONTESTANTS:
        rows[name] = {what: statistics.median(row[what] for row in found[name]) for what in ("seconds", "processor")}
        times = f"{1e3 * rows[name]['processor']:10.3f} ms of processor, {1e3 * rows[name]['seconds']:10.2f} ms in all"
        print(f"   {size:>10,} parameters  {name:24} {times} per update", flush=True)
    return rows


if __name__ == "__main__":
    main()
