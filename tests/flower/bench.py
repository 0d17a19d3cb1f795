"""A pool of fake clients, to which the test assigns jobs, and everything that it reported."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from flower.fake import Client, FakeGrid, record
from flower.programs import GUARD

from asyncsgd.core.events import Assign, Cancel, Job, Joined
from asyncsgd.core.work import Gradient
from asyncsgd.engines.base import Report
from asyncsgd.flower.arrays import Layout
from asyncsgd.flower.engine import Clients, Flower

MODEL = record(w=np.zeros((2, 2), np.float32), n=np.array(0))
FOREVER = 3600.0


class Bench:
    """A pool, and what it has reported."""

    def __init__(self, pool: Any, grid: FakeGrid) -> None:
        self.pool, self.grid = pool, grid
        self.reports: list[Report] = []
        self.step = 0.05  # seconds of a poll
        self.point = np.zeros(4, np.float32)
        self._jobs: dict[int, Job] = {}

    def give(self, worker: int) -> int:
        number = len(self._jobs)
        job = self._jobs[number] = Job(number, worker, number, number, 0, 0)
        self.pool.execute(Assign(job, self.point, number))
        return number

    def cancel(self, job: int) -> None:
        self.pool.execute(Cancel(self._jobs[job]))

    def until(self, done: Callable[[], Any], what: str) -> Any:
        deadline = time.monotonic() + GUARD
        while not (found := done()):
            assert time.monotonic() < deadline, f"waited in vain for {what}: {self.reports}"
            self.reports += self.pool.poll(self.step)
        return found

    def of(self, kind: type, **fields: Any) -> list[Any]:
        found = [report for report in self.reports if isinstance(report, kind)]
        return [report for report in found if all(getattr(report, key) == value for key, value in fields.items())]

    def expect(self, kind: type, **fields: Any) -> Any:
        return self.until(lambda: self.of(kind, **fields), f"{kind.__name__} {fields}")[0]

    def all_join(self, number: int) -> None:
        self.until(lambda: sum(len(report.workers) for report in self.of(Joined)) >= number, "everybody")


@contextmanager
def bench(
    *clients: Client, workers: int | None = None, rules: Clients | None = None, **options: Any
) -> Iterator[Bench]:
    others = set(threading.enumerate())  # of tests before: loaders of a task that nobody has collected yet
    grid = FakeGrid(clients)
    layout = Layout.of(MODEL)
    x, carried = layout.split(MODEL)
    needed = len(clients) if workers is None else workers
    engine = Flower(needed, grid, layout, carried, rules or Clients(pause=FOREVER), **options)
    with engine.start(None, Gradient(), x) as pool:  # type: ignore[arg-type]
        here = Bench(pool, grid)
        if workers is None:
            here.all_join(needed)
        yield here
    left = set(threading.enumerate()) - others
    for thread in left:  # `close` waits for some seconds only
        thread.join(GUARD)
    assert not [thread.name for thread in left if thread.is_alive()]
    assert not grid.wrong
