"""A fake Ray that the test controls, and a call queue that uses it."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from asyncsgd.core.compression import Compression
from asyncsgd.core.events import Assign, Cancel, Job
from asyncsgd.core.work import Encoded, Gradient
from asyncsgd.engines._ray import Group
from asyncsgd.engines._ray.call_queue import CallQueue
from asyncsgd.engines._ray.handle import AHEAD, WorkerHandle
from asyncsgd.engines._ray.vector_store import VectorStore
from asyncsgd.engines.job import Kind
from asyncsgd.engines.lifecycle import Lifecycle, Rules

N = 1000
BYTES = 8 * N


class Gone(Exception):
    """The answer to a dead worker's calls."""


@dataclass(eq=False)
class FakeRay:
    """A Ray whose calls are answered when the test decides."""

    answers: dict[Any, Any] = field(default_factory=dict)
    called: list[tuple[Any, ...]] = field(default_factory=list)
    puts: list[float] = field(default_factory=list)
    exceptions: Any = field(default_factory=lambda: SimpleNamespace(RayError=Gone))

    def put(self, vector: Any) -> str:
        self.puts.append(float(vector[0]))
        return f"object {len(self.puts)}"

    def remote(self, *arguments: Any) -> str:
        self.called.append(arguments)
        return f"call {len(self.called) - 1}"

    def wait(
        self, references: list[Any], num_returns: int, timeout: float, fetch_local: bool = True
    ) -> tuple[list[Any], list[Any]]:
        ready = [reference for reference in references if reference in self.answers][:num_returns]
        return ready, [reference for reference in references if reference not in ready]

    def get(self, reference: Any) -> Any:
        answer = self.answers[reference]
        if isinstance(answer, Exception):
            raise answer
        return answer


@dataclass
class FakeServer:
    """A call queue with workers on other machines, and points 0, 1, 2, ... whose first element is their number."""

    ray: FakeRay
    store: VectorStore
    queue: CallQueue
    handles: list[WorkerHandle]
    life: Lifecycle
    jobs: list[Job] = field(default_factory=list)

    def give(self, worker: int, slot: int, version: int | None = None) -> int:
        point = np.full(N, float(slot))
        number = len(self.jobs)
        job = Job(number, worker, 0, slot if version is None else version, 0, seed=100 + number)
        self.jobs.append(job)
        self.queue.assign(self.handles[worker], Assign(job, point, slot))
        return job.id

    def cancel(self, job: int) -> None:
        self.queue.cancel(Cancel(self.jobs[job]))

    def finish(self, call: int, kind: Kind = Kind.DONE, answer: Any = None) -> None:
        update = np.full(N, float(call)) if answer is None else answer
        self.ray.answers[f"call {call}"] = (int(kind), update, 0.5)

    def reports(self) -> list[Any]:
        found = [self.queue.computed(call, *answer) for call, answer in self.queue.answers(0.0)]
        return [report for report in found if report is not None]

    def poll(self) -> None:
        """Begin a poll, as the pool does: the server has used the updates of the last one."""
        self.life.begin()
        self.queue.make_room()

    @property
    def points(self) -> list[Any]:
        """What was sent as the point, call by call."""
        return [arguments[1] for arguments in self.ray.called]


def fake_server(workers: int = 2, vectors: float = 100.0, up: Compression | None = None) -> FakeServer:
    ray = FakeRay()
    work = Gradient() if up is None else Encoded(Gradient(), up=up)
    store = VectorStore(N, np.float64, work)
    store.open(ray, vectors * BYTES)
    life = Lifecycle(workers, Rules(ahead=1 if work.keeps else AHEAD))
    queue = CallQueue(store, life, up)
    queue.open(ray)
    handles = [WorkerHandle(number, Group(1)) for number in range(workers)]
    life.open()
    for handle in handles:
        handle.compute = ray
        life.ready(handle.number, 0.0)
    return FakeServer(ray, store, queue, handles, life)


def packed(value: float, code: Compression) -> Any:
    return code.encode(np.full(N, value))
