"""What a run was asked for: the option values that users pass, and the request that the loop carries out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from asyncsgd.core.check import count, positive
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.engines.base import Engine
from asyncsgd.run.target import Target
from asyncsgd.tasks.base import Task


@dataclass(frozen=True)
class Checkpoints:
    """How often a run is saved to its directory.

    >>> import asyncsgd as asgd
    >>> asgd.Checkpoints(every=500, keep=1)
    Checkpoints(seconds=30.0, every=500, keep=1)
    """

    seconds: float = 30.0
    """Seconds between checkpoints; more if writing them would take over a twentieth of the time."""
    every: int | None = None
    """Iterations between checkpoints, in place of seconds."""
    keep: int = 3
    """How many checkpoints to keep."""

    def __post_init__(self) -> None:
        positive("seconds", self.seconds)
        count("keep", self.keep)
        if self.every is not None:
            count("every", self.every)


@dataclass(frozen=True)
class Limits:
    """What a run tolerates before it gives up.

    >>> import asyncsgd as asgd
    >>> asgd.Limits(max_failures=10)
    Limits(max_failures=10)
    """

    max_failures: int = 3
    """Failures of one worker in a row after which the run stops (exceptions in the task's code), or continues without
    that worker (updates that are not finite)."""

    def __post_init__(self) -> None:
        count("max_failures", self.max_failures)


@dataclass(frozen=True)
class Evaluation:
    """When the task is evaluated, and which metric ends the run."""

    every: int
    """Iterations between evaluations."""
    target: Target | None = None
    background: bool = False
    """Evaluate a copy of the model in a thread of its own, while updates arrive; else updates wait."""

    @classmethod
    def of(cls, iterations: int, every: int | None, until: str | None, *, background: bool = False) -> Evaluation:
        """Return what ``every`` and ``until`` of `asyncsgd.train` mean: by default a hundred evaluations in all."""
        count("iterations", iterations)
        if every is not None:
            count("every", every)
        target = None if until is None else Target.parse(until)
        return cls(max(1, iterations // 100) if every is None else every, target, background)


@dataclass(frozen=True)
class RunRequest:
    """One run, as the loop carries it out; `asyncsgd.train` and `asyncsgd.flower.serve` make one each."""

    task: Task
    method: Method
    engine: Engine
    iterations: int
    evaluation: Evaluation
    resume: bool = False
    seed: int = 0
    checkpoints: Checkpoints = Checkpoints()
    limits: Limits = Limits()


def check_options(checkpoints: Any, limits: Any = None) -> None:
    """Refuse numbers where option values belong."""
    for name, value, kind in (("checkpoints", checkpoints, Checkpoints), ("limits", limits, Limits)):
        if value is not None and not isinstance(value, kind):
            first = "seconds=30" if kind is Checkpoints else "max_failures=3"
            fix = f"pass asgd.{kind.__name__}({first})"
            raise BadParameter(name, value, f"is a {type(value).__name__}", fix)
