"""What runs at the other end: a process that Ray has placed, which loads the task and computes jobs."""

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
"""Bytes by which a worker knows that the memory it has found is the server's."""


@dataclass(frozen=True)
class Terms:
    """What a worker is told when it starts."""

    worker: int
    n: int
    dtype: str
    threads: int
    transport: str | None
    slowdown: float
    seconds: float
    path: tuple[str, ...]
    """Where the server looks for modules; what of that exists here is looked at too, after everything else."""
    memory: tuple[int, int, int, int, bytes] | None
    """The server's process, its descriptors of points, updates and key, and the key: on one machine that is enough."""


class Worker:
    """Computes one job at a time. Ray calls the methods in the order in which the server did."""

    def hello(self) -> str:
        """There is room for it, and its process runs: on which node."""
        import ray

        node: str = ray.get_runtime_context().get_node_id()
        return node

    def load(self, package: bytes, terms: Terms) -> tuple[str, bool]:
        """Unpack the task: (what went wrong, whether it shares memory with the server)."""
        import cloudpickle

        self._terms = terms
        sys.path += [entry for entry in terms.path if entry not in sys.path and os.path.isdir(entry)]
        try:
            task, work = cloudpickle.loads(package)
        except BaseException:
            return traceback.format_exc(), False
        self._run = ActorRunner(task, work, terms)
        self._like: Vector = np.empty(terms.n, terms.dtype)
        return "", self._attach()

    def _attach(self) -> bool:
        """Open the server's memory, if this is its machine."""
        if self._terms.memory is None:
            return False
        process, *descriptors, key = self._terms.memory
        opened: list[int] = []
        found = False
        try:
            # One by one, so that those opened before one that cannot be are closed below.
            opened.extend(os.open(f"/proc/{process}/fd/{descriptor}", os.O_RDWR) for descriptor in descriptors)
            found = os.pread(opened[2], KEY, 0) == key
        except OSError:
            pass  # another machine, or another user's process of the same number
        if found:
            n, dtype = self._terms.n, self._terms.dtype
            self._points = Slots(opened[0], n, dtype, owner=False)
            self._updates = Slots(opened[1], n, dtype, owner=False)
        for descriptor in opened[2:] if found else opened:
            os.close(descriptor)
        return found

    def ping(self) -> None:
        """Answer."""

    def compute(self, seed: int, point: Vector | int, place: int, used: bool) -> tuple[int, Any, float]:
        """One job: (kind, the update or what is wrong with it, seconds).

        ``point`` is a vector, or the slot of the server's memory that holds it; the update then goes to ``place``.
        ``used``: whether the server has used the update before, for error feedback.
        """
        shares = isinstance(point, int)
        out: Vector = self._updates[place] if shares else self._like
        x: Vector = self._points[point] if isinstance(point, int) else point
        self._run.begin(shares=shares, used=used)
        kind, value, seconds = self._run(x, seed, out)
        return int(kind), value, seconds


class ActorRunner(JobRunner):
    """Computes jobs. An update goes into the server's memory or along with the answer, in 16 bits if asked for."""

    def __init__(self, task: Any, work: Any, terms: Terms) -> None:
        super().__init__(task, work, terms.worker, JobRules(terms.threads, terms.slowdown, terms.seconds))
        self._rounding: Rounding | None = None
        if terms.transport is not None:
            self._rounding = Rounding(terms.transport, terms.n, terms.dtype)
            self._unpacking = Unpacking(terms.transport)

    def begin(self, *, shares: bool, used: bool) -> None:
        """Say how the next update travels, and what became of the one before.

        The rest that rounding left behind stays in this process. It belongs to the next update if the server used the
        one before, and is dropped otherwise.
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
