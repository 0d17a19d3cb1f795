"""The ε spent by differential privacy: this module counts contributions, and Google's dp-accounting computes ε.

The server adds N(0, (zG)²) to every sum of clipped updates. A client with c_f updates in sum f changes that sum by at
most c_f·G. Gaussian mechanisms with sensitivities c_f compose to one with multiplier z / √(Σ c_f²). So the ε of a
client follows from its own counts, and the run's ε is that of the client that contributed most. Nothing is assumed
about which clients are drawn: an asynchronous server cannot promise the amplification by sampling.

A release is on disk before its model exists. A crash may undo the model, but clients may have seen it, so the release
stays counted.
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
    """How the ε spent is computed. The method decides how much noise is added: ``method.clipped(1.0, noise=1.0)``.

    Args:
        delta: The δ at which ε is reported. Pass less than one over the number of clients.

    >>> Privacy(delta=1e-6)
    Privacy(delta=1e-06)
    """

    delta: float = 1e-5

    def __post_init__(self) -> None:
        positive("delta", self.delta)
        if self.delta >= 1:
            raise BadParameter("delta", self.delta, "protects nothing", "pass less than one over the number of clients")


@dataclass(frozen=True)
class PrivacySpent:
    """The guarantee of a run to every client against anyone who sees its models. The server itself is trusted."""

    epsilon: float
    delta: float
    noise_multiplier: float
    clip: float
    contributions: float
    """√(Σ c_f²) of the client that contributed most."""

    def __str__(self) -> str:
        return f"ε = {self.epsilon:.3g} at δ = {self.delta:g} (noise multiplier {self.noise_multiplier:g})"


class Book:
    """All releases, one line per sum with noise, including those that a resume undid. Pickling gives an empty book."""

    def __init__(self) -> None:
        self.squares: dict[int, int] = {}
        """Σ c_f² of every client."""
        self._ledger: Ledger | None = None

    def open(self, folder: Path, *, begun: bool) -> None:
        """Read the earlier releases of a directory, and write further releases there."""
        if begun and not (folder / RELEASES).exists():
            fix = "restore it from a backup, or start a run in another directory"
            raise BadRunDirectory(f"{folder / RELEASES} is missing, so ε is unknown; {fix}")
        self._ledger = Ledger(folder / RELEASES)
        for row in self._ledger.rows:
            self._count({int(worker): int(times) for worker, times in row["clients"].items()})

    def released(self, version: int, clients: Mapping[int, int]) -> None:
        """Record whose updates are in the sum of the next model. Return once the record is on disk."""
        if self._ledger is not None:
            self._ledger.add({"version": version + 1, "clients": {str(worker): n for worker, n in clients.items()}})
        self._count(clients)

    def close(self) -> None:
        """Stop recording: a replay with the same method releases nothing."""
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
        """√(Σ c_f²) of the client that contributed most."""
        return math.sqrt(max(list(self.squares.values()), default=0))  # a copy: the evaluating thread reads it too


@dataclass(frozen=True)
class Count(Transform):
    """A transform that does not change updates. It counts each client's updates in each sum."""

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
    """Computes the ε spent."""

    noise_multiplier: float
    clip: float
    delta: float
    book: Book

    def spent(self) -> PrivacySpent:
        """Return the ε and δ spent so far."""
        most = self.book.most
        epsilon = gaussian_epsilon(self.noise_multiplier / most, self.delta) if most else 0.0
        return PrivacySpent(epsilon, self.delta, self.noise_multiplier, self.clip, most)


def gaussian_epsilon(noise_multiplier: float, delta: float) -> float:
    """Return an upper bound on the ε of one Gaussian mechanism, by the Rényi accountant of Google's dp-accounting."""
    import dp_accounting

    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    accountant: Any = dp_accounting.rdp.RdpAccountant()
    return float(accountant.compose(event).get_epsilon(delta))


def counted(method: Method, privacy: Privacy) -> tuple[Method, Accountant | None]:
    """Return the method with contributions counted, and an accountant; (method, None) if it adds no noise."""
    gather = method.aggregation
    if not isinstance(gather, Buffer) or not gather.noise:
        return method, None
    import dp_accounting  # noqa: F401 - if it is missing, fail now and not at the first evaluation

    last = method.transforms[-1]
    if not isinstance(last, Clip):
        kind = type(last).__name__
        raise BadParameter("method", kind, "changes updates after they are clipped", "clip last: method.clipped(...)")
    book = Book()
    counting = method.using(transforms=(*method.transforms, Count(gather.size, book)))
    return counting, Accountant(gather.noise / last.norm, last.norm, privacy.delta, book)
