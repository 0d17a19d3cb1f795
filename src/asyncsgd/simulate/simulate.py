"""One call: a task, a method and durations in; the model, the trace and the metrics out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import count
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Job, Vector
from asyncsgd.core.method import Method
from asyncsgd.core.server import Server
from asyncsgd.simulate.clock import play
from asyncsgd.simulate.durations import Durations
from asyncsgd.tasks.base import Task, is_heterogeneous
from asyncsgd.trace import Recorder, Trace


@dataclass(frozen=True, eq=False)
class Run:
    """What a run leaves behind."""

    x: Vector
    """The model the method answers with."""
    trace: Trace
    metrics: dict[str, NDArray[Any]]
    """What the task evaluates, with the "iteration" and the "time" it was evaluated at."""


def simulate(
    task: Task,
    method: Method,
    durations: Durations,
    *,
    iterations: int,
    seed: int = 0,
    every: int | None = None,
) -> Run:
    """Run a method until ``iterations`` gradients have arrived, evaluating ``every`` so many (by default 100 times).

    The delay identity is checked at the end; a run whose record contradicts itself raises.
    """
    count("iterations", iterations)
    every = max(1, iterations // 100) if every is None else every
    count("every", every)
    known = getattr(task, "offsets", None)
    if known is not None and len(known) != durations.workers:
        raise BadParameter(
            "durations",
            f"{durations.workers} workers",
            f"do not fit a task of {len(known)}",
            "give as many of each",
        )
    method.check(workers=durations.workers, iterations=iterations, heterogeneous=is_heterogeneous(task))
    server = Server(task.initial(), method, seed)
    recorder = Recorder(metadata={"method": method.name, "seed": str(seed)})
    rows: list[dict[str, Any]] = []

    def compute(point: Vector, job: Job) -> Vector:
        return method.work.compute(task.update, point, job.worker, job.seed)

    def evaluate(time: float) -> None:
        if server.iteration % every == 0 or server.iteration == iterations:
            rows.append({"iteration": server.iteration, "time": time, **task.evaluate(server.output)})

    evaluate(0.0)
    play(server, compute, durations, iterations, recorder, evaluate)
    trace = recorder.trace(final_concurrency=server.concurrency)
    trace.check()
    metrics = {key: np.array([row[key] for row in rows]) for key in rows[0]}
    return Run(server.output.copy(), trace, metrics)
