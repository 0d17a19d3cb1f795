"""What differential privacy has cost so far: contributions are counted, a maintained accountant does the rest.

The server adds N(0, (zG)²) to every sum of clipped updates. A client whose updates are in c_1, c_2, ... of the sums
(c_f updates in sum f) changes them by at most c_f·G each. Gaussian mechanisms with sensitivities c_f compose to one
with multiplier z / √(Σ c_f²), so ε of a client follows from its own counts, and the run's ε is that of the client who
contributed most. Nothing is assumed about who is drawn: no amplification by sampling, which an asynchronous server
cannot promise.

A release is on the disk before its model exists. What a crash takes back has been seen all the same: it stays counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.errors import BadParameter, BadRunDirectory
from asyncsgd.core.events import Arrival
from asyncsgd.core.method import Method
from asyncsgd.core.transforms import Clip, State, Transform
from asyncsgd.core.validate import positive
from asyncsgd.core.vectors import Vector
from asyncsgd.run.noise_log import RELEASES, Ledger


@dataclass(frozen=True)
class Privacy:
    """What a run guarantees every client against everyone who sees its models; the server itself is trusted."""

    epsilon: float
    delta: float
    noise_multiplier: float
    clip: float
    contributions: float
    """√(Σ c_f²) of the client who contributed most."""

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.3g} at δ = {self.delta:g} (noise multiplier {self.noise_multiplier:g})"


class Book:
    """Every release there has been, also those that a resume took back: a line per noised sum. Pickled, it is empty."""

    def __init__(self) -> None:
        self.squares: dict[int, int] = {}
        """Σ c_f² of every client."""
        self._ledger: Ledger | None = None

    def open(self, folder: Path, *, begun: bool) -> None:
        """Go on with the releases of a directory, and write those to come there."""
        if begun and not (folder / RELEASES).exists():
            fix = "restore it from a backup, or begin a run in another directory"
            raise BadRunDirectory(f"{folder / RELEASES} is gone, so nobody can say what ε is; {fix}")
        self._ledger = Ledger(folder / RELEASES)
        for row in self._ledger.rows:
            self._count({int(worker): int(times) for worker, times in row["clients"].items()})

    def released(self, version: int, clients: Mapping[int, int]) -> None:
        """These are in the sum that makes the next model; returns once that is on the disk."""
        if self._ledger is not None:
            self._ledger.add({"version": version + 1, "clients": {str(worker): n for worker, n in clients.items()}})
        self._count(clients)

    def close(self) -> None:
        """No more releases; a replay with the same method makes none."""
        if self._ledger is not None:
            self._ledger.close()
            self._ledger = None

    def _count(self, clients: Mapping[int, int]) -> None:
        for worker, times in clients.items():
            self.squares[worker] = self.squares.get(worker, 0) + times * times

    def __reduce__(self) -> Any:
        return Book, ()

    @property
    def most(self) -> float:
        """√(Σ c_f²) of the client who contributed most."""
        return math.sqrt(max(list(self.squares.values()), default=0))  # a copy, as an evaluation's thread asks too


@dataclass(frozen=True)
class Count(Transform):
    """Leaves updates as they are, and counts whose are in which sum."""

    size: int
    book: Book = field(repr=False, compare=False, default_factory=Book)

    def init(self, x: Vector) -> State:
        return {"held": 0, "sum": {}}

    def apply(self, state: State, g: Vector, arrival: Arrival) -> Vector:
        here = state["sum"]
        here[arrival.worker] = here.get(arrival.worker, 0) + 1
        state["held"] += 1
        if state["held"] == self.size:
            self.book.released(arrival.version, here)
            here.clear()
            state["held"] = 0
        return g


@dataclass(frozen=True)
class Accountant:
    """Says what has been spent."""

    noise_multiplier: float
    clip: float
    delta: float
    book: Book

    def spent(self) -> Privacy:
        """Up to now."""
        most = self.book.most
        epsilon = gaussian_epsilon(self.noise_multiplier / most, self.delta) if most else 0.0
        return Privacy(epsilon, self.delta, self.noise_multiplier, self.clip, most)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """ε of one Gaussian mechanism, by the Rényi accountant of Google's dp-accounting (an upper bound)."""
    import dp_accounting

    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    accountant: Any = dp_accounting.rdp.RdpAccountant()
    return float(accountant.compose(event).get_epsilon(delta))


def watched(method: Method, delta: float) -> tuple[Method, Accountant | None]:
    """The method with its contributions counted, if it adds noise."""
    gather = method.aggregation
    if not isinstance(gather, Buffer) or not gather.noise:
        return method, None
    import dp_accounting  # noqa: F401 - it takes seconds to load, and had better be missing now than later

    positive("delta", delta)
    if delta >= 1:
        raise BadParameter("delta", delta, "protects nothing", "pass less than one over the number of clients")
    last = method.transforms[-1]
    if not isinstance(last, Clip):
        kind = type(last).__name__
        raise BadParameter("method", kind, "changes updates after they are clipped", "clip last: method.clipped(...)")
    book = Book()
    counted = method.using(transforms=(*method.transforms, Count(gather.size, book)))
    return counted, Accountant(gather.noise / last.norm, last.norm, delta, book)
