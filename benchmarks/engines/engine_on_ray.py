"""Compare the Ray engine with the parameter server of Ray's documentation, in turns on one cluster.

asyncsgd is measured in two cases: workers on the server's own machine, which share memory with it, and workers
elsewhere, whose points and updates go through Ray's object store. Further parts measure two nodes with updates of 32
and of 16 bits, the accuracy with 16 bits, the time to round, and how long the engine takes to start.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import costs_on_ray
import numpy as np
import with_ray
from workload import STEP, WORKERS, Constant, perceptron

SIZES = (1_000_000, 10_000_000)
WANTED = 1.3
NAMES = {"shared memory": {}, "object store": {"shared_memory": False}}
TRANSPORTS = {"32 bits": None, "float16": "float16", "bfloat16": "bfloat16"}
DOCUMENTED = "documentation"
PARTS = ("updates", "gradients", "between_nodes", "accuracy", "rounding", "start")
RESULTS = Path(__file__).with_name("results_ray.json")


def _sizes(options) -> list[int]:
    return [size for size in options.sizes if size in SIZES]


def _seconds(options) -> float:
    """Return the seconds to measure: longer than for processes, because new pages of the object store are slow."""
    return 4.0 * options.seconds


def updates_per_second(
    task, seconds: float, expected: float, code: str | None = None, shared_memory: bool = True, **needs
) -> float:
    """Measure `asgd.train` as a user calls it. ``needs`` are those of each worker."""
    import asyncsgd as asgd

    iterations = max(20, int(seconds * expected))
    engine = asgd.engines.ray(asgd.engines.Group(WORKERS, threads=1, **needs))
    engine = replace(engine, shared_memory=shared_memory)
    method = asgd.async_sgd(STEP)
    method = method if code is None else method.compressed(code)
    run = asgd.train(task, method, engine=engine, iterations=iterations, every=iterations, progress=False)
    warm = max(2 * WORKERS, iterations // 10)
    return (iterations - 1 - warm) / float(run.trace.time[-1] - run.trace.time[warm])


def against_the_documentation(make_task, options) -> dict[str, object]:
    """Measure the ratios of updates per second for each size."""
    found: dict[str, object] = {}
    for size in _sizes(options):
        task = make_task(size)
        with with_ray.Cluster():
            speeds = {name: [] for name in NAMES}
            ratios = {name: [] for name in NAMES}
            seconds = _seconds(options)
            before = with_ray.parameter_server(task, seconds)
            documented = [before]
            for _ in range(options.rounds):
                for name, how in NAMES.items():
                    guess = statistics.median(speeds[name]) if speeds[name] else 1.5 * before
                    speed = updates_per_second(task, seconds, guess, **how)
                    after = with_ray.parameter_server(task, seconds)
                    speeds[name].append(speed)
                    ratios[name].append(2 * speed / (before + after))
                    documented.append(after)
                    before = after
        row = {
            "rounds": options.rounds,
            "wanted": WANTED,
            "updates_per_second_of_the_documentation": statistics.median(documented),
        }
        for name in NAMES:
            row[name] = {
                "ratio": statistics.median(ratios[name]),
                "ratios": [round(ratio, 3) for ratio in ratios[name]],
                "updates_per_second": statistics.median(speeds[name]),
            }
            print(f"   {size:>10.0e}  {name:16}{row[name]['ratio']:>8.2f}", flush=True)
        found[str(size)] = row
    return found


def between_nodes(options) -> dict[str, object]:
    """Measure updates per second with workers on another node: the documentation's pattern, and ours by update size."""
    found: dict[str, object] = {}
    with _two_nodes():
        for size in _sizes(options):
            task = perceptron(size)
            speeds: dict[str, list[float]] = {name: [] for name in (DOCUMENTED, *TRANSPORTS)}
            for _ in range(options.rounds):
                for name, seen in speeds.items():
                    if name == DOCUMENTED:
                        seen.append(with_ray.parameter_server(task, _seconds(options), "here", "away"))
                        continue
                    guess = statistics.median(seen or speeds[DOCUMENTED])
                    how = {"code": TRANSPORTS[name], "shared_memory": False, "resources": {"away": 1}}
                    seen.append(updates_per_second(task, _seconds(options), guess, **how))
            row = {
                name: {
                    "ratio": statistics.median(v / w for v, w in zip(values, speeds[DOCUMENTED], strict=True)),
                    "ratio_to_32_bits": statistics.median(
                        v / w for v, w in zip(values, speeds["32 bits"], strict=True)
                    ),
                    "updates_per_second": statistics.median(values),
                }
                for name, values in speeds.items()
            }
            found[str(size)] = {"rounds": options.rounds, **row}
            for name, figures in row.items():
                print(f"   {size:>10.0e}  {name:16}{figures['ratio']:>8.2f}", flush=True)
    return found


class _two_nodes:
    """Start two Ray nodes on this machine, one for the server and one for the workers, so that vectors are sent."""

    def __enter__(self):
        import warnings

        import ray
        from ray.cluster_utils import Cluster

        self._folder = tempfile.TemporaryDirectory(prefix="ray")
        common = {"node_ip_address": "127.0.0.1", "include_dashboard": False, "object_store_memory": 2 * 1024**3}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            head = {**common, "num_cpus": 1, "resources": {"here": 1}, "temp_dir": self._folder.name}
            self._cluster = Cluster(initialize_head=True, head_node_args=head)
            self._cluster.add_node(**common, num_cpus=WORKERS, resources={"away": WORKERS})
            ray.init(address=self._cluster.address, logging_level="error", log_to_driver=False)
        return self

    def __exit__(self, *_):
        import ray

        ray.shutdown()
        self._cluster.shutdown()
        self._folder.cleanup()


def accuracy() -> dict[str, object]:
    """Measure the accuracy with 16-bit updates, with and without error feedback, along the same arrivals."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    import asyncsgd as asgd
    from asyncsgd.core.compression import as_compression
    from examples.digits import task as digits

    whole = digits()
    found: dict[str, object] = {}

    class Rounded:
        """A task whose updates are encoded and decoded, and that forgets the rounding error."""

        workers = 4

        def __init__(self, kind: str) -> None:
            self.code = as_compression("up", kind)

        def initial(self):
            return whole.initial()

        def evaluate(self, x):
            return whole.evaluate(x)

        def update(self, x, worker, seed):
            g = whole.update(x, worker, seed)
            out = np.empty_like(g)
            self.code.decode(self.code.encode(g), out)
            return out

    durations = asgd.durations.exponential([1.0, 1.0, 1.0, 4.0])
    plain = asgd.async_sgd(0.05)
    contestants = {"32 bits": (whole, plain)}
    for kind in ("float16", "bfloat16"):
        contestants[f"{kind}, with error feedback"] = whole, plain.compressed(kind)
        contestants[f"{kind}, without error feedback"] = Rounded(kind), plain
    for name, (task, method) in contestants.items():
        run = asgd.simulate(task, method, durations, iterations=4000, every=4000, seed=0)
        found[name] = {
            key: float(values[-1]) for key, values in run.metrics.items() if key not in ("iteration", "time")
        }
        words = ", ".join(f"{key} {value:.6f}" for key, value in found[name].items())
        print(f"   {name:36}{words}", flush=True)
    return found


def part(options, names=PARTS) -> tuple[dict[str, object], int]:
    """Measure all parts, write results_ray.json, and return how many figures miss their target."""
    measure = {
        "updates": (
            "the Ray engine: updates of a constant gradient over those of the parameter server of Ray's documentation",
            lambda: against_the_documentation(Constant, options),
        ),
        "gradients": (
            "the same with gradients of a perceptron, batch 32",
            lambda: against_the_documentation(perceptron, options),
        ),
        "between_nodes": (
            "the same, workers on another node than the server, by the bits of an update",
            lambda: between_nodes(options),
        ),
        "accuracy": ("what 16 bits do to a model of 5,000 parameters after 4,000 updates", accuracy),
        "rounding": ("ms to round and to read 10^6 parameters", lambda: costs_on_ray.rounding(options.rounds)),
        "start": ("the engine without an address", lambda: costs_on_ray.start(options.rounds)),
    }
    figures: dict[str, object] = {}
    for name in names:
        title, take = measure[name]
        print(f"-- {title}", flush=True)
        figures[name] = take()
    _write(figures, options)
    return figures, _short(figures)


def _short(figures) -> int:
    """Return how many figures are below their target, with and without shared memory."""
    rows = [row for name in ("updates", "gradients") for row in figures.get(name, {}).values()]
    ratios = [row[name]["ratio"] for row in rows for name in NAMES]
    ratios += [row["32 bits"]["ratio"] for row in figures.get("between_nodes", {}).values()]
    return sum(ratio < WANTED for ratio in ratios)


def _write(figures, options) -> None:
    """Merge the new figures into the old ones: sizes and parts that were not measured this time stay."""
    kept = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    kept["machine"] = {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()}
    if figures.keys() & {"updates", "gradients", "between_nodes"}:
        kept["seconds"] = _seconds(options)
    for name, found in figures.items():
        kept[name] = {**kept.get(name, {}), **found}
    RESULTS.write_text(json.dumps(kept, indent=2) + "\n")


def main() -> None:
    import contestants

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="a quarter of the seconds per contestant")
    parser.add_argument("--sizes", type=lambda text: int(float(text)), nargs="+", default=SIZES)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    options = parser.parse_args()
    contestants.one_thread()
    _, short = part(options, options.parts)
    print(f"wrote {RESULTS.name}; {short} figures miss their target")


if __name__ == "__main__":
    main()
