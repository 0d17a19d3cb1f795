"""Measure the server's resident memory, and how long a checkpoint stops its updates.

Memory is counted in vectors, the bytes of one copy of the model, beyond what the process takes before the task is made.
Each optimizer trains in a fresh process with two workers that send a constant gradient. A thread reads /proc/self/statm
every few milliseconds: the *steady* figure is the median between evaluations and checkpoints, the *peak* the largest.
Shared memory (points and updates, which the workers map too) is listed apart. The stall is the time for which a call of
the checkpointer keeps the loop, over the time until that checkpoint is on the disk, which is what a synchronous write
would take. ``--parts memory --sizes 1e8`` needs 8 GB and takes minutes.
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
ITERATIONS, STALL_SIZE = 60, 10_000_000
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


def method_of(optimizer: str) -> Any:
    method = asgd.async_sgd(1e-3)
    return method if optimizer == "sgd" else method.using(optimizer=asgd.optimizers.adamw())


def resident() -> tuple[int, int]:
    """All resident bytes of this process, and those that are shared memory."""
    _, pages, shared, *_ = Path("/proc/self/statm").read_text("ascii").split()
    return int(pages) * PAGE, int(shared) * PAGE


class Sampler(threading.Thread):
    """Reads the resident memory until it is stopped, and whether an evaluation or a checkpoint was under way."""

    def __init__(self, began: tuple[int, int]) -> None:
        super().__init__(daemon=True)
        self.began, self.samples, self.done = began, [], threading.Event()

    def run(self) -> None:
        while not self.done.wait(0.005):
            names = {thread.name for thread in threading.enumerate()}
            busy = bool(names & {"asyncsgd-evaluation", "asyncsgd-checkpoint"})
            self.samples.append((*resident(), busy))

    def vectors(self, n: int) -> dict[str, float]:
        unit = 4.0 * n
        late = self.samples[len(self.samples) // 3 :]  # without the start
        quiet = [(total, shared) for total, shared, busy in late if not busy] or [late[-1][:2]]
        peak = max(self.samples)
        return {
            "steady": (statistics.median(total for total, _ in quiet) - self.began[0]) / unit,
            "of it shared": (statistics.median(shared for _, shared in quiet) - self.began[1]) / unit,
            "peak": (peak[0] - self.began[0]) / unit,
        }


def train(optimizer: str, n: int, iterations: int) -> dict[str, float]:
    """Train in this process, and return its memory in vectors."""
    method, engine = method_of(optimizer), asgd.engines.processes(2, threads=1)

    def run(dimension: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            asgd.train(
                Constant(dimension),
                method,
                engine,
                iterations=iterations,
                every=iterations // 3,
                directory=Path(folder) / "run",
                checkpoints=asgd.Checkpoints(every=iterations // 2, keep=1),
                progress=False,
            )

    run(1000)  # once without anything large, so that all libraries and compiled code are loaded
    sampler = Sampler(resident())
    sampler.start()
    run(n)
    sampler.done.set()
    sampler.join()
    return sampler.vectors(n)


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


def part(options: Any) -> dict[str, Any]:
    """Measure both optimizers, and return the figures."""
    size = int((options.sizes or [2e7])[-1])
    rows: dict[str, Any] = {"size": size, "stall_size": STALL_SIZE, "memory": {}, "stall": {}}
    for optimizer in OPTIMIZERS:
        done = subprocess.run(
            [sys.executable, __file__, optimizer, str(size)], capture_output=True, encoding="utf-8", check=True
        )
        rows["memory"][optimizer] = json.loads(done.stdout.splitlines()[-1])
        rows["stall"][optimizer] = stall(optimizer, STALL_SIZE, options.rounds)
        print(f"   {optimizer}: {rows['memory'][optimizer]}, checkpoint {rows['stall'][optimizer]}", flush=True)
    return rows


if __name__ == "__main__":  # the fresh process of one optimizer
    print(json.dumps(train(sys.argv[1], int(sys.argv[2]), ITERATIONS)))
