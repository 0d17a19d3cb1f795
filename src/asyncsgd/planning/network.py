"""Distant workers: how many local steps, and which compression, until communication no longer matters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.dispatch import FirstOf
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.parts import Reason
from asyncsgd.core.validate import count
from asyncsgd.core.vectors import Vector
from asyncsgd.format import percent, relative, size, span, times
from asyncsgd.methods import async_sgd
from asyncsgd.planning.advice import WORTH
from asyncsgd.planning.candidates import Candidate
from asyncsgd.planning.workers import Ints, subset
from asyncsgd.simulation import durations as du
from asyncsgd.simulation._simulate import run_simulation, source_of
from asyncsgd.simulation.durations import Durations
from asyncsgd.simulation.lowering import lower

STEPS = (1, 2, 5, 10, 20, 50, 100, 200, 500)
"""Local steps that are tried. DiLoCo was published with up to 1000, and most results with 50 to 500."""
FEW = 50
"""With up to this many local steps, a lighter code is preferred to fewer steps."""
CODES = (None, "bfloat16", "int8", "int4", "top_k")
"""How updates are encoded, from light to coarse. Models are encoded as bfloat16 on their way down, except with None."""
DOWN = "bfloat16"
SMALL = 0.1
"""Communication below this share of the time is small."""
DTYPE = "float32"


@dataclass(frozen=True)
class Option:
    """A number of local steps and a code, with what they cost."""

    steps: int
    code: str | None
    seconds: float
    """Simulated seconds per mini-batch of all workers together."""
    communication: float
    """The share of the time that would be saved if messages took none."""
    bytes_per_batch: float
    """Bytes of an update and of a model, per mini-batch."""

    @property
    def small(self) -> bool:
        """Whether communication is a small share of the time."""
        return self.communication <= SMALL

    @property
    def recipe(self) -> str:
        """What to append to the method; ``stepsize`` is the local one."""
        local = "" if self.steps == 1 else f".local({self.steps}, stepsize)"
        return local if self.code is None else f'{local}.compressed("{self.code}", down="{DOWN}")'

    def words(self) -> str:
        """Return what to do, as an imperative."""
        code = "" if self.code is None else f"send updates as {self.code} and models as {DOWN}"
        if self.code == DOWN:
            code = f"send updates and models as {DOWN}"
        local = "" if self.steps == 1 else f"take {self.steps} local steps per job"
        both = " and ".join(part for part in (local, code) if part)
        return f"{both[:1].upper()}{both[1:]}" if both else "Send every gradient as it is"


@dataclass(frozen=True, eq=False)
class Network:
    """All options for a model of this size, and the one to take.

    See docs/users/planner.md for plans with distant workers.
    """

    parameters: int
    options: tuple[Option, ...]
    chosen: Option
    asynchronous: float | None = None
    """For a method with rounds: seconds per mini-batch of asynchronous SGD on all workers, with the chosen option."""

    @property
    def plain(self) -> Option:
        """SGD that sends every gradient as it is."""
        return self.at(1, None)

    def at(self, steps: int, code: str | None) -> Option:
        """Return the option with these local steps and this code."""
        return next(option for option in self.options if (option.steps, option.code) == (steps, code))

    @property
    def sooner(self) -> float:
        """How many times sooner a mini-batch is done than with plain SGD."""
        return self.plain.seconds / self.chosen.seconds

    @property
    def sentence(self) -> str:
        """The advice and its reason."""
        chosen, plain = self.chosen, self.plain
        share = percent(chosen.communication)
        if chosen is plain:
            return (
                f"{chosen.words()}: communication is only {share} of the time, and local steps and coarser codes cost "
                "quality."
            )
        saved = (
            f"{chosen.words()}: a mini-batch then takes {span(chosen.seconds)} instead of {span(plain.seconds)} "
            f"({times(self.sooner)} times sooner) and sends {size(chosen.bytes_per_batch)} instead of "
            f"{size(plain.bytes_per_batch)}"
        )
        if chosen.small:
            return (
                f"{saved}. Communication is then {share} of the time: more local steps or a coarser code would save "
                f"little more, and both cost quality.{self._without_rounds()}"
            )
        return (
            f"{saved}, but communication is still {share} of the time: this network is too slow for a model of "
            f"{self.parameters:,} parameters."
        )

    def _without_rounds(self) -> str:
        """Return a sentence about asynchronous SGD if it is faster, now that messages are rare; else nothing."""
        if self.asynchronous is None or self.asynchronous > (1 - WORTH) * self.chosen.seconds:
            return ""
        return (
            f" With asynchronous SGD on all workers in place of rounds, a mini-batch takes {span(self.asynchronous)}: "
            "no worker waits for the slowest."
        )

    def table(self) -> tuple[list[str], list[list[str]], tuple[int, int]]:
        """Return headings and rows of the time per mini-batch relative to plain SGD, and the place of the chosen cell.

        The place counts rows of the table and cells of a row, the number of steps included.
        """
        headings = ["local steps", *("as it is" if code is None else code for code in CODES)]
        rows = [
            [f"{steps:,}", *(relative(self.at(steps, code).seconds / self.plain.seconds) for code in CODES)]
            for steps in STEPS
        ]
        return headings, rows, (STEPS.index(self.chosen.steps), 1 + CODES.index(self.chosen.code))

    def to_dict(self) -> dict[str, Any]:
        """Return plain numbers and text."""
        return {
            "parameters": self.parameters,
            "options": [vars(option) | {"small": option.small} for option in self.options],
            "chosen": self.options.index(self.chosen),
            "sooner": self.sooner,
            "asynchronous_seconds": self.asynchronous,
            "recipe": self.chosen.recipe,
            "advice": self.sentence,
        }


def advise_network(candidate: Candidate, everybody: Durations, members: Ints, parameters: int, seed: int) -> Network:
    """Simulate a candidate behind a network, with every number of local steps and every code.

    Args:
        candidate: The recommended method.
        everybody: The durations of all workers, with their network.
        members: The workers that the candidate uses.
        parameters: The number of parameters of the model.
        seed: Seed of the simulated runs.
    """
    method, durations = candidate.build(), subset(everybody, members)
    alone = seconds_per_update(method, durations.with_communication(), seed=seed)
    options = []
    for steps in STEPS:
        for code in CODES:
            tried = _method(method, steps, code)
            seconds = seconds_per_update(tried, durations, parameters=parameters, dtype=DTYPE, seed=seed) / steps
            both = sum(tried.message_bytes(parameters, DTYPE)) / steps
            options.append(Option(steps, code, seconds, max(0.0, 1 - alone / seconds), both))
    chosen, busy = choose(options), None
    if candidate.rounds:
        free = _method(async_sgd(1.0), chosen.steps, chosen.code)
        busy = seconds_per_update(free, everybody, parameters=parameters, dtype=DTYPE, seed=seed) / chosen.steps
    return Network(parameters, tuple(options), chosen, busy)


def _method(method: Method, steps: int, code: str | None) -> Method:
    local = method if steps == 1 else method.local(steps, 1.0)
    return local if code is None else local.compressed(code, down=DOWN)


def choose(options: list[Option]) -> Option:
    """Return the mildest option with which communication is small, because local steps and coarse codes cost quality.

    That is the lightest code that needs no more than `FEW` local steps, with the fewest of them; if no code does, the
    fewest local steps. Top-k is a last resort. If communication is never small, it is the fastest option.
    """
    for codes in (CODES[:-1], CODES):
        good = [option for option in options if option.small and option.code in codes]
        few = [option for option in good if option.steps <= FEW]
        if few:
            return min(few, key=lambda option: (CODES.index(option.code), option.steps))
        if good:
            return min(good, key=lambda option: (option.steps, CODES.index(option.code)))
    return min(options, key=lambda option: option.seconds)


ROUNDS = 60
"""The number of updates per worker, or of rounds, that are simulated; the first sixth is not measured."""
FEWEST = 1200
"""The fewest updates that are simulated."""


class _Nothing:
    """A task of one parameter that never moves: the times of a run do not depend on its numbers."""

    def initial(self) -> Vector:
        return np.zeros(1)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        return np.zeros_like(x)

    def evaluate(self, x: Vector) -> dict[str, float]:
        return {"loss": 0.0}


def seconds_per_update(
    method: Method,
    durations: Durations | Sequence[float],
    *,
    parameters: int | None = None,
    dtype: str = "float32",
    seed: int = 0,
) -> float:
    """Predict the mean seconds between two updates that reach the server, in the long run.

    The server's own time is not part of it.

    Args:
        method: The method, with its local steps and its compression.
        durations: Seconds per mini-batch of each worker: numbers, or durations with communication or a network.
        parameters: The number of parameters of the model; needed with a network.
        dtype: The type of a parameter.
        seed: Seed of the simulated run.

    Two workers that take 1 s and 3 s per step, 10 steps per job, and 2 s per message each way:

    >>> import asyncsgd as asgd
    >>> fleet = asgd.durations.fixed([1.0, 3.0]).with_communication(down=2.0, up=2.0)
    >>> predicted = seconds_per_update(asgd.async_sgd(1.0).local(10, 0.1), fleet)
    >>> bool(abs(predicted - 1 / (1 / 14 + 1 / 34)) < 0.1)
    True

    See docs/users/planner.md for plans with distant workers.
    """
    known = durations if isinstance(durations, Durations) else du.fixed(durations)
    known = _over_network(known, method, parameters, dtype)
    n = known.workers
    turn = method.dispatch.clients if isinstance(method.dispatch, FirstOf) else n
    rounds = max(ROUNDS, math.ceil(FEWEST / turn))
    total, skipped = rounds * turn, rounds // 6 * turn
    time = _arrivals(method.bind(n, total), known, total, seed)
    return float((time[-1] - time[skipped - 1]) / (total - skipped))


def _over_network(durations: Durations, method: Method, parameters: int | None, dtype: str) -> Durations:
    if not durations.networked:
        return durations
    if parameters is None:
        fix = "pass parameters=..., the number of parameters of the model"
        raise BadParameter("parameters", None, "is missing: over a network, times depend on the model's size", fix)
    count("parameters", parameters)
    up, down = method.message_bytes(parameters, dtype)
    return durations.for_messages(up=up, down=down)


def _arrivals(method: Method, durations: Durations, total: int, seed: int) -> NDArray[Any]:
    """Return the times of the arrivals, from the compiled schedule if the method has one."""
    if isinstance(lower(method, _Nothing()).schedule, Reason):
        return run_simulation(_Nothing(), method, durations, iterations=total, every=total, seed=seed).trace.time
    return source_of(durations, method, total, seed).arrivals().time
