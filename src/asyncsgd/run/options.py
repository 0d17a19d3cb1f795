"""The options of a run: the values that users pass, and the request that the loop carries out."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.validate import count, nearest, positive
from asyncsgd.engines.base import Engine
from asyncsgd.run.epochs import per_epoch
from asyncsgd.tasks.base import Task
from asyncsgd.trace.columns import WHEN


@dataclass(frozen=True)
class Target:
    """A metric and its bound, such as ``accuracy >= 0.95``: the run stops once the bound is met.

    >>> Target.parse("loss <= 0.1").met({"loss": 0.05})
    True
    """

    metric: str
    at_least: bool
    bound: float
    strict: bool = False

    def __str__(self) -> str:
        return f"{self.metric} {'>' if self.at_least else '<'}{'' if self.strict else '='} {self.bound!r}"

    @classmethod
    def parse(cls, text: str) -> Target:
        """Return the target that a text such as ``accuracy >= 0.95`` describes."""
        found = re.fullmatch(r"\s*([\w.-]+)\s*(<=|>=|<|>)\s*(\S+)\s*", text) if isinstance(text, str) else None
        try:
            bound = float(found[3]) if found else math.nan
        except ValueError:
            bound = math.nan
        if found is None or not math.isfinite(bound):
            fix = 'write a metric, a comparison and a number, e.g. "accuracy >= 0.95"'
            raise BadParameter("until", text, "is not a target", fix)
        return cls(found[1], found[2].startswith(">"), bound, strict="=" not in found[2])

    def require(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Raise unless one of these evaluations measured the metric."""
        if rows and not any(self.metric in row for row in rows):
            fix = nearest(self.metric, [name for name in rows[-1] if name not in WHEN])
            raise BadParameter("until", self.metric, "is not among the task's metrics", fix)

    def met(self, row: Mapping[str, Any]) -> bool:
        """Return whether these metrics meet the target. An evaluation that did not measure the metric does not."""
        value = float(row.get(self.metric, math.nan))
        beyond = value > self.bound if self.at_least else value < self.bound
        return beyond or (value == self.bound and not self.strict)


@dataclass(frozen=True)
class Checkpoints:
    """How often a run is saved to its directory.

    >>> import asyncsgd as asgd
    >>> asgd.Checkpoints(every=500, keep=1)
    Checkpoints(seconds=30.0, every=500, keep=1)

    See docs/users/engineer.md for runs that recover from faults.
    """

    seconds: float = 30.0
    """Seconds between checkpoints; more if writing them would take over a twentieth of the time. Another thread writes
    them: updates wait only while the state is copied."""
    every: int | None = None
    """Iterations between checkpoints, in place of seconds. If the disk is too slow for that, updates wait for it."""
    keep: int = 3
    """How many checkpoints to keep."""

    def __post_init__(self) -> None:
        positive("seconds", self.seconds)
        count("keep", self.keep)
        if self.every is not None:
            count("every", self.every)


EVALUATION_ERRORS = ("continue", "raise")


@dataclass(frozen=True)
class Limits:
    """What a run tolerates before it gives up.

    >>> import asyncsgd as asgd
    >>> asgd.Limits(max_failures=10, evaluation_seconds=600)
    Limits(max_failures=10, evaluation_seconds=600, evaluation_errors='continue')

    See docs/users/engineer.md for runs that recover from faults.
    """

    max_failures: int = 3
    """Failures of one worker in a row after which the run stops (exceptions in the task's code), or continues without
    that worker (updates that are not finite)."""
    evaluation_seconds: float | None = None
    """Seconds after which an evaluation is abandoned, and the run continues; None: never. A thread cannot be stopped,
    so an evaluation that hangs keeps its memory, a copy of the model and what the task uses, until it returns."""
    evaluation_errors: str = "continue"
    """What an exception in an evaluation does: "continue" shows it once, journals it and lets the run continue; "raise"
    saves and stops the run. An error about wrong input (`asyncsgd.core.errors.UsageError`) always does.
    A task that cannot be evaluated at its initial model is refused."""

    def __post_init__(self) -> None:
        count("max_failures", self.max_failures)
        if self.evaluation_seconds is not None:
            positive("evaluation_seconds", self.evaluation_seconds)
        if self.evaluation_errors not in EVALUATION_ERRORS:
            fix = " or ".join(f'"{name}"' for name in EVALUATION_ERRORS)
            raise BadParameter("evaluation_errors", self.evaluation_errors, "is not a choice", f"pass {fix}")


FREE_SECONDS = 10.0
"""Seconds of evaluation that are always allowed where evaluation may take a limited share of the time: a run of a
minute or two evaluates as often as it was asked to."""


def within_share(spent: float, share: float, whole: float, *, times: int = 1) -> bool:
    """Return whether these seconds of evaluation are within their share of the whole time, or are free.

    >>> within_share(9.0, 0.05, 60.0), within_share(11.0, 0.05, 60.0), within_share(11.0, 0.05, 600.0)
    (True, False, True)
    """
    return spent <= max(times * FREE_SECONDS, share * whole)


@dataclass(frozen=True)
class Evaluation:
    """When the task is evaluated, and which metric ends the run."""

    every: int
    """Iterations between evaluations."""
    target: Target | None = None
    federated: bool = False
    """Clients evaluate too. A run that a signal stops neither waits for an evaluation nor evaluates its last model, as
    clients may take minutes. Without a ``share``, updates wait if an evaluation is due while the last one runs."""
    share: float | None = None
    """The largest share of the run's time that evaluations take. One that would take more is left out, but for
    `FREE_SECONDS`; the initial and the last model are always evaluated. None: no limit."""

    @classmethod
    def of(cls, iterations: int, every: int | None, until: str | None, *, federated: bool = False) -> Evaluation:
        """Return what ``every`` and ``until`` of `asyncsgd.train` mean: by default a hundred evaluations in all."""
        count("iterations", iterations)
        if every is not None:
            count("every", every)
        target = None if until is None else Target.parse(until)
        return cls(max(1, iterations // 100) if every is None else every, target, federated)


@dataclass(frozen=True)
class RunRequest:
    """One run, as the loop carries it out; `asyncsgd.train` and `asyncsgd.flower.AsyncStrategy` make one each."""

    task: Task
    method: Method
    engine: Engine
    iterations: int
    evaluation: Evaluation
    resume: bool = False
    seed: int = 0
    checkpoints: Checkpoints = Checkpoints()
    limits: Limits = Limits()
    epochs: int | None = None
    """The number of epochs, if that decides where the run ends; ``iterations`` follows from it."""

    @property
    def batches(self) -> int | None:
        """The number of mini-batches that the run hands out; None: it ends after ``iterations`` arrivals."""
        number = per_epoch(self.task)
        return None if self.epochs is None or number is None else self.epochs * number


def check_options(checkpoints: Any, limits: Any = None) -> None:
    """Refuse numbers where option values belong."""
    for name, value, kind in (("checkpoints", checkpoints, Checkpoints), ("limits", limits, Limits)):
        if value is not None and not isinstance(value, kind):
            first = "seconds=30" if kind is Checkpoints else "max_failures=3"
            fix = f"pass asgd.{kind.__name__}({first})"
            raise BadParameter(name, value, f"is a {type(value).__name__}", fix)
