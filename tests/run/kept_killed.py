"""A program: train with workers that keep state, some of which die, and be killed by SIGKILL at a given update."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

import asyncsgd as asgd
from asyncsgd.testing import AtJobs, Fault, FaultyTask
from asyncsgd.testing.bench import Bowl

ADAMW: dict[str, Any] = {"optimizer": asgd.optimizers.adamw(), "state": "kept"}
METHODS = {
    "int4": asgd.async_sgd(1.0).local(2, 0.05, **ADAMW).compressed("int4", down="bfloat16"),
    "top_k": asgd.federated_async_sgd(1.0, concurrency=6).local(2, 0.05, **ADAMW).compressed("top_k"),
}
FAULTS = {**dict.fromkeys((7, 29, 52, 83), Fault.KILL), **dict.fromkeys((5, 16, 40), Fault.NAN), 21: Fault.RAISE}


class KillAt(asgd.Callback):
    """Kills this process at an update, when the next jobs have been sent."""

    def __init__(self, iteration: int) -> None:
        self.iteration = iteration

    def on_update(self, view: Any, control: Any) -> None:
        if view.iteration == self.iteration:
            os.kill(os.getpid(), signal.SIGKILL)


def train(directory: Path, method: str, address: str, iterations: int, kill_at: int) -> None:
    engine: Any = asgd.engines.processes(2)
    if address != "processes":
        engine = asgd.engines.ray(2, address=address, start_timeout=600.0)
    task = FaultyTask(Bowl(300, np.float32), AtJobs(FAULTS, step=1), directory.parent)
    with task.armed():
        asgd.train(
            task,
            METHODS[method],
            engine,
            iterations=iterations,
            directory=directory,
            resume=True,
            every=50,
            checkpoints=asgd.Checkpoints(every=8),
            limits=asgd.Limits(10**9),
            callbacks=[KillAt(kill_at)],
            progress=False,
        )


if __name__ == "__main__":
    train(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]))
