"""Compare two versions of asyncsgd: the time per update of worker processes, as ratios in one interleaved run.

    git worktree add ../old COMMIT
    python benchmarks/engines/compare_versions.py ../old/src src

Each measurement is a process of its own, with the one or the other source folder as PYTHONPATH. Rounds alternate which
version comes first. Two figures per size: seconds per update by the clock of the run, and seconds of processor time of
the server per update, which other programs on the machine disturb less. Each is shown as the ratio new / old of the
least values, which other programs disturb least, and as the quartiles of the ratios of the rounds: if these are far
apart, the machine was too busy to tell. Two minutes on two idle cores.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

UPDATES = 3_000
SIZES = (10, 10_000)
RUNS = 4
"""Runs in one process; the fastest counts."""
FIGURES = ("wall", "processor")


def measure(size: int) -> dict[str, float]:
    """Return seconds per update by the clock, and of the server's processor time. The gradient costs nothing."""
    from workload import STEP, WORKERS, Constant

    import asyncsgd as asgd

    def run(updates: int) -> tuple[float, float]:
        engine = asgd.engines.processes(workers=WORKERS, threads=1)
        before = time.process_time()
        done = asgd.train(
            Constant(size), asgd.async_sgd(STEP), engine=engine, iterations=updates, every=updates, progress=False
        )
        times = done.trace.time
        warm = updates // 10
        return float(times[-1] - times[warm]) / (updates - 1 - warm), time.process_time() - before

    few = UPDATES // 10
    run(few)  # loads everything
    start = min(run(few)[1] for _ in range(2))  # the start costs processor time too
    walls, totals = zip(*(run(UPDATES) for _ in range(RUNS)), strict=True)
    return {"wall": min(walls), "processor": (min(totals) - start) / (UPDATES - few)}


def measured(source: str, size: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, __file__, "--size", str(size)]
    done = subprocess.run(command, env=environment, capture_output=True, encoding="utf-8", check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(old: str, new: str, rounds: int) -> None:
    for size in SIZES:
        rows: list[dict[str, dict[str, float]]] = []
        for number in range(rounds):
            order = (old, new) if number % 2 == 0 else (new, old)
            rows.append({source: measured(source, size) for source in order})
        for name in FIGURES:
            least = {source: min(row[source][name] for row in rows) for source in (old, new)}
            low, middle, high = statistics.quantiles([row[new][name] / row[old][name] for row in rows], n=4)
            figures = f"{1e6 * least[old]:.1f} µs, then {1e6 * least[new]:.1f} µs, ratio {least[new] / least[old]:.3f}"
            spread = f"of the rounds {middle:.3f}, quartiles {low:.3f} to {high:.3f}"
            print(f"{size:>6} parameters, {name:9} time per update: {figures}; {spread}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", help="the source folders of the old and of the new version")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--size", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.size is not None:
        print(json.dumps(measure(options.size)))
        return
    if len(options.sources) != 2:
        parser.error("name two source folders: old and new")
    old, new = (str(Path(source).resolve()) for source in options.sources)
    compare(old, new, options.rounds)


if __name__ == "__main__":
    main()
