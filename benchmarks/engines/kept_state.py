"""Measure what keeping state on workers costs: updates per second with state="kept", over those with state="fresh".

A worker that keeps state holds one job at a time, and copies its state for every job. Each round times fresh, kept and
kept with compression one after the other, with two worker processes and one AdamW step per job; a figure is the median
over the rounds of the ratios within a round. Usage: python benchmarks/engines/kept_state.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
import warnings
from pathlib import Path

import numpy as np

import asyncsgd as asgd

WORKERS = 2
SIZES = (10_000, 1_000_000)
MILLISECONDS = (1.0, 20.0)
WARM = 0.25
"""The share of the updates before the measurement starts."""


class Working:
    """A gradient that takes a given time of a processor."""

    def __init__(self, dimension: int, seconds: float) -> None:
        self.dimension, self.seconds = dimension, seconds

    def initial(self):
        return np.zeros(self.dimension, np.float32)

    def update(self, x, worker, seed):
        until = time.thread_time() + self.seconds
        while time.thread_time() < until:
            pass
        return np.full(self.dimension, 1e-6, np.float32)

    def evaluate(self, x):
        return {}


def methods():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # one step of an Adam that starts afresh is what is compared with here
        local = {
            state: asgd.async_sgd(1.0).local(1, 1e-4, optimizer=asgd.optimizers.adamw(), state=state)
            for state in ("fresh", "kept")
        }
    return {**local, "kept, int8": local["kept"].compressed("int8")}


def speed(task, method, iterations):
    """Return updates per second, once every worker has loaded its compiled code."""
    engine = asgd.engines.processes(WORKERS, threads=1)
    run = asgd.train(task, method, engine, iterations=iterations, progress=False)
    times = run.trace.arrivals().time
    first = int(WARM * iterations)
    return (iterations - 1 - first) / (times[-1] - times[first])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of work per worker and measurement")
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results_kept_state.json"))
    options = parser.parse_args()
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    figures: dict[str, object] = {"machine": machine, "rounds": options.rounds}
    for size in SIZES:
        for milliseconds in MILLISECONDS:
            task = Working(size, milliseconds / 1000)
            iterations = max(60, int(WORKERS * options.seconds / (milliseconds / 1000 + 4e-9 * size)))
            speeds: dict[str, list[float]] = {name: [] for name in methods()}
            for _ in range(options.rounds):
                for name, method in methods().items():
                    speeds[name].append(speed(task, method, iterations))
            ratios = {
                name: [round(a / b, 3) for a, b in zip(found, speeds["fresh"], strict=True)]
                for name, found in speeds.items()
                if name != "fresh"
            }
            row = {name: {"ratio": statistics.median(found), "ratios": found} for name, found in ratios.items()}
            row["fresh"] = {"updates_per_second": statistics.median(speeds["fresh"])}
            figures[f"{size} parameters, {milliseconds:g} ms"] = row
            shown = ", ".join(f"{name} {row[name]['ratio']:.2f}" for name in ratios)
            print(f"{size:>9} parameters, {milliseconds:>4g} ms: {shown}", flush=True)
    options.output.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
