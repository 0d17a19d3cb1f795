"""What an engine is: something that takes the server's commands and reports events. `asyncsgd.run` drives any of them.

An `Engine` is a frozen value that says which workers there shall be; ``start`` gives a `Crew` of live ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np

from asyncsgd.core.errors import AsyncSGDError
from asyncsgd.core.events import Arrived, Command, Joined, Left, Lost, Vector
from asyncsgd.core.work import Work
from asyncsgd.tasks.base import Task


class EngineError(AsyncSGDError):
    """The engine itself cannot go on: no worker can be started, or the cluster is gone."""


@dataclass(frozen=True, slots=True)
class Failed:
    """The user's code raised in a worker, which is fine otherwise. The job is over; ``error`` is the traceback."""

    job: int
    worker: int
    error: str


@dataclass(frozen=True, slots=True)
class Died:
    """A worker process is gone, and why. A `Left` follows, and a `Joined` once it has been replaced."""

    worker: int
    reason: str


Report: TypeAlias = Joined | Left | Arrived | Lost | Failed | Died


class Crew(ABC):
    """Live workers. Every job that was executed is reported once: arrived, lost, failed, or with its worker as left.

    Use it as a context manager; nothing of it is left behind afterwards.
    """

    dtype: np.dtype[Any]

    def allocate(self, n: int) -> Vector:
        """The next buffer for points, numbered 0, 1, ... as `Assign.slot` counts, where workers can read it.

        ``dtype`` is that of the model the crew was started with. Without shared memory any buffer will do.
        """
        return np.empty(n, self.dtype)

    @abstractmethod
    def execute(self, command: Command) -> None:
        """Do what the server says. An assigned job waits behind those that its worker has not finished."""

    @abstractmethod
    def poll(self, timeout: float) -> list[Report]:
        """What has happened since, in order; waits up to ``timeout`` seconds if that is nothing.

        The update of an `Arrived` may be overwritten from the next call of ``poll`` on.
        """

    @abstractmethod
    def retire(self, worker: int) -> None:
        """Do without this worker from now on. Its jobs are not reported any more, and it is not replaced."""

    @abstractmethod
    def close(self) -> None:
        """Stop all workers and free what they held. Closing twice is harmless."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self.close()


@dataclass(frozen=True)
class Engine(ABC):
    """Which workers there shall be; a frozen value, so that a run can write down what it used."""

    workers: int

    @abstractmethod
    def start(self, task: Task, work: Work, x: Vector) -> Crew:
        """Start the workers. ``x`` is a model like the one they will be sent: its length and dtype count."""

    @property
    def threads(self) -> int | None:
        """How many threads a gradient is computed with, which a replay must use too; None: not known."""
        return None

    def describe(self) -> dict[str, Any]:
        """Words and numbers for the record of the run."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {"engine": type(self).__name__.lower(), **{k: v for k, v in values.items() if v is not None}}
