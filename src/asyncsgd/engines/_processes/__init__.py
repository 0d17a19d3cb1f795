"""Worker processes on this machine: ``asgd.engines.processes(workers=4)``.

``pool`` is the server's side of the workers, and ``worker`` what each of them runs. ``fork_server`` is the process that
forks them, and ``fork_client`` the server's connection to it. ``shared_memory`` holds the vectors and the message
formats. This module imports none of them until the workers start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from asyncsgd.core.errors import UsageError
from asyncsgd.core.validate import count, positive
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Engine, WorkerPool, per_worker, processors, share
from asyncsgd.tasks.base import Task


@dataclass(frozen=True)
class Processes(Engine):
    """Worker processes on this machine; see `processes`."""

    slowdown: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()
    threads_each: int | None = None
    job_timeout: float | None = None
    start_timeout: float = 120.0

    @property
    def threads(self) -> int:
        return self.threads_each or share(self.workers)

    def pretence(self, worker: int) -> dict[str, float]:
        """Return the artificial delays of this worker."""
        slowdown = self.slowdown[worker] if self.slowdown else 1.0
        return {"slowdown": slowdown, "seconds": self.seconds[worker] if self.seconds else 0.0}

    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        if not hasattr(os, "fork"):
            raise UsageError("this system cannot fork worker processes; train on Linux, or simulate")
        from asyncsgd.engines._processes.pool import ProcessPool

        return ProcessPool(self, task, work, x)


def processes(
    workers: int | None = None,
    *,
    slowdown: Sequence[float] | Mapping[int, float] | None = None,
    seconds: Sequence[float] | Mapping[int, float] | None = None,
    threads: int | None = None,
    job_timeout: float | None = None,
    start_timeout: float = 120.0,
) -> Processes:
    """Compute jobs in worker processes on this machine, with shared memory for parameters and updates.

    Args:
        workers: Number of worker processes; None: one per core.
        slowdown: Artificial delay for experiments: the factor by which each job takes longer, one number per worker or
            ``{worker: factor}``.
        seconds: Artificial delay for experiments: the least number of seconds that a job takes, one number per worker
            or ``{worker: seconds}``.
        threads: CPU threads per worker. Default: an equal share of the processors.
        job_timeout: Seconds after which the engine gives up a job, and kills and replaces its worker. Default: 20 times
            the longest job so far, and at least 5 minutes.
        start_timeout: Seconds that the workers may take to load the task.

    >>> processes(4, slowdown={3: 10}).slowdown
    (1.0, 1.0, 1.0, 10.0)
    """
    workers = processors() if workers is None else workers
    count("workers", workers)
    if threads is not None:
        count("threads", threads)
    if job_timeout is not None:
        positive("job_timeout", job_timeout)
    positive("start_timeout", start_timeout)
    return Processes(
        workers,
        slowdown=per_worker("slowdown", slowdown, workers, nothing=1.0),
        seconds=per_worker("seconds", seconds, workers, nothing=0.0),
        threads_each=threads,
        job_timeout=job_timeout,
        start_timeout=start_timeout,
    )
