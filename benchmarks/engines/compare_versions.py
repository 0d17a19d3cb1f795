"""Compare two versions of asyncsgd: the time per update of worker processes, as ratios in one interleaved run.

    git worktree add ../old COMMIT
    python benchmarks/engines/compare_versions.py ../old/src src

Each measurement is a process of its own, with the one or the other source folder as PYTHONPATH. Rounds alternate which
version comes first. Two figures per size: seconds per update by the clock of the run, and seconds of processor time of
the server per update, which other programs on the machine disturb less. A figure is the median over the rounds of
new / old, with its quartiles. Two minutes on two cores.
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

UPDATES = {10: 8_000, 10_000: 6_000}
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

    updates = UPDATES[size]
    few = updates // 10
    _, start = run(few)  # the start costs processor time too
    wall, total = run(updates)
    return {"wall": wall, "processor": (total - start) / (updates - few)}


def measured(source: str, size: int) -> dict[str, float]:
    environment = {**os.environ, "PYTHONPATH": source}
    command = [sys.executable, __file__, "--size", str(size)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def compare(old: str, new: str, rounds: int) -> None:
    for size in UPDATES:
        ratios: dict[str, list[float]] = {name: [] for name in FIGURES}
        for number in range(rounds):
            order = (old, new) if number % 2 == 0 else (new, old)
            found = {source: measured(source, size) for source in order}
            for name in FIGURES:
                ratios[name].append(found[new][name] / found[old][name])
        for name, values in ratios.items():
            low, middle, high = statistics.quantiles(values, n=4)
            shown = f"{middle:.3f}, quartiles {low:.3f} to {high:.3f}, {rounds} rounds"
            print(f"{size:>8} parameters, {name:9} time per update, new / old: {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", help="the source folders of the old and of the new version")
    parser.add_argument("--rounds", type=int, default=6)
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
