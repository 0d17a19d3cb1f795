"""A sound engine without any process: jobs are computed in ``poll``. The ground that deliberate bugs are put on."""

from __future__ import annotations

import traceback
from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadUpdate
from asyncsgd.core.events import Arrived, Assign, Command, Joined
from asyncsgd.core.validate import check_update
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work, compute_job
from asyncsgd.engines.base import Engine, Failed, Rejected, Report, WorkerPool
from asyncsgd.tasks.base import Task
from asyncsgd.testing import Abilities

ABILITIES = Abilities(replaces=False, times_out=False, stops=False, cleans_up=True, other_processes=False)


class InlinePool(WorkerPool):
    def __init__(self, workers: int, task: Task, work: Work, x: Vector) -> None:
        self.task, self.work, self.x, self.dtype = task, work, x, x.dtype
        self.here: set[int] = set()
        self.newcomers = list(range(workers))
        self.jobs: deque[Assign] = deque()

    def execute(self, command: Command) -> None:
        if not isinstance(command, Assign):
            self.jobs = deque(assign for assign in self.jobs if assign.job.id != command.job.id)
        elif command.job.worker in self.here:
            self.jobs.append(command)

    def poll(self, timeout: float) -> list[Report]:
        if self.newcomers:
            joined, self.newcomers = self.newcomers, []
            self.here.update(joined)
            return [Joined(joined)]
        return [self.compute(self.jobs.popleft()) for _ in range(min(2, len(self.jobs)))]

    def compute(self, assign: Assign) -> Report:
        job = assign.job
        try:
            update = compute_job(self.work, self.task, assign.point, job.worker, job.seed, job.steps, job.batch)
            check_update(update, self.x, job.worker, job.id)
        except BadUpdate as error:
            return Rejected(job.id, job.worker, str(error))
        except BaseException:
            return Failed(job.id, job.worker, traceback.format_exc())
        return Arrived(job.id, np.array(update), job.worker, checked=True)

    def retire(self, worker: int) -> None:
        self.here.discard(worker)
        self.newcomers = [other for other in self.newcomers if other != worker]
        self.jobs = deque(assign for assign in self.jobs if assign.job.worker != worker)

    def close(self) -> None:
        self.jobs.clear()


class UncheckedPool(InlinePool):
    """Hands over whatever comes, and leaves the checking to the server."""

    def compute(self, assign: Assign) -> Report:
        job = assign.job
        try:
            update = compute_job(self.work, self.task, assign.point, job.worker, job.seed, job.steps, job.batch)
        except BadUpdate as error:  # from a local step
            return Rejected(job.id, job.worker, str(error))
        except BaseException:
            return Failed(job.id, job.worker, traceback.format_exc())
        return Arrived(job.id, update, job.worker)


@dataclass(frozen=True)
class Inline(Engine):
    kind: type[InlinePool] = InlinePool

    def start(self, task: Task, work: Work, x: Vector) -> InlinePool:
        return self.kind(self.workers, task, work, x)

    def describe(self) -> dict[str, Any]:
        return {"engine": "inline", "workers": self.workers}
