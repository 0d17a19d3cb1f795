"""Worker processes on this machine: ``asgd.engines.processes(workers=4)``.

``pool`` is the server's side of the workers, and ``worker`` what each of them runs. ``fork_server`` is the process that
forks them, and ``fork_client`` the server's connection to it. ``shared_memory`` holds the vectors and the message
formats. This module imports none of them until the workers start.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle, islice
from typing import ClassVar

from asyncsgd.core.errors import UsageError
from asyncsgd.core.validate import count
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Engine, WorkerPool, checked, processors, share
from asyncsgd.engines.devices import CPU, can_use_devices, check_devices, check_task, visible_gpus
from asyncsgd.tasks.base import Task


@dataclass(frozen=True)
class Processes(Engine):
    """Worker processes on this machine; see `processes`.

    See docs/users/engineer.md for training with worker processes.
    """

    devices: tuple[str, ...] = ()
    threads_each: int | None = None
    job_timeout: float | None = None
    start_timeout: float = 120.0
    slowdown: tuple[float, ...] = ()
    min_seconds: tuple[float, ...] = ()
    keeps_state: ClassVar[bool] = True
    on_this_machine: ClassVar[bool] = True

    @property
    def threads(self) -> int:
        return self.threads_each or share(self.workers)

    def delays(self, worker: int) -> dict[str, float]:
        """Return the artificial delays of this worker."""
        slowdown = self.slowdown[worker] if self.slowdown else 1.0
        return {"slowdown": slowdown, "min_seconds": self.min_seconds[worker] if self.min_seconds else 0.0}

    def devices_for(self, task: Task) -> list[str]:
        """Return the device of every worker. Raise `BadParameter` if the task cannot use them."""
        names = self.devices
        for name in names:
            if name != CPU:
                check_task(task, "devices", name)
        if not names and can_use_devices(task):
            names = tuple(f"cuda:{number}" for number in range(visible_gpus()))
        return list(islice(cycle(names or (CPU,)), self.workers))

    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        if not hasattr(os, "fork"):
            raise UsageError("this system cannot fork worker processes; train on Linux, or simulate")
        from asyncsgd.engines._processes.pool import ProcessPool

        return ProcessPool(self, task, work, x)


def processes(
    workers: int | None = None,
    *,
    devices: str | Sequence[str] | None = None,
    threads: int | None = None,
    job_timeout: float | None = None,
    start_timeout: float = 120.0,
    slowdown: Sequence[float] | Mapping[int, float] | None = None,
    min_seconds: Sequence[float] | Mapping[int, float] | None = None,
) -> Processes:
    """Compute jobs in worker processes on this machine, with shared memory for parameters and updates.

    Args:
        workers: Number of worker processes. None: one per entry of ``devices`` if it names anything but the CPU; else
            one per GPU that PyTorch can use; else one per core. PyTorch is not imported to find this out: unless it is
            imported already, the engine reads which files ``/dev/nvidia*`` exist, and ``CUDA_VISIBLE_DEVICES``.
        devices: Names of devices, as PyTorch writes them: ``"cpu"``, or ``["cuda:0", "cuda:1"]``. Workers take them in
            turn: worker 2 of the latter computes on ``cuda:0``. Each worker calls ``task.use_device(device)`` before
            its first job. A task without that method computes on the CPU. None: the GPUs that PyTorch can use if there
            are any and the task has that method, else the CPU. The server evaluates on the CPU.
        threads: CPU threads per worker. Default: an equal share of the processors.
        job_timeout: Seconds after which the engine gives up a job, and kills and replaces its worker. Default: 20 times
            the longest job so far, and at least 5 minutes; 5 minutes per local step until a first update has arrived.
        start_timeout: Seconds that the workers may take to load the task.
        slowdown: Artificial delay for experiments: the factor by which each job takes longer, one number per worker or
            ``{worker: factor}``.
        min_seconds: Artificial delay for experiments: the least number of seconds that a mini-batch takes, one number
            per worker or ``{worker: seconds}``. A job of 50 local steps takes at least 50 times as long.

    >>> processes(4, slowdown={3: 10}).slowdown
    (1.0, 1.0, 1.0, 10.0)
    >>> processes(devices=["cuda:0", "cuda:1"]).workers
    2

    docs/guides/cluster.md describes GPUs.
    """
    names = check_devices(devices)
    if workers is None:
        workers = len(names) if set(names) - {CPU} else 0 if names else visible_gpus()
        workers = workers or processors()
    count("workers", workers)
    if threads is not None:
        count("threads", threads)
    return Processes(
        workers,
        devices=names,
        threads_each=threads,
        **checked(workers, job_timeout, start_timeout, slowdown, min_seconds),
    )
