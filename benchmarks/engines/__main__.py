"""Compare worker processes with what users would write instead, as ratios in one interleaved run: make bench-engines.

Every round times all contestants one after the other, each between two measurements of the yardstick; a figure is the
median over the rounds of the ratios within a round, so that a slow minute of the machine slows both sides. Figures go
to the terminal and to results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
from functools import partial
from pathlib import Path

import contestants
import engine_on_ray
import with_ray
from workload import WORKERS, Constant, Known, perceptron

SIZES = (10_000, 1_000_000, 10_000_000)
WANTED_UPDATES = {10_000: 0.12, 1_000_000: 0.65, 10_000_000: 0.80}
WANTED_EFFICIENCY = {1_000_000: 0.75, 10_000_000: 0.90}
WANTED_SECONDS = 0.2
NAMES = (
    "asyncsgd",
    "bare loop, two gradients",
    "threads",
    "multiprocessing.Queue",
    "torch.multiprocessing.Queue",
    "torch.distributed.rpc",
    "Ray",
)


def on_ray(task, seconds):
    with with_ray.Cluster():
        return with_ray.parameter_server(task, seconds)


def field(task, seconds, only, limit):
    """Return the contestants for one task, by name; ``limit`` is more updates per second than any of them reaches."""
    # A short run shows how many updates to ask for, and warms up imports and caches.
    expected = contestants.asyncsgd(task, seconds, expected=0.1 * limit)
    known = {
        "asyncsgd": partial(contestants.asyncsgd, task, seconds, expected),
        # Use as many vectors as two workers need, but pass none between processes: what the cache alone costs.
        "bare loop, two gradients": partial(contestants.bare_loop, len(task.initial()), seconds, WORKERS),
        "threads": partial(contestants.threads, task, seconds),
        "multiprocessing.Queue": partial(contestants.process_queue, task, seconds),
        "torch.multiprocessing.Queue": partial(contestants.torch_queue, task, seconds),
        "torch.distributed.rpc": partial(contestants.torch_rpc, task, seconds),
        "Ray": partial(on_ray, task, seconds),
    }
    if not isinstance(task, Constant):
        del known["bare loop, two gradients"]
    return {name: known[name] for name in NAMES if name in known and (not only or name in only)}


def interleaved(rounds, yardstick, runs):
    """Return, per contestant, ratios to the yardstick by round and updates per second; and those of the yardstick."""
    ratios = {name: [] for name in runs}
    speeds = {name: [] for name in runs}
    limits = []
    for _ in range(rounds):
        before = yardstick()
        limits.append(before)
        for name, run in runs.items():
            speed = run()
            after = yardstick()
            limits.append(after)
            speeds[name].append(speed)
            ratios[name].append(2 * speed / (before + after))
            before = after
    return ratios, speeds, limits


def part(title, unit, yardstick, make_task, wanted, options):
    """Measure and print one table: a row per contestant, a column per size."""
    print(f"-- {title}", flush=True)
    found, table = {}, {name: {} for name in NAMES}
    for size in options.sizes:
        task = make_task(size)
        runs = field(task, options.seconds, options.only, yardstick(task))
        ratios, speeds, limits = interleaved(options.rounds, partial(yardstick, task), runs)
        found[str(size)] = {
            "wanted": wanted.get(size),
            f"{unit}_of_the_yardstick": statistics.median(limits),
            **{
                name: {
                    "ratio": statistics.median(ratios[name]),
                    "ratios": [round(ratio, 4) for ratio in ratios[name]],
                    f"{unit}": statistics.median(speeds[name]),
                }
                for name in runs
            },
        }
        for name in runs:
            table[name][size] = statistics.median(ratios[name])
        print(f"   measured {size} parameters", flush=True)
    print(f"   {'':30}" + "".join(f"{size:>14.0e}" for size in options.sizes))
    for name, row in table.items():
        if row:
            print(f"   {name:30}" + "".join(f"{row[size]:>14.3f}" for size in options.sizes))
    goals = "".join(f">= {wanted[size]:.2f}".rjust(14) if size in wanted else " " * 14 for size in options.sizes)
    print(f"   {'target for asyncsgd':30}{goals}", flush=True)
    short = [size for size in options.sizes if table["asyncsgd"].get(size, 9.0) < wanted.get(size, 0.0)]
    return found, len(short)


def replacement(options):
    """Measure how long it takes to replace a killed worker, with a torch task."""
    print("-- a killed worker is replaced", flush=True)
    task = Known(perceptron(1_000_000))
    joined, answered = contestants.replaced_worker(task, times=5 * options.rounds)
    spawned = [contestants.spawned_worker(task) for _ in range(min(3, options.rounds))]
    figures = {
        "wanted_seconds": WANTED_SECONDS,
        "seconds_from_kill_to_joined": statistics.median(joined),
        "slowest_of_them": max(joined),
        "seconds_from_kill_to_first_gradient": statistics.median(answered),
        "seconds_of_multiprocessing_spawn_to_first_gradient": statistics.median(spawned),
    }
    for name, value in figures.items():
        print(f"   {value:8.3f}  {name.replace('_', ' ')}", flush=True)
    return figures, int(figures["seconds_from_kill_to_joined"] >= WANTED_SECONDS)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="seconds to measure each contestant")
    parser.add_argument("--sizes", type=lambda text: int(float(text)), nargs="+", default=SIZES)
    parser.add_argument("--only", nargs="*", default=(), choices=NAMES, help="measure only these contestants")
    parser.add_argument("--parts", nargs="+", default=("updates", "efficiency", "replacement", "ray"))
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    contestants.one_thread()
    parts = {
        "updates": lambda: part(
            f"updates of a constant gradient from {WORKERS} workers, over those of a bare torch.add loop on one core",
            "updates_per_second",
            lambda task: contestants.bare_loop(task.dimension, 0.3 * options.seconds),
            Constant,
            WANTED_UPDATES,
            options,
        ),
        "efficiency": lambda: part(
            f"gradients of a perceptron, batch 32, from {WORKERS} workers, over those of the same without a server",
            "gradients_per_second",
            lambda task: contestants.no_server(task, options.seconds),
            perceptron,
            WANTED_EFFICIENCY,
            options,
        ),
        "replacement": lambda: replacement(options),
        "ray": lambda: engine_on_ray.part(options),
    }
    machine = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    figures: dict[str, object] = {"machine": machine, "rounds": options.rounds, "seconds": options.seconds}
    short = 0
    for name in options.parts:
        figures[name], missed = parts[name]()
        short += missed
    options.output.write_text(json.dumps(figures, indent=2) + "\n")
    print(f"wrote {options.output.name}; {short} figures miss their target")


if __name__ == "__main__":
    main()
