"""How long a job takes. The k-th job of a worker draws from (seed, worker, k), so workers never disturb each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive


class Durations(Protocol):
    """Seconds per job, for a number of workers."""

    @property
    def workers(self) -> int:
        """How many workers it describes."""

    def draw(self, worker: int, k: int, seed: int) -> float:
        """Seconds that the worker's k-th job takes."""


def _check(name: str, values: Sequence[float]) -> tuple[float, ...]:
    seconds = tuple(float(value) for value in values)
    if not seconds:
        raise BadParameter(name, values, "names no worker", "give one duration per worker")
    for worker, value in enumerate(seconds):
        if not (np.isfinite(value) and value > 0):
            raise BadParameter(f"{name}[{worker}]", value, "is no duration", "pass positive finite seconds")
    return seconds


@dataclass(frozen=True)
class Fixed:
    """Every job of worker i takes ``seconds[i]``."""

    seconds: tuple[float, ...]

    @property
    def workers(self) -> int:
        """How many workers it describes."""
        return len(self.seconds)

    def draw(self, worker: int, k: int, seed: int) -> float:
        """Seconds that the worker's k-th job takes."""
        return self.seconds[worker]


@dataclass(frozen=True)
class Exponential:
    """Jobs of worker i take independent exponential times of mean ``means[i]``."""

    means: tuple[float, ...]

    @property
    def workers(self) -> int:
        """How many workers it describes."""
        return len(self.means)

    def draw(self, worker: int, k: int, seed: int) -> float:
        """Seconds that the worker's k-th job takes."""
        uniform = (derive(seed, worker, k) >> 11) * 2.0**-53
        return float(-self.means[worker] * np.log1p(-uniform))


def fixed(seconds: Sequence[float]) -> Fixed:
    """Every job of worker i takes ``seconds[i]``.

    >>> fixed([1.0, 16.0]).workers
    2
    """
    return Fixed(_check("seconds", seconds))


def exponential(means: Sequence[float]) -> Exponential:
    """Jobs of worker i take independent exponential times of mean ``means[i]``."""
    return Exponential(_check("means", means))
