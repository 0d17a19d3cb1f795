"""Measure the server's resident memory, and how long a checkpoint stops its updates.

Memory is counted in vectors, the bytes of one copy of the model, beyond what the process takes before the task is made.
Each contestant trains in a fresh process with two workers. Those of ``sgd`` and ``adamw`` send a constant gradient, so
that all memory is the server's; ``torch`` is a perceptron of about as many parameters with plain SGD, and shows what a
`TorchTask` holds, on the server and in each worker. A thread reads /proc every few milliseconds: the *steady* figure is
the median between evaluations and checkpoints, the *peak* the largest. Shared memory (points and updates, which the
workers map too) is listed apart. The stall is the time for which a call of the checkpointer keeps the loop, over the
time until that checkpoint is on the disk, which is what a synchronous write would take. Figures stand under the number
of parameters. ``--parts memory --sizes 2e7 1e8`` needs 8 GB of memory and 4 GB of disk, and takes minutes. Below 1e7
parameters, a vector is smaller than what the libraries take and return meanwhile, so memory cannot be told in vectors.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import asyncsgd as asgd
from asyncsgd.run.checkpoints import Checkpointer
from asyncsgd.run.directory import RunDirectory
from asyncsgd.trace import Recorder

OPTIMIZERS = ("sgd", "adamw")
SIZES = (20_000_000,)
LARGE = 50_000_000
"""Parameters from which there are fewer iterations and rounds, and no perceptron: its workers would need 4 GB more."""
PAGE = os.sysconf("SC_PAGE_SIZE")


class Constant:
    """A task that computes nothing, so that all the memory is the server's."""

    def __init__(self, n: int) -> None:
        self.n = n

    def initial(self) -> Any:
        return np.ones(self.n, np.float32)

    def update(self, x: Any, worker: int, seed: int) -> Any:
        return np.full(self.n, 1e-3, np.float32)

    def update_into(self, x: Any, worker: int, seed: int, out: Any) -> None:
        out[:] = 1e-3

    def evaluate(self, x: Any) -> dict[str, float]:
        return {"loss": float(x @ x)}


def perceptron(n: int) -> Any:
    """Return a PyTorch task of about n parameters, with few rows: its memory is that of the model."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    inputs, classes = 784, 10
    width = max(1, round((((inputs + classes) ** 2 + 4 * n) ** 0.5 - inputs - classes) / 2))
    model = nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    model.append(nn.Linear(width, classes))
    draws = np.random.default_rng(0)
    data = draws.standard_normal((64, inputs), np.float32), draws.integers(0, classes, 64)
    return asgd.tasks.torch(model, nn.CrossEntropyLoss(), data, batch_size=4, test=(data[0][:8], data[1][:8]))


def method_of(optimizer: str) -> Any:
    method = asgd.async_sgd(1e-3)
    return method.using(optimizer=asgd.optimizers.adamw()) if optimizer == "adamw" else method


def resident() -> tuple[int, int]:
    """All resident bytes of this process, and those that are shared memory."""
    _, pages, shared, *_ = Path("/proc/self/statm").read_text("ascii").split()
    return int(pages) * PAGE, int(shared) * PAGE


def private(pid: int | str = "self") -> dict[str, int]:
    """The private memory of every process that this process has started, directly or not, by its number."""
    found: dict[str, int] = {}
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            for child in children.read_text("ascii").split():
                for line in Path(f"/proc/{child}/status").read_text("ascii").splitlines():
                    if line.startswith("RssAnon"):
                        found[child] = 1024 * int(line.split()[1])
                found |= private(child)
        except OSError:  # it has just ended
            continue
    return found


class Sampler(threading.Thread):
    """Reads the resident memory until it is stopped, and whether an evaluation or a checkpoint was under way."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.began, self.samples, self.done = resident(), [], threading.Event()
        self.worker = 0
        """The most private memory of a worker, including what it shares with the process that forked it."""

    def run(self) -> None:
        known: set[str] = set()
        while not self.done.wait(0.005):
            names = {thread.name for thread in threading.enumerate()}
            busy = bool(names & {"asyncsgd-evaluation", "asyncsgd-checkpoint"})
            self.samples.append((*resident(), busy))
            started = private()  # a process that is not yet known may still be a fork of this one, before its exec
            self.worker = max([self.worker, *(size for pid, size in started.items() if pid in known)])
            known |= started.keys()

    def stop(self) -> None:
        self.done.set()
        self.join()

    def vectors(self, n: int, worker: int) -> dict[str, float]:
        """Return the figures; ``worker`` is what a worker takes with a tiny model."""
        unit = 4.0 * n
        late = self.samples[len(self.samples) // 3 :]  # without the start
        quiet = [(total, shared) for total, shared, busy in late if not busy] or [late[-1][:2]]
        peak = max(self.samples)
        found = {
            "steady": (statistics.median(total for total, _ in quiet) - self.began[0]) / unit,
            "of it shared": (statistics.median(shared for _, shared in quiet) - self.began[1]) / unit,
            "peak": (peak[0] - self.began[0]) / unit,
            "peak of a worker, private": (self.worker - worker) / unit,
        }
        return {name: round(value, 3) for name, value in found.items()}


def train(contestant: str, n: int) -> dict[str, float]:
    """Train in this process, and return its memory in vectors."""
    method, engine = method_of(contestant), asgd.engines.processes(2, threads=1)
    iterations = 24 if n >= LARGE else 60

    def run(dimension: int) -> int:
        task = perceptron(dimension) if contestant == "torch" else Constant(dimension)
        with tempfile.TemporaryDirectory() as folder:
            asgd.train(
                task,
                method,
                engine,
                iterations=iterations,
                every=iterations // 3,
                directory=Path(folder) / "run",
                checkpoints=asgd.Checkpoints(every=iterations // 2, keep=1),
                progress=False,
            )
        return getattr(task, "dimension", dimension)

    tiny = Sampler()
    tiny.start()
    run(1000)  # once without anything large, so that all libraries and compiled code are loaded
    tiny.stop()
    sampler = Sampler()
    sampler.start()
    dimension = run(n)
    sampler.stop()
    return sampler.vectors(dimension, tiny.worker)


def stall(optimizer: str, n: int, rounds: int) -> dict[str, float]:
    """Return the medians of the seconds of a checkpoint, in the loop and in all, and of their ratio."""
    server = asgd.Server(np.ones(n, np.float32), method_of(optimizer), seed=0)
    [command] = server.handle(asgd.Joined([0])).commands
    server.handle(asgd.Arrived(command.job.id, np.ones(n, np.float32)))
    found = []
    with tempfile.TemporaryDirectory() as folder:
        files, recorder = RunDirectory(Path(folder) / "run"), Recorder(metadata={})
        files.begin({"format": 1}, None, recorder)
        checkpointer = Checkpointer(asgd.Checkpoints(keep=1), files)
        for _ in range(rounds + 1):
            began = time.perf_counter()
            checkpointer.save(server, recorder, 0.0, "", sound=True)
            stalled = time.perf_counter() - began
            checkpointer.written(wait=True)
            found.append((stalled, time.perf_counter() - began))
        files.close()
    found = found[1:]  # without the first one, which makes the file
    return {
        "background": statistics.median(stalled for stalled, _ in found),
        "synchronous": statistics.median(whole for _, whole in found),
        "ratio": statistics.median(stalled / whole for stalled, whole in found),
    }


def measured(size: int, options: Any) -> dict[str, Any]:
    """Return the figures of one size."""
    rows: dict[str, Any] = {"memory": {}, "stall": {}}
    for contestant in OPTIMIZERS if size >= LARGE else (*OPTIMIZERS, "torch"):
        command = [sys.executable, __file__, contestant, str(size)]
        done = subprocess.run(command, stdout=subprocess.PIPE, encoding="utf-8", check=True)
        rows["memory"][contestant] = json.loads(done.stdout.splitlines()[-1])
        print(f"   {size:.0e}, {contestant}: {rows['memory'][contestant]}", flush=True)
    for optimizer in OPTIMIZERS:
        rows["stall"][optimizer] = stall(optimizer, size, min(options.rounds, 3) if size >= LARGE else options.rounds)
        print(f"   {size:.0e}, {optimizer}: checkpoint {rows['stall'][optimizer]}", flush=True)
    return rows


def part(options: Any) -> dict[str, Any]:
    """Measure all contestants, and return the figures by size."""
    return {str(size): measured(size, options) for size in options.sizes or SIZES}


if __name__ == "__main__":  # the fresh process of one contestant
    print(json.dumps(train(sys.argv[1], int(sys.argv[2]))))
