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
from typing import Any, NamedTuple

import numpy as np

from asyncsgd.core.vectors import Vector
from asyncsgd.engines._processes.shared_memory import Slots
from asyncsgd.engines.devices import CPU, tell
from asyncsgd.engines.job import JobRules, JobRunner, load_compiled

KEY = 16
"""Length in bytes of the random key by which a worker recognises the server's memory."""


@dataclass(frozen=True)
class WorkerConfig:
    """The settings that a worker receives when it loads the task."""

    worker: int
    n: int
    dtype: str
    threads: int
    slowdown: float
    min_seconds: float
    device: str
    """The name of the device that the task has to use."""
    path: tuple[str, ...]
    """The server's module path. The worker appends those entries that exist on its machine to its own path."""
    memory: tuple[int, int, int, int, bytes] | None
    """The server's process id, its descriptors of points, updates and key, and the key. None: do not share memory."""


class Loaded(NamedTuple):
    """The answer to `Worker.load`."""

    error: str = ""
    """The traceback of a task that could not be loaded."""
    no_device: str = ""
    """Why the task cannot use its GPU."""
    shares: bool = False
    """Whether the worker shares memory with the server."""


class Worker:
    """Computes one job at a time. Ray calls the methods in the order in which the server called them."""

    def hello(self) -> str:
        """Return the id of this node. The answer shows that Ray found room and started the process."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node

    def load(self, package: bytes, config: WorkerConfig) -> Loaded:
        """Unpack the task, and tell it its device. Ray has set CUDA_VISIBLE_DEVICES before, to the GPUs it assigned."""
        import cloudpickle

        self._config = config
        sys.path += [entry for entry in config.path if entry not in sys.path and os.path.isdir(entry)]
        try:
            task, work = cloudpickle.loads(package)
        except BaseException:
            return Loaded(error=traceback.format_exc())
        if problem := tell(task, config.device):
            return Loaded(error=problem) if config.device == CPU else Loaded(no_device=problem)
        self._run = ActorRunner(task, work, config)
        self._like: Vector = np.empty(config.n, config.dtype)
        load_compiled(work, config.dtype)
        self._run.state(self._like)
        return Loaded(shares=self._attach())

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
        A vector of bytes is an encoded point. ``used`` says whether the server applied the previous update, which a
        worker that keeps state needs to know.
        """
        seed, steps, batch = work
        shares = isinstance(point, int)
        out: Vector = self._updates[place] if shares else self._like
        x: Vector = self._points[point] if isinstance(point, int) else point
        self._run.settle(used)
        self._run.shares = shares
        kind, value, seconds = self._run(x, seed, out, steps, batch)
        return int(kind), value, seconds


class ActorRunner(JobRunner):
    """Computes jobs. Writes an update to the server's memory, or returns it with the answer, encoded if asked."""

    def __init__(self, task: Any, work: Any, config: WorkerConfig) -> None:
        super().__init__(task, work, config.worker, JobRules(config.threads, config.slowdown, config.min_seconds))
        self.shares = False
        """Whether the next update goes to shared memory."""

    def deliver(self, update: Vector, out: Vector) -> Any:
        if self.shares:
            return super().deliver(update, out)
        state = self.state(out)
        return state.encode(update) if state.encodes else update
