"""The engine whose workers are the clients of a Flower grid. `asyncsgd.flower.AsyncStrategy` makes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Literal

from asyncsgd.core.compression import Compression
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, positive
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Work
from asyncsgd.engines.base import Engine, WorkerPool
from asyncsgd.flower.arrays import STATISTICS, Arrays, Layout
from asyncsgd.flower.client_work import ClientWork
from asyncsgd.flower.privacy import Accountant
from asyncsgd.flower.round_rules import Config, RoundRules
from asyncsgd.flower.weights import EXAMPLES
from asyncsgd.tasks.base import Task


@dataclass(frozen=True)
class Clients:
    """Requirements for clients, and what to do about clients that fail.

    Args:
        minimum: Number of clients that must be connected before the first job is sent, if ``min_train_nodes`` and
            ``min_available_nodes`` of the strategy ask for fewer. Default: the number that a round of the method needs.
        timeout: Seconds that a job may take, counted from when it is sent. Flower gives up the job after that. A job is
            sent only when its client is free, so waiting in the queue does not count. Default: the ``timeout`` of
            ``start``, which is an hour if you do not set it.
        patience: How many times its usual time a client may take. The usual time is the median of its last 21 jobs, and
            a client always gets at least a minute. A client that takes longer is left out until it answers, and its
            waiting jobs go to other clients. Before its first answer, a client gets this multiple of the slowest other
            client's median, and at least ten minutes. The limit is never later than halfway between the usual time and
            ``timeout``. None: only ``timeout`` counts, and until then one client that hangs may hold every job.
        queue: Largest number of jobs of one client at once, running and waiting. It applies to methods that also draw
            busy clients (Algorithm 2). Default: no bound, and every client gets the same share of the jobs. With a
            bound, fast clients wait less for slow ones, and slow ones contribute less: of three clients of which one is
            ten times slower, the slow one gives 6 % of the updates with ``concurrency=6`` and ``queue=3``.
        max_norm: Refuse updates with a larger norm. ``"auto"``: 10 times the median norm of the last 50 accepted
            updates, once 20 were accepted. That leaves the running statistics to their median. It is off if the method
            clips, because clipping, which shortens updates instead, bounds them already: ``method.clipped(norm)``.
            None: accept any norm.
        max_updates: Largest number of updates of one client that the run uses. After that, the client gets no more
            jobs. When no connected client is left, the run ends. None: no limit.
        max_failures: Leave out a client for a while after this many consecutive failures.
        pause: Seconds for which a failing client is left out the first time. The time doubles at each further pause
            until the client sends a good update.
        replies: ``"models"``: clients return weights, as stock ClientApps do, and the update is x_sent - x_returned.
            ``"updates"``: clients return that difference themselves.
        weighted_by: Name of the number in a reply that weighs its update, and its metrics in their averages. The
            strategy sets it to its ``weighted_by_key``, unless it is None. A client that does not report it counts as
            an average client. None: all clients count the same. Methods with noise and robust aggregation do not weigh
            updates; see `asyncsgd.Method.weighted` for the rule.
        statistics: Name patterns (``*`` matches anything) of arrays that are statistics of data and not trained.
            Clients receive the median of what clients returned last. Default: the names of PyTorch's BatchNorm.
        shared: Name patterns of the arrays that the server and the clients share; one pattern may be a string. Only
            these arrays are sent, expected in replies, and in the run's ``arrays``. All others stay on the clients, as
            personal layers do. Default: all arrays.
        heterogeneous: Whether the data differ between clients. Methods that favour fast clients then warn.
        keep_updates: Whether to write every update to the run's directory, so that `asyncsgd.replay` can apply them
            again.

    >>> Clients(timeout=600.0, max_norm=10.0).patience
    10.0
    """

    minimum: int | None = None
    timeout: float | None = None
    patience: float | None = 10.0
    queue: int | None = None
    max_norm: float | Literal["auto"] | None = "auto"
    max_updates: int | None = None
    max_failures: int = 3
    pause: float = 60.0
    replies: Literal["models", "updates"] = "models"
    weighted_by: str | None = EXAMPLES
    statistics: Sequence[str] = STATISTICS
    shared: str | Sequence[str] = "*"
    heterogeneous: bool = True
    keep_updates: bool = False

    def __post_init__(self) -> None:
        for name in ("minimum", "queue", "max_failures", "max_updates"):
            value = getattr(self, name)
            if value is not None:
                count(name, value)
        if self.timeout is not None:
            positive("timeout", self.timeout)
        positive("pause", self.pause)
        if self.patience is not None:
            positive("patience", self.patience)
            if self.patience <= 1:
                fix = "pass a multiple above 1, such as 10, or None"
                raise BadParameter("patience", self.patience, "would give up every second job of a client", fix)
        if isinstance(self.max_norm, str) and self.max_norm != "auto":
            raise BadParameter("max_norm", self.max_norm, "is unknown", 'pass "auto", a number, or None for no bound')
        if self.max_norm is not None and not isinstance(self.max_norm, str):
            positive("max_norm", self.max_norm)
        if self.replies not in ("models", "updates"):
            raise BadParameter("replies", self.replies, "is unknown", 'pass "models" or "updates"')
        if isinstance(self.statistics, str) or not all(isinstance(pattern, str) for pattern in self.statistics):
            fix = 'pass a list of name patterns, such as ["*running_mean"]'
            raise BadParameter("statistics", self.statistics, "is not a list of patterns", fix)
        if not self.shared or not all(isinstance(pattern, str) for pattern in self.shared):
            fix = 'pass a pattern such as "body.*", or a list of them'
            raise BadParameter("shared", self.shared, "is not a list of patterns", fix)

    @property
    def shared_patterns(self) -> tuple[str, ...]:
        """The patterns of ``shared`` as a tuple."""
        return (self.shared,) if isinstance(self.shared, str) else tuple(self.shared)


TIMEOUT = 3600.0
"""Seconds that a job may take, if neither `Clients` nor ``start`` sets them: Flower's default."""


@dataclass(frozen=True)
class Flower(Engine):
    """Clients of a Flower grid: ``workers`` of them at the start; more may join later."""

    noun: ClassVar[str] = "client"
    grid: Any
    layout: Layout
    carried: Arrays = field(default_factory=dict)
    """The initial values of the arrays that are not in the vector."""
    clients: Clients = field(default_factory=Clients)
    train_config: Config = field(default_factory=dict)
    evaluate_config: Config | None = None
    """None: clients do not evaluate."""
    folder: Path | None = None
    """Directory for the client numbers, the carried arrays and the kept updates."""
    resume: bool = False
    freeze: bool = False
    """Always send the initial carried arrays: differential privacy protects only the vector."""
    up: Compression | None = None
    """How clients compress updates, with `asyncsgd.flower.compress_mod`."""
    down: Compression | None = None
    """How models are compressed on the way to clients."""
    accountant: Accountant | None = None
    """Counts what clients contribute, if the method adds noise. Its book may have a limit."""
    rounds: RoundRules = field(default_factory=RoundRules)
    minimum: int | None = None
    """Number of clients that must be connected before the first job is sent. None: ``workers``."""
    report_limit: float | None = None
    """How many times the median a report of a client counts at most; None: no limit."""

    @property
    def needed(self) -> int:
        """Number of clients that must be connected before the first job is sent."""
        return self.workers if self.minimum is None else self.minimum

    @property
    def timeout(self) -> float:
        """Seconds that a job may take."""
        return TIMEOUT if self.clients.timeout is None else self.clients.timeout

    def start(self, task: Task, work: Work, x: Vector) -> WorkerPool:
        """Start a pool. Clients learn the steps of ``work`` alone. A task with a method ``bind`` gets the pool."""
        from asyncsgd.flower.pool import FlowerPool

        pool = FlowerPool(self, x, steps=isinstance(work, ClientWork) and work.sent)
        bind = getattr(task, "bind", None)
        if bind is not None:
            bind(pool)
        return pool

    def describe(self) -> dict[str, Any]:
        clients = {name: value for name, value in vars(self.clients).items() if value is not None}
        grid = type(self.grid).__name__
        numbers = {"workers": self.workers, "round": self.rounds.size}
        return {"engine": "flower", **numbers, "grid": grid, "clients": clients}
