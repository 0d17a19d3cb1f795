"""The ε spent by differential privacy: this module counts contributions, and Google's dp-accounting computes ε.

The server adds N(0, (zG)²) to every sum of clipped updates. A client with c_f updates in sum f changes that sum by at
most c_f·G. Gaussian mechanisms with sensitivities c_f compose to one with multiplier z / √(Σ c_f²). So the ε of a
client follows from its own counts, and the run's ε is that of the client that contributed most. Nothing is assumed
about which clients are drawn: an asynchronous server cannot promise the amplification by sampling.

Two runs are neighbours if they differ in the updates of one client, which are zeros in one of them. Its answers come at
the same times in both, so the sums hold the same jobs: who took part when is not protected. A model that clients have
seen decides what they send and how long they take, so the counts may depend on earlier releases. With a budget this
costs nothing: Gaussian mechanisms that are chosen adaptively, and that stop before Σ c_f² exceeds a number fixed in
advance, are as private as one with that number (Smith and Thakurta 2022, a Gaussian filter). So `Book` turns the budget
into the largest Σ c_f² once, and `asyncsgd.flower.allowance` lets a client contribute only below it.

A release is on disk before its model exists. A crash may undo the model, but clients may have seen it, so the release
stays counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.errors import BadParameter, BadRunDirectory, EngineError
from asyncsgd.core.events import Arrival
from asyncsgd.core.method import Method
from asyncsgd.core.transforms import Clip, State, Transform
from asyncsgd.core.validate import positive
from asyncsgd.core.vectors import Vector
from asyncsgd.run.noise_log import RELEASES, NoiseLog
from asyncsgd.trace.labels import client_label


@dataclass(frozen=True)
class Privacy:
    """How much ε a run may spend, and how it is computed. The method adds noise: ``method.clipped(1.0, noise=1.0)``.

    Args:
        epsilon: The budget of every client. A client whose next update could take its ε above the budget gets no more
            jobs, and the run ends before any release that would exceed it. None: spend without a bound, and only report
            the ε spent.
        delta: The δ at which ε is computed. Pass less than one over the number of clients.
        accountant: ``"pld"`` computes ε from the distribution of the privacy loss, which is exact for the Gaussian
            mechanism up to rounding upwards. ``"rdp"`` computes the Rényi bound, which is larger by 6 to 13 % for an ε
            between 0.2 and 30.

    >>> Privacy(3.0, delta=1e-6)
    Privacy(epsilon=3.0, delta=1e-06, accountant='pld')
    """

    epsilon: float | None = None
    delta: float = 1e-5
    accountant: Literal["pld", "rdp"] = "pld"

    def __post_init__(self) -> None:
        if self.epsilon is not None:
            positive("epsilon", self.epsilon)
        positive("delta", self.delta)
        if self.delta >= 1:
            raise BadParameter("delta", self.delta, "protects nothing", "pass less than one over the number of clients")
        if self.accountant not in ("pld", "rdp"):
            raise BadParameter("accountant", self.accountant, "is unknown", 'pass "pld" or "rdp"')


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
    """All releases, one line per sum with noise, including those that a resume undid. Pickling gives an empty book.

    The training loop's thread changes it. The evaluating thread reads `most`.
    """

    def __init__(self, limit: int | None = None, budget: float | None = None) -> None:
        self.limit = limit
        """The largest Σ c_f² that a client may have; None: no bound."""
        self.budget = budget
        """The ε of the limit, for messages."""
        self.squares: dict[int, int] = {}
        """Σ c_f² of every client."""
        self.sum: Mapping[int, int] = {}
        """Number of updates of each client in the sum that is being filled, not released yet."""
        self.label: Callable[[int], str] = client_label
        """The label of a client, for messages."""
        self._log: NoiseLog | None = None

    def admits(self, worker: int) -> bool:
        """Return whether one more update of this client keeps it within the limit when the present sum is released.

        This stays true if the sum is released first, as n² + 1 <= (n + 1)². So a client that was admitted when it got
        its job is admitted when its update arrives, if it has one job at a time.

        >>> book = Book(limit=10)
        >>> book.sum = {0: 3}
        >>> book.admits(0), book.admits(1)  # a fourth update in one sum would cost 4² = 16
        (False, True)
        """
        if self.limit is None:
            return True
        return self.squares.get(worker, 0) + (self.sum.get(worker, 0) + 1) ** 2 <= self.limit

    def exhausted(self, worker: int) -> bool:
        """Return whether this client can contribute to no later sum."""
        spent = self.squares.get(worker, 0) + self.sum.get(worker, 0) ** 2
        return self.limit is not None and spent + 1 > self.limit

    def open(self, folder: Path, *, begun: bool) -> None:
        """Read the earlier releases of a directory, and write further releases there."""
        if begun and not (folder / RELEASES).exists():
            fix = "restore it from a backup, or start a run in another directory"
            raise BadRunDirectory(f"{folder / RELEASES} is missing, so ε is unknown; {fix}")
        self._log = NoiseLog(folder / RELEASES)
        for row in self._log.rows:
            self._count({int(worker): int(times) for worker, times in row["clients"].items()})

    def released(self, version: int, clients: Mapping[int, int]) -> None:
        """Record whose updates are in the sum of the next model. Return once the record is on disk.

        Raise `EngineError` instead, with nothing recorded, if the release would exceed the limit. The pool hands out
        no job that could lead here, so this is the last line of defence: the run stops, and no model is made.
        """
        for worker, times in clients.items():
            if self.limit is not None and self.squares.get(worker, 0) + times * times > self.limit:
                what = f"a release would take {self.label(worker)} above the budget ε = {self.budget:g}"
                raise EngineError(f"{what}; the run stopped before it")
        if self._log is not None:
            self._log.add({"version": version + 1, "clients": {str(worker): n for worker, n in clients.items()}})
        self._count(clients)

    def close(self) -> None:
        """Stop recording: a replay with the same method releases nothing."""
        if self._log is not None:
            self._log.close()
            self._log = None

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
        here = self.book.sum = state["sum"]
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
    privacy: Privacy
    book: Book
    size: int = 1
    """Number of updates in a sum."""

    def epsilon(self, contributions: float) -> float:
        """Return the ε of a client with this √(Σ c_f²)."""
        if not contributions:
            return 0.0
        multiplier = self.noise_multiplier / contributions
        return gaussian_epsilon(multiplier, self.privacy.delta, self.privacy.accountant)

    def spent(self) -> PrivacySpent:
        """Return the ε and δ spent so far."""
        most = self.book.most
        return PrivacySpent(self.epsilon(most), self.privacy.delta, self.noise_multiplier, self.clip, most)


HOPELESS = 1e4
"""An ε above this protects nothing, and the distribution of the privacy loss cannot be computed for much more."""
FINEST, LARGEST = 1e-4, 10.0
"""Grid of the privacy loss, dp-accounting's own, and the ε up to which it is used. Beyond it the grid grows with ε, as
a fixed one would take seconds and gigabytes for an ε of hundreds. A wider grid is still an upper bound."""


@lru_cache(maxsize=256)
def gaussian_epsilon(noise_multiplier: float, delta: float, accountant: str = "pld") -> float:
    """Return an upper bound on the ε of one Gaussian mechanism, by an accountant of Google's dp-accounting.

    >>> round(gaussian_epsilon(1.0, 1e-5), 4), round(gaussian_epsilon(1.0, 1e-5, "rdp"), 4)
    (4.3772, 4.7285)
    """
    import dp_accounting

    event = dp_accounting.GaussianDpEvent(noise_multiplier)
    renyi: Any = dp_accounting.rdp.RdpAccountant()
    bound = float(renyi.compose(event).get_epsilon(delta))
    if accountant == "rdp" or bound > HOPELESS:
        return bound
    grid = FINEST * 2.0 ** max(0, math.ceil(math.log2(bound / LARGEST))) if bound > LARGEST else FINEST
    exact: Any = dp_accounting.pld.PLDAccountant(value_discretization_interval=grid)
    return min(bound, float(exact.compose(event).get_epsilon(delta)))  # both are upper bounds


def allowed_squares(noise_multiplier: float, privacy: Privacy) -> int:
    """Return the largest Σ c_f² of a client whose ε is within the budget; 0 if a single update exceeds it.

    A release then compares integers. The exact δ of the Gaussian mechanism at ε, a formula, finds the number for the
    PLD accountant, which rounds ε upwards by so little that at most a few steps down from there remain.

    >>> allowed_squares(4.0, Privacy(3.0)), allowed_squares(4.0, Privacy(3.0, accountant="rdp"))
    (8, 7)
    """
    assert privacy.epsilon is not None
    budget, delta = privacy.epsilon, privacy.delta

    def within(squares: int) -> bool:
        return gaussian_epsilon(noise_multiplier / math.sqrt(squares), delta, privacy.accountant) <= budget

    if privacy.accountant == "rdp":
        return largest(within)
    from dp_accounting.pld.privacy_loss_mechanism import GaussianPrivacyLoss

    def nearly(squares: int) -> bool:
        loss: Any = GaussianPrivacyLoss(noise_multiplier / math.sqrt(squares))
        return float(loss.get_delta_for_epsilon(budget)) <= delta

    found = largest(nearly)
    while found and not within(found):
        found -= max(1, found >> 16)
    return found


def largest(holds: Callable[[int], bool]) -> int:
    """Return the largest n >= 1 for which this holds, by bisection; 0 if it holds for none.

    >>> largest(lambda n: n * n <= 1000)
    31
    """
    if not holds(1):
        return 0
    below, above = 1, 2
    while holds(above):
        below, above = above, 2 * above
    while above - below > 1:
        middle = (below + above) // 2
        below, above = (middle, above) if holds(middle) else (below, middle)
    return below


def counted(method: Method, privacy: Privacy) -> tuple[Method, Accountant | None]:
    """Return the method with contributions counted, and an accountant; (method, None) if it adds no noise."""
    gather = method.aggregation
    if not isinstance(gather, Buffer) or not gather.noise:
        if privacy.epsilon is not None:
            fix = "add noise, as in method.clipped(1.0, noise=1.0), or leave epsilon out"
            raise BadParameter("epsilon", privacy.epsilon, "cannot be kept: the method adds no noise", fix)
        return method, None
    import dp_accounting  # noqa: F401 - if it is missing, fail now and not at the first evaluation

    last = method.transforms[-1]
    if not isinstance(last, Clip):
        kind = type(last).__name__
        raise BadParameter("method", kind, "changes updates after they are clipped", "clip last: method.clipped(...)")
    multiplier = gather.noise / last.norm
    limit = None
    if privacy.epsilon is not None:
        limit = allowed_squares(multiplier, privacy)
        if not limit:
            one = gaussian_epsilon(multiplier, privacy.delta, privacy.accountant)
            problem = f"is less than one update costs with noise = {multiplier:g}, which is {one:.4g}"
            raise BadParameter("epsilon", privacy.epsilon, problem, "pass more noise, or a larger epsilon")
    book = Book(limit, privacy.epsilon)
    counting = method.using(transforms=(*method.transforms, Count(gather.size, book)))
    return counting, Accountant(multiplier, last.norm, privacy, book, gather.size)
