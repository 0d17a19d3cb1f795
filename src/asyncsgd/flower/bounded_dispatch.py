"""The dispatch rules of Algorithm 2 with a bound on the jobs of one client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from asyncsgd.core.dispatch import Dispatch, Shuffled, State, Uniform
from asyncsgd.core.random import below
from asyncsgd.core.validate import count


@dataclass(frozen=True)
class _Bounded(Dispatch):
    """A rule that counts the jobs of every client, running and waiting, and bounds them.

    Without a bound, jobs pile up at slow clients, and fast clients run out of work. With a bound, slow clients get
    fewer jobs than their share: this is the price of not waiting for them.
    """

    queue: int = 2

    def __post_init__(self) -> None:
        super().__post_init__()  # type: ignore[misc]
        count("queue", self.queue)

    @property
    def favours_fast(self) -> str | None:
        return f"no client has more than {self.queue} jobs at once"

    def init(self, seed: int) -> State:
        return {**super().init(seed), "load": {}}

    def joined(self, state: State, worker: int) -> None:
        super().joined(state, worker)
        state["load"][worker] = 0

    def left(self, state: State, worker: int) -> None:
        super().left(state, worker)
        del state["load"][worker]

    def ended(self, state: State, worker: int, arrived: bool) -> None:
        state["load"][worker] -= 1

    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        load: dict[int, int] = state["load"]
        picked: list[int] = []
        while in_flight + len(picked) < self.limit(len(load)) and min(load.values(), default=self.queue) < self.queue:
            worker = self.choose(state)
            load[worker] += 1
            picked.append(worker)
        return picked

    def choose(self, state: State) -> int:
        """Draw the next client. At least one client has room."""
        raise NotImplementedError


@dataclass(frozen=True)
class BoundedUniform(_Bounded, Uniform):
    """`Uniform` over the clients that have fewer than ``queue`` jobs."""

    def choose(self, state: State) -> int:
        room = [worker for worker in state["workers"] if state["load"][worker] < self.queue]
        state["random"], place = below(state["random"], len(room))
        return int(room[place])


@dataclass(frozen=True)
class BoundedShuffled(_Bounded, Shuffled):
    """`Shuffled`; a client that has ``queue`` jobs already misses its turn."""

    def choose(self, state: State) -> int:
        while state["load"][worker := self._next(state)] >= self.queue:
            pass
        return worker


def bounded(dispatch: Dispatch, queue: int | None) -> Dispatch:
    """Return the same rule with a bound, if one is given and the rule lets jobs wait.

    >>> bounded(Uniform(8), 4)
    BoundedUniform(concurrency=8, sample_early=False, queue=4)
    """
    kinds = {Uniform: BoundedUniform, Shuffled: BoundedShuffled}
    if not isinstance(dispatch, Uniform | Shuffled) or type(dispatch) not in kinds:
        return dispatch
    if queue is None or queue >= dispatch.concurrency:
        return dispatch  # the bound can never be reached
    return kinds[type(dispatch)](concurrency=dispatch.concurrency, sample_early=dispatch.sample_early, queue=queue)


def bias_of(dispatch: Dispatch) -> str | None:
    """Return a note on what the bound does to slow clients; None if there is no bound.

    >>> bias_of(bounded(Uniform(8), 2))
    'no client has more than 2 jobs at once: much slower clients contribute less; leave queue out for equal shares'
    """
    if not isinstance(dispatch, BoundedUniform | BoundedShuffled):
        return None
    return f"{dispatch.favours_fast}: much slower clients contribute less; leave queue out for equal shares"


def may_queue(dispatch: Dispatch) -> bool:
    """Return whether the rule gives jobs to busy clients."""
    return isinstance(dispatch, Uniform | Shuffled)
