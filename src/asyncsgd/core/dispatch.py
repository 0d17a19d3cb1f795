"""Which worker gets the next job. A rule sees worker ids and counters, never a vector, so a schedule can run it alone.

A rule is a frozen value. Its state is a plain dict, which ``init`` makes and the server keeps. After every event the
server calls ``over`` (should it cancel every job in flight?) and then ``pick`` (which workers get a job?).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import below, derive
from asyncsgd.core.validate import count

State = dict[str, Any]
STREAM = 0xD15  # keeps the draws of dispatch apart from those of jobs and noise


@dataclass(frozen=True)
class Dispatch(ABC):
    """Base of the dispatch rules. Derive your own from it (docs/howto/dispatch.md)."""

    @property
    def favours_fast(self) -> str | None:
        """The reason why fast workers weigh more under this rule, or None if every worker has the same weight."""
        return None

    @property
    def early(self) -> bool:
        """Whether the server assigns the next job before it applies the arrival (the paper's last extension)."""
        return False

    @property
    def restart_after(self) -> int | None:
        """The staleness at which the server cancels a job in flight, or None."""
        return None

    def init(self, seed: int) -> State:
        """Return the rule's state at the start of a run."""
        return {"workers": [], "random": derive(seed, STREAM)}

    def joined(self, state: State, worker: int) -> None:
        """Record that a worker joined."""
        state["workers"].append(worker)

    def left(self, state: State, worker: int) -> None:
        """Record that a worker left. The server has already ended its jobs."""
        state["workers"].remove(worker)

    def ended(self, state: State, worker: int, arrived: bool) -> None:
        """Record that one job of a worker ended while the worker is still present.

        The server also calls it for a worker that `pick` chose when no mini-batch was left (`asyncsgd.Drain`).
        """
        return

    def over(self, state: State, in_flight: int) -> bool:
        """Return whether a round is over, so that the server cancels all jobs in flight before the next pick."""
        return False

    @abstractmethod
    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        """Return the workers that get a job now, in order; a worker may appear several times."""

    def limit(self, workers: int) -> int:
        """Return the largest possible number of jobs in flight with this many workers."""
        return workers


@dataclass(frozen=True)
class AlwaysBusy(Dispatch):
    """Give a worker that finishes the newest point at once (Algorithm 1, Example 2).

    With ``concurrency`` below the number of workers, the worker that has waited longest comes first.
    ``restart=R`` cancels a job once the model is R versions ahead of it, and assigns a new one at the newest point.
    With ``sample_early`` the server assigns the new job at x^(t), before it applies the arrival.
    """

    concurrency: int | None = None
    restart: int | None = None
    sample_early: bool = False

    def __post_init__(self) -> None:
        if self.concurrency is not None:
            count("concurrency", self.concurrency)
        if self.restart is not None:
            count("restart", self.restart)

    @property
    def favours_fast(self) -> str | None:
        return "a worker twice as fast gets twice as many jobs"

    @property
    def early(self) -> bool:
        return self.sample_early

    @property
    def restart_after(self) -> int | None:
        return self.restart

    def init(self, seed: int) -> State:
        return {"workers": 0, "idle": deque()}

    def joined(self, state: State, worker: int) -> None:
        state["workers"] += 1
        state["idle"].append(worker)

    def left(self, state: State, worker: int) -> None:
        state["workers"] -= 1
        if worker in state["idle"]:
            state["idle"].remove(worker)

    def ended(self, state: State, worker: int, arrived: bool) -> None:
        state["idle"].append(worker)

    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        idle = state["idle"]
        wanted = min(len(idle), self.limit(state["workers"]) - in_flight)
        return [idle.popleft() for _ in range(wanted)]

    def limit(self, workers: int) -> int:
        return workers if self.concurrency is None else min(self.concurrency, workers)


@dataclass(frozen=True)
class Batch(Dispatch):
    """Start all workers at the same point, and again only after all are done (mini-batch SGD, Example 1).

    A worker that joins meanwhile waits for the next batch; a lost job makes this batch one smaller.
    """

    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        return list(state["workers"]) if in_flight == 0 else ()


@dataclass(frozen=True)
class _Queued(Dispatch):
    """Base of the rules that keep ``concurrency`` jobs in flight, whichever workers are busy."""

    concurrency: int
    sample_early: bool = False

    def __post_init__(self) -> None:
        count("concurrency", self.concurrency)

    @property
    def early(self) -> bool:
        return self.sample_early

    def limit(self, workers: int) -> int:
        return self.concurrency


@dataclass(frozen=True)
class Uniform(_Queued):
    """Keep ``concurrency`` jobs in flight; each goes to a worker drawn uniformly, busy ones included (Algorithm 2).

    The jobs of a busy worker wait in a queue, first in, first out, each at the point it was assigned. With
    ``sample_early`` the server assigns the new job at x^(t), before it applies the arrival.
    """

    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        workers = state["workers"]
        if not workers:
            return ()
        return [workers[_draw(state, len(workers))] for _ in range(self.concurrency - in_flight)]


@dataclass(frozen=True)
class Shuffled(_Queued):
    """Like `Uniform`, but in a fresh random order of all workers every n jobs (AsGrad; Islamov et al. 2023).

    A worker that joins is part of the next order; a worker that left is skipped. ``concurrency`` and ``sample_early``
    are as in `Uniform`.
    """

    def init(self, seed: int) -> State:
        return {**super().init(seed), "order": [], "next": 0}

    def left(self, state: State, worker: int) -> None:
        super().left(state, worker)
        if worker in state["order"]:
            place = state["order"].index(worker)
            state["next"] -= place < state["next"]
            del state["order"][place]

    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        if not state["workers"]:
            return ()
        return [self._next(state) for _ in range(self.concurrency - in_flight)]

    def _next(self, state: State) -> int:
        if state["next"] == len(state["order"]):
            order = state["order"] = list(state["workers"])
            state["next"] = 0
            for place in range(len(order) - 1):
                _swap_random(state, order, place)
        state["next"] += 1
        worker: int = state["order"][state["next"] - 1]
        return worker


@dataclass(frozen=True)
class FirstOf(Dispatch):
    """Work in rounds: ask ``ask`` workers drawn without replacement, keep the first ``clients``, cancel the rest.

    By default a round asks as many workers as it keeps, as in federated averaging. With ``ask`` above ``clients`` a
    round is over-selection (Bonawitz et al. 2019, who ask 1.3 times as many).

    A lost job is replaced by a worker not asked yet in this round. Once the round has asked all workers and no job is
    in flight, it may ask any worker again. So a round never hangs and never ends with too few updates.
    """

    clients: int
    ask: int | None = None

    def __post_init__(self) -> None:
        count("clients", self.clients)
        if self.ask is not None:
            count("ask", self.ask)
            if self.ask < self.clients:
                raise BadParameter(
                    "ask",
                    self.ask,
                    f"is less than clients = {self.clients}, so no round could finish",
                    f"pass ask >= {self.clients}",
                )

    @property
    def asked(self) -> int:
        """The number of workers that a round asks."""
        return self.clients if self.ask is None else self.ask

    @property
    def favours_fast(self) -> str | None:
        return "every round discards the updates of its slowest workers" if self.asked > self.clients else None

    def init(self, seed: int) -> State:
        # The first `asked` of `workers` are those of this round, in the order in which they were drawn.
        return {**super().init(seed), "asked": 0, "kept": 0}

    def left(self, state: State, worker: int) -> None:
        state["asked"] -= state["workers"].index(worker) < state["asked"]
        super().left(state, worker)

    def ended(self, state: State, worker: int, arrived: bool) -> None:
        state["kept"] += arrived

    def over(self, state: State, in_flight: int) -> bool:
        full: bool = state["kept"] >= self.clients
        exhausted = in_flight == 0 and state["asked"] == len(state["workers"])
        if full or exhausted:
            state["asked"] = 0
        if full:  # not earlier: a round with too few updates would leave them in the buffer of the next round
            state["kept"] = 0
        return full

    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        workers: list[int] = state["workers"]
        picked: list[int] = []
        while state["kept"] + in_flight + len(picked) < self.asked and state["asked"] < len(workers):
            place = state["asked"]
            _swap_random(state, workers, place)
            state["asked"] += 1
            picked.append(workers[place])
        return picked

    def limit(self, workers: int) -> int:
        return min(self.asked, workers)


def _draw(state: State, n: int) -> int:
    state["random"], k = below(state["random"], n)
    return k


def _swap_random(state: State, items: list[int], place: int) -> None:
    """Do one Fisher-Yates step: swap items[place] with a random item at or after that place."""
    other = place + _draw(state, len(items) - place)
    items[place], items[other] = items[other], items[place]
