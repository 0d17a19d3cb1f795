"""A Flower grid as an engine; `asyncsgd.flower.serve` makes it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, positive
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Engine, WorkerPool
from asyncsgd.flower.arrays import Arrays, Layout
from asyncsgd.tasks.base import Task

# --------------------------------------------------------------------------------------------------------------
# How clients are treated: how long they may take, what is believed, when one is left out for a while.


@dataclass(frozen=True)
class Clients:
    """What is asked of clients, and what is done about those who fail.

    Args:
        minimum: Clients that must be connected before the first job is sent; by default 2, or as many as a round
            of the method needs.
        timeout: Seconds that a job may take at most, from the moment it is sent; Flower gives it up then. Jobs are sent
            when their client is free, so waiting in line does not use it up.
        patience: A client that takes longer than this multiple of the median of its own last 21 jobs, and longer than a
            minute, is left out until it answers: the jobs that wait for it go to the others. Before its first answer a
            client gets this multiple of the slowest other client's median, and at least ten minutes. The multiple ends
            halfway between the median and ``timeout``. None: only ``timeout`` counts, and until then a client that
            hangs may hold every job.
        queue: Jobs that one client may be given at once, running and waiting, under methods that draw busy clients
            too (Algorithm 2); by default there is no bound, and every client gets the same share of the jobs. With a
            bound fast clients wait less for slow ones, and slow ones count less: of three clients of which one is ten
            times slower, that one gives 6 % of the updates with ``concurrency=6`` and ``queue=3``.
        max_norm: Refuse updates that are longer than this; None: any length. Clipping, which shortens them
            instead, belongs to the method: ``method.clipped(norm)``.
        max_failures: After so many failures in a row a client is left out for a while.
        pause: For how many seconds, the first time; it doubles each time until a good update comes.
        replies: ``"models"``: clients return weights, as stock ClientApps do, and the update is x_sent - x_returned.
            ``"updates"``: they return that difference themselves.
        weighted_by: The metric by which other metrics are averaged.

    >>> Clients(minimum=4, max_norm=10.0).timeout
    3600.0
    """

    minimum: int | None = None
    timeout: float = 3600.0
    patience: float | None = 10.0
    queue: int | None = None
    max_norm: float | None = None
    max_failures: int = 3
    pause: float = 60.0
    replies: Literal["models", "updates"] = "models"
    weighted_by: str = "num-examples"

    def __post_init__(self) -> None:
        for name in ("minimum", "queue", "max_failures"):
            value = getattr(self, name)
            if value is not None:
                count(name, value)
        positive("timeout", self.timeout)
        positive("pause", self.pause)
        if self.patience is not None:
            positive("patience", self.patience)
            if self.patience <= 1:
                fix = "pass a multiple above 1, such as 10, or None"
                raise BadParameter("patience", self.patience, "gives up every other job of a client", fix)
        if self.max_norm is not None:
            positive("max_norm", self.max_norm)
        if self.replies not in ("models", "updates"):
            raise BadParameter("replies", self.replies, "is not known", 'pass "models" or "updates"')


@dataclass(frozen=True)
class Flower(Engine):
    """Clients of a Flower grid. ``workers`` is how many of them must be there for the run to begin; more may come."""

    grid: Any
    layout: Layout
    carried: Arrays = field(default_factory=dict)
    """At the start: the arrays that are not in the vector."""
    clients: Clients = field(default_factory=Clients)
    train_config: Mapping[str, Any] = field(default_factory=dict)
    evaluate_config: Mapping[str, Any] | None = None
    """None: clients do not evaluate."""
    folder: Path | None = None
    """Where numbers of clients, carried arrays and kept updates go."""
    resume: bool = False
    keep_updates: bool = False
    freeze: bool = False
    """Send the carried arrays as they were at the start, as differential privacy covers only the vector."""

    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        """``task`` and ``work`` are with the clients; a task with a method ``bind`` is given the pool."""
        from asyncsgd.flower.pool import FlowerPool

        pool = FlowerPool(self, x)
        bind = getattr(task, "bind", None)
        if bind is not None:
            bind(pool)
        return pool

    def describe(self) -> dict[str, Any]:
        clients = {name: value for name, value in vars(self.clients).items() if value is not None}
        grid = type(self.grid).__name__
        return {"engine": "flower", "workers": self.workers, "grid": grid, "clients": clients}
