"""The actor that Ray runs for each worker: it loads the task and computes jobs.

Ray runs the calls of one actor one after another in one thread, in the order in which the server made them. On the
server's own machine the actor shares memory with the server: it reads the point's slot, and writes only to the place
that came with the call. An actor that is killed may still write there for a moment; see `WorkerHandle.places`.
"""

from __future__ import annotations

import os
import sys
import traceback
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.vectors import Vector
from asyncsgd.engines._processes.shared_memory import Slots
from asyncsgd.engines.compression import Rounding, Unpacking
from asyncsgd.engines.job import JobRules, JobRunner

KEY = 16
"""Length in bytes of the random key by which a worker recognises the server's memory."""


@dataclass(frozen=True)
class WorkerConfig:
    """The settings that a worker receives when it loads the task."""

    worker: int
    n: int
    dtype: str
    threads: int
    transport: str | None
    slowdown: float
    seconds: float
    path: tuple[str, ...]
    """The server's module path. The worker appends those entries that exist on its machine to its own path."""
    memory: tuple[int, int, int, int, bytes] | None
    """The server's process id, its descriptors of points, updates and key, and the key. None: do not share memory."""


class Worker:
    """Computes one job at a time. Ray calls the methods in the order in which the server called them."""

    def hello(self) -> str:
        """Return the id of this node. The answer shows that Ray found room and started the process."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node

    def load(self, package: bytes, config: WorkerConfig) -> tuple[str, bool]:
        """Unpack the task. Return (error text or "", whether this worker shares memory with the server)."""
        import cloudpickle

        self._config = config
        sys.path += [entry for entry in config.path if entry not in sys.path and os.path.isdir(entry)]
        try:
            task, work = cloudpickle.loads(package)
        except BaseException:
            return traceback.format_exc(), False
        self._run = ActorRunner(task, work, config)
        self._like: Vector = np.empty(config.n, config.dtype)
        return "", self._attach()

    def _attach(self) -> bool:
        """Open the server's memory through ``/proc``, if this is the server's machine. Return whether that worked.

        On another machine, or in another container, the same process id may belong to any process. So the worker
        compares the random key before it touches the memory.
        """
        if self._config.memory is None:
            return False
        process, *descriptors, key = self._config.memory
        opened: list[int] = []
        found = False
        try:
            # `extend` adds one by one, so that descriptors opened before an error are closed below.
            opened.extend(os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR) for descriptor in descriptors)
            found = os.pread(opened[2], KEY, 0) == key
        except OSError:
            pass  # another machine, or another user's process with the same id
        if found:
            n, dtype = self._config.n, self._config.dtype
            self._points = Slots(opened[0], n, dtype, owner=False)
            self._updates = Slots(opened[1], n, dtype, owner=False)
        for descriptor in opened[2:] if found else opened:
            os.close(descriptor)
        return found

    def ping(self) -> None:
        """Answer, to show that the process is alive."""

    def compute(
        self, work: tuple[int, int, int], point: Vector | int, place: int, used: bool
    ) -> tuple[int, Any, float]:
        """Compute one job. Return (kind, the update or an error text, seconds).

        ``work`` is the job's seed, its number of mini-batches, and the number of those before it. ``point`` is a
        vector, or a slot of the server's memory; the update then goes to ``place`` in that memory.
        ``used`` says whether the server used the previous update, which error feedback needs.
        """
        seed, steps, batch = work
        shares = isinstance(point, int)
        out: Vector = self._updates[place] if shares else self._like
        x: Vector = self._points[point] if isinstance(point, int) else point
        self._run.begin(shares=shares, used=used)
        kind, value, seconds = self._run(x, seed, out, steps, batch)
        return int(kind), value, seconds


class ActorRunner(JobRunner):
    """Computes jobs. Writes an update to the server's memory, or returns it with the answer, in 16 bits if asked."""

    def __init__(self, task: Any, work: Any, config: WorkerConfig) -> None:
        super().__init__(task, work, config.worker, JobRules(config.threads, config.slowdown, config.seconds))
        self._rounding: Rounding | None = None
        if config.transport is not None:
            self._rounding = Rounding(config.transport, config.n, config.dtype)
            self._unpacking = Unpacking(config.transport)

    def begin(self, *, shares: bool, used: bool) -> None:
        """Set whether the next update goes to shared memory, and whether the server used the previous update.

        The rounding error stays in this process. If the server used the previous update, the error of rounding it is
        added to the next one. Otherwise the older error stays.
        """
        self._shares = shares
        if self._rounding is not None:
            self._rounding.settle(used=used)

    def deliver(self, update: Vector, out: Vector) -> Any:
        parcel = None if self._rounding is None else self._rounding.pack(update)
        if not self._shares:
            return update if parcel is None else tuple(parcel)
        if parcel is not None:
            self._unpacking(parcel, out)
        elif update is not out:
            np.copyto(out, update)
        return None
