"""What differential privacy has cost so far: contributions are counted, a maintained accountant does the rest.

The server adds N(0, (zG)²) to every sum of clipped updates. A client whose updates are in c_1, c_2, ... of the sums
(c_f updates in sum f) changes them by at most c_f·G each. Gaussian mechanisms with sensitivities c_f compose to one
with multiplier z / √(Σ c_f²), so ε of a client follows from its own counts, and the run's ε is that of the client who
contributed most. Nothing is assumed about who is drawn: no amplification by sampling, which an asynchronous server
cannot promise.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from asyncsgd.core.arrival import Arrival
from asyncsgd.core.check import positive
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Vector
from asyncsgd.core.gather import Buffer
from asyncsgd.core.method import Method
from asyncsgd.core.transforms import Clip, State, Transform


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
    """Where the newest counts lie: the state of `Count`, which the server keeps and checkpoints."""

    def __init__(self) -> None:
        self.squares: dict[int, int] = {}

    @property
    def most(self) -> float:
        """√(Σ c_f²) of the client who contributed most."""
        return math.sqrt(max(self.squares.values(), default=0))


@dataclass(frozen=True)
class Count(Transform):
    """Leaves updates as they are, and counts whose are in which sum."""

    size: int
    book: Book = field(repr=False, compare=False, default_factory=Book)

    def init(self, x: Vector) -> State:
        return {"held": 0, "sum": {}, "squares": {}}

    def apply(self, state: State, g: Vector, arrival: Arrival) -> Vector:
        here, squares = state["sum"], state["squares"]
        here[arrival.worker] = here.get(arrival.worker, 0) + 1
        state["held"] += 1
        if state["held"] == self.size:
            for worker, times in here.items():
                squares[worker] = squares.get(worker, 0) + times * times
            here.clear()
            state["held"] = 0
        self.book.squares = squares
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
    gather = method.gather
    if not isinstance(gather, Buffer) or not gather.noise:
        return method, None
    import dp_accounting  # noqa: F401 - it takes seconds to load, and had better be missing now than later

    positive("delta", delta)
    if delta >= 1:
        raise BadParameter("delta", delta, "protects nothing", "pass less than one over the number of clients")
    last = method.transforms[-1]
    if not isinstance(last, Clip):
        kind = type(last).__name__
        raise BadParameter("method", kind, "changes updates after they are clipped", "clip last: asgd.clipped(...)")
    book = Book()
    counted = method.using(transforms=(*method.transforms, Count(gather.size, book)))
    return counted, Accountant(gather.noise / last.bound, last.bound, delta, book)
