"""Drive the core server on the plain clock, with any task."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncsgd.core.server import Server
from asyncsgd.core.worker import Workers
from asyncsgd.simulation.clock import play
from asyncsgd.trace import Recorder, Trace


class Still:
    """A task whose updates are all the same, for tests about time alone."""

    def __init__(self, value: float, dim: int = 2) -> None:
        self.value, self.dim = value, dim

    def initial(self) -> Any:
        return np.ones(self.dim)

    def update(self, x: Any, worker: int, seed: int) -> Any:
        return np.full_like(x, self.value)

    def evaluate(self, x: Any) -> dict[str, float]:
        return {"loss": 1.0}


def drive(
    task: Any,
    method: Any,
    durations: Any,
    iterations: int,
    seed: int = 0,
    *,
    metadata: dict[str, str] | None = None,
    batches: str = "all",
    after: Any = None,
) -> tuple[Server, Trace, float]:
    """Return the server, the trace and the time after ``iterations`` arrivals."""
    server, recorder = Server(task.initial(), method, seed, batches=batches), Recorder(metadata=metadata or {})
    end = play(server, (task, Workers(method.job, task.initial())), durations, iterations, recorder, after)
    return server, recorder.trace(final_concurrency=server.concurrency), end
