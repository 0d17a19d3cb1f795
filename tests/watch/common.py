"""A run directory that grows step by step, written as a run writes it, with nobody at work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncsgd as asgd
from asyncsgd.run.directory import RunDirectory
from asyncsgd.trace import Recorder, Trace

CONFIG = {"task": "Quadratic", "method_name": "federated_async_sgd", "iterations": 200, "seed": 0, "until": None}


def simulated(iterations: int = 200, workers: int = 4, **options: Any) -> Trace:
    """Who did what in a federation with queues."""
    speeds = asgd.durations.exponential([1.0 + worker for worker in range(workers)])
    method = asgd.federated_async_sgd(0.05, concurrency=6)
    return asgd.simulate(asgd.tasks.quadratic(workers=workers), method, speeds, iterations=iterations, **options).trace


class Scripted:
    """Holds the lock and writes, as far as it is told."""

    def __init__(self, path: Path, trace: Trace, **config: Any) -> None:
        self.path, self.trace = path, trace
        self.files = RunDirectory(path)
        self.files.begin({**CONFIG, "iterations": trace.iterations, **config}, b"", Recorder())
        self.note("started", 0)
        for worker in sorted(set(trace.jobs.worker.tolist())):
            self.note("joined", 0, worker=worker)
        self.to(0)

    def note(self, event: str, iteration: int, **words: Any) -> None:
        row = {"event": event, "iteration": iteration, "seconds": self.when(iteration), **words}
        self.files.add_line("journal.jsonl", row)

    def when(self, iteration: int) -> float:
        return float(self.trace.time[iteration - 1]) if iteration else 0.0

    def to(self, iteration: int) -> Trace:
        """Go on up to this iteration; the trace so far."""
        row = {"iteration": iteration, "time": self.when(iteration), "loss": 1.0 / (1 + iteration)}
        self.files.add_line("metrics.jsonl", row)
        so_far = self.trace.until(iteration)
        self.files.flush(Recorder.resume(so_far))
        return so_far

    def end(self) -> None:
        self.note("ended", self.trace.iterations, workers=4)
        self.to(self.trace.iterations)
        self.files.close()

    def crash(self) -> None:
        """What was handed to the operating system stays; nobody says goodbye."""
        self.files._log = None
        self.files.close()
