"""Compare FedBuff in simulated time with FLGo's: seconds per 1000 client updates, in one interleaved run.

Both train the same linear softmax model with the same clients' data, local steps, latencies, jobs in flight and buffer.
Every round times all contestants one after the other. Figures go to the terminal and to results.json.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import flgo
import flgo.algorithm.fedbuff as flgo_fedbuff
import torch
from flgo.experiment.logger import BasicLogger
from flgo.simulator.base import BasicSimulator

import asyncsgd as asgd

CLIENTS, IN_FLIGHT, BUFFER, BATCH, STEPSIZE = 100, 20, 10, 10, 0.1
LATENCIES = [10 + client for client in range(CLIENTS)]
"""Ticks of FLGo's clock, seconds of ours."""


class Latencies(BasicSimulator):
    """Fixed latencies: every job of a client takes the same time."""

    def initialize(self, *_: Any, **__: Any) -> None:
        self.set_variable(self.all_clients, "latency", LATENCIES)


class Quiet(BasicLogger):
    """A logger that evaluates and prints nothing, so that only training is timed."""

    def log_once(self, *_: Any, **__: Any) -> None:
        pass


class Counting:
    """FLGo's FedBuff, which counts the updates that arrive."""

    class Server(flgo_fedbuff.Server):
        arrived = 0

        def package_handler(self, received_packages: dict[str, Any]) -> bool:
            self.arrived += len(received_packages["__cid"])
            return super().package_handler(received_packages)

    Client = flgo_fedbuff.Client


def peer(folder: Path, updates: int) -> Any:
    """Return a server of FLGo with its clients, ready to run."""
    task = folder / "task"
    if not task.exists():
        made = {"name": "flgo.benchmark.synthetic_regression", "para": {"num_clients": CLIENTS, "mean_datavol": 100}}
        flgo.gen_task({"benchmark": made}, task_path=str(task))
    option = {
        "num_rounds": updates // BUFFER,
        "proportion": IN_FLIGHT / CLIENTS,
        "sample": "uniform",
        "algo_para": [BUFFER / CLIENTS, 1.0],
        "num_steps": 1,
        "batch_size": BATCH,
        "learning_rate": STEPSIZE,
        "train_holdout": 0.0,
        "eval_interval": -1,
        "no_log_console": True,
        "no_tqdm": True,
    }
    return flgo.init(str(task), Counting, option, Logger=Quiet, Simulator=Latencies)


def rows_of(server: Any) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Return the data of each of FLGo's clients."""
    data = [client.train_data for client in server.clients]
    return [(torch.stack([x for x, _ in part]), torch.stack([y for _, y in part])) for part in data]


def ours(rows: list[tuple[torch.Tensor, torch.Tensor]]) -> dict[str, Any]:
    """Return the same job as a PyTorch task, and as a compiled task."""
    shared = torch.cat([x for x, _ in rows]).numpy(), torch.cat([y for _, y in rows]).numpy()
    ends = torch.tensor([len(y) for _, y in rows]).cumsum(0).tolist()
    parts = [list(range(end - len(y), end)) for end, (_, y) in zip(ends, rows, strict=True)]
    model, loss = torch.nn.Linear(rows[0][0].shape[1], 10), torch.nn.functional.cross_entropy
    return {
        "asyncsgd, the same torch model": asgd.tasks.torch(model, loss, rows, batch_size=BATCH),
        "asyncsgd, compiled": asgd.tasks.softmax(*shared, classes=10, workers=CLIENTS, batch=BATCH, split=parts),
    }


def timed(function: Callable[[], int]) -> float:
    """Return the seconds per 1000 updates of a function that returns its number of updates."""
    begin = time.perf_counter()
    updates = function()
    return 1000 * (time.perf_counter() - begin) / updates


def simulated(task: Any, updates: int) -> int:
    method = asgd.fedbuff(STEPSIZE, concurrency=IN_FLIGHT, buffer=BUFFER)
    run = asgd.simulate(task, method, asgd.durations.fixed(LATENCIES), iterations=updates, every=updates)
    return run.trace.iterations


def of_peer(server: Any) -> int:
    server.run()
    return int(server.arrived)


def measure(rounds: int, updates: int) -> dict[str, list[float]]:
    """Return seconds per 1000 updates of every contestant in every round, after one warm-up run each."""
    found: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory() as home:
        tasks = ours(rows_of(peer(Path(home), BUFFER)))
        for number in range(rounds + 1):
            server = peer(Path(home), updates)
            times = {"FLGo": timed(lambda server=server: of_peer(server))}
            times |= {name: timed(lambda task=task: simulated(task, updates)) for name, task in tasks.items()}
            for name, seconds in times.items() if number else ():
                found.setdefault(name, []).append(seconds)
            print(f"round {number}", {name: round(seconds, 4) for name, seconds in times.items()}, flush=True)
    return found


def main() -> None:
    """Measure, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--updates", type=int, default=2000)
    parser.add_argument("--output", type=Path, default=Path(__file__).with_name("results.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)  # the model is too small for more threads, and all contestants must have the same number
    warnings.simplefilter("ignore")
    found = measure(options.rounds, options.updates)
    figures = {
        "machine": {"machine": platform.machine(), "cores": os.cpu_count(), "python": platform.python_version()},
        "rounds": options.rounds,
        "updates": options.updates,
        "versions": {"flgo": version("flgo"), "torch": version("torch")},
        "seconds per 1000 updates": {name: statistics.median(times) for name, times in found.items()},
        "times as fast as FLGo": {
            name: statistics.median(theirs / own for theirs, own in zip(found["FLGo"], times, strict=True))
            for name, times in found.items()
            if name != "FLGo"
        },
    }
    options.output.write_text(json.dumps(figures, indent=2) + "\n", "utf-8")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
