"""Epochs of a run: how far it has walked through its data, and how many rows it skipped."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Outcome
from asyncsgd.core.server import Server
from asyncsgd.core.validate import count
from asyncsgd.tasks.base import Task
from asyncsgd.trace import Trace

USED = (Outcome.APPLIED, Outcome.IN_FLIGHT)
"""Outcomes of jobs whose rows are used, or may still be. The rows of all other jobs are skipped."""


def per_epoch(task: Task) -> int | None:
    """Return the number of mini-batches in an epoch of the task, over all workers; None if it has no epochs."""
    number = getattr(task, "batches_per_epoch", None)
    return None if number is None else int(number)


def iterations_of(task: Task, work_steps: int, iterations: int | None, epochs: int | None) -> int:
    """Return the number of iterations of a run, of which the caller gave either ``iterations`` or ``epochs``.

    A run of epochs has as many iterations as it hands out jobs.
    """
    if (iterations is None) == (epochs is None):
        if epochs is None:
            raise BadParameter("iterations", None, "is missing", "pass iterations=N, or epochs=N")
        raise BadParameter("epochs", epochs, f"and iterations = {iterations} were both given", "pass one of them")
    if epochs is None:
        assert iterations is not None
        return iterations
    count("epochs", epochs)
    number = per_epoch(task)
    if number is None:
        name = getattr(task, "name", type(task).__name__)
        problem = f"needs a task that walks its data in epochs, and {name} draws its rows, or reads a stream"
        fix = 'make the task with asgd.tasks.torch(..., sampling="epochs"), or pass iterations=N'
        raise BadParameter("epochs", epochs, problem, fix)
    return -(-int(epochs) * number // work_steps)


def expected(config: Mapping[str, Any], iteration: int, epoch: float | None) -> int:
    """Return how many iterations a run will have: as requested, or at its updates per epoch so far.

    With epochs and steps per worker, the number of updates depends on the speeds of the workers.

    >>> expected({"iterations": 80, "epochs": 4, "estimated": True}, iteration=65, epoch=2.0)
    130
    """
    requested = int(config["iterations"])
    if not config.get("estimated"):
        return requested
    return max(iteration, round(iteration * config["epochs"] / epoch) if epoch else requested)


class EpochCount:
    """Counts the rows of jobs that were lost, rejected, cancelled or dropped: no step of the model used them.

    A task may have a method ``examples(worker, seed, batch)``, the number of rows of a mini-batch; in epochs, the seed
    does not matter. Without it, the rows of an epoch are shared out evenly.
    """

    def __init__(self, task: Any) -> None:
        self._task = task
        self.per_epoch = per_epoch(task)
        self.skipped: dict[Outcome, tuple[int, int]] = {}
        """(jobs, rows) by outcome."""

    @property
    def rows(self) -> int | None:
        """Rows that were skipped; None if the task has no epochs."""
        return None if self.per_epoch is None else sum(rows for _, rows in self.skipped.values())

    def add(self, outcome: Outcome, worker: int, steps: int, batch: int) -> None:
        """Count a job that has ended."""
        if self.per_epoch is None or outcome in USED:
            return
        rows = sum(self._rows(worker, number) for number in range(batch, batch + steps))
        jobs, before = self.skipped.get(outcome, (0, 0))
        self.skipped[outcome] = jobs + 1, before + rows

    def load(self, trace: Trace) -> None:
        """Count the jobs of a trace in place of all counted before."""
        self.skipped = {}
        if self.per_epoch is None:
            return
        jobs = trace.jobs
        columns: Iterable[tuple[int, int, int, int]] = zip(
            jobs.outcome.tolist(), jobs.worker.tolist(), jobs.steps.tolist(), jobs.batch.tolist(), strict=True
        )
        for outcome, worker, steps, batch in columns:
            self.add(Outcome(outcome), worker, steps, batch)

    def _rows(self, worker: int, batch: int) -> int:
        exact = getattr(self._task, "examples", None)
        if exact is not None:
            return int(exact(worker, 0, batch))
        assert self.per_epoch is not None
        rows = int(getattr(self._task, "epoch_rows", None) or 0)
        size = -(-rows // self.per_epoch)
        return min(size, max(0, rows - batch % self.per_epoch * size))

    def progress(self, server: Server) -> float | None:
        """Return the epochs whose mini-batches have ended: 1.25 is a quarter into the second. None without epochs."""
        if self.per_epoch is None:
            return None
        return (server.batches - sum(job.steps for job in server.in_flight)) / self.per_epoch

    def facts(self) -> tuple[str, ...]:
        """Return a sentence about skipped rows, if there are any.

        >>> seen = EpochCount(type("Task", (), {"batches_per_epoch": 10, "epoch_rows": 39})())
        >>> seen.add(Outcome.LOST, 0, 1, 9), seen.add(Outcome.DROPPED, 0, 2, 0)
        (None, None)
        >>> seen.facts()
        ('11 rows of data were skipped (jobs: 1 lost, 1 dropped)',)
        """
        if not self.rows:
            return ()
        jobs = (f"{jobs} {outcome.name.lower()}" for outcome, (jobs, _) in sorted(self.skipped.items(), reverse=True))
        return (f"{self.rows:,} rows of data were skipped (jobs: {', '.join(jobs)})",)
