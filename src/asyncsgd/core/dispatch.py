"""Who works next. A rule sees worker ids and counters only, never a vector, so a schedule can run it alone.

A rule is a frozen value; what it remembers is a plain dict, made by ``init`` and kept by the server. After every
event the server asks ``over`` (is everything in flight to be cancelled?) and then ``pick`` (who gets a job?).
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
    """Base of the dispatch rules; write one by giving these few methods."""

    @property
    def favours_fast(self) -> str | None:
        """Why fast workers weigh more under this rule, or None where every worker counts the same."""
        return None

    @property
    def early(self) -> bool:
        """Whether the next job leaves before the arrival is applied (the paper's last extension)."""
        return False

    @property
    def restart_after(self) -> int | None:
        """Staleness at which a job in flight is cancelled, or None."""
        return None

    def init(self, seed: int) -> State:
        """What the rule remembers at the start."""
        return {"workers": [], "random": derive(seed, STREAM)}

    def joined(self, state: State, worker: int) -> None:
        """A worker is there."""
        state["workers"].append(worker)

    def left(self, state: State, worker: int) -> None:
        """A worker is gone (its jobs have been taken out of flight)."""
        state["workers"].remove(worker)

    def ended(self, state: State, worker: int, arrived: bool) -> None:
        """One of the worker's jobs has ended and the worker is still there."""
        return

    def over(self, state: State, in_flight: int) -> bool:
        """Whether a round is over, so that all jobs in flight are to be cancelled before the next pick."""
        return False

    @abstractmethod
    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        """Who gets a job now, in this order; a worker may stand in it several times."""

    def limit(self, workers: int) -> int:
        """The most jobs that can be in flight with this many workers."""
        return workers


@dataclass(frozen=True)
class AlwaysBusy(Dispatch):
    """Whoever finishes gets the newest point at once (Algorithm 1, Example 2).

    With ``concurrency`` below the number of workers, those who wait longest come first.
    ``restart=R`` cancels a job once the model is R versions ahead of it and starts it afresh.
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
        return "a worker twice as fast is given twice as many jobs"

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
    """Everybody starts at the same point; nobody starts again until all are done (mini-batch SGD, Example 1).

    A worker that joins meanwhile waits for the next batch; a lost job makes this batch one smaller.
    """

    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        return list(state["workers"]) if in_flight == 0 else ()


@dataclass(frozen=True)
class Uniform(Dispatch):
    """Keep ``concurrency`` jobs in flight; each goes to a worker drawn uniformly, busy ones included (Algorithm 2).

    Jobs pile up on a busy worker, first in, first out, each at the point it was assigned. ``sample_early`` sends
    the new job before the arrival is applied, at x^(t).
    """

    concurrency: int
    sample_early: bool = False

    def __post_init__(self) -> None:
        count("concurrency", self.concurrency)

    @property
    def early(self) -> bool:
        return self.sample_early

    def pick(self, state: State, in_flight: int) -> Sequence[int]:
        workers = state["workers"]
        if not workers:
            return ()
        return [workers[_draw(state, len(workers))] for _ in range(self.concurrency - in_flight)]

    def limit(self, workers: int) -> int:
        return self.concurrency


@dataclass(frozen=True)
class Shuffled(Dispatch):
    """Like `Uniform`, but in a fresh random order of all workers every n jobs (AsGrad; Islamov et al. 2023).

    Somebody who joins is in the next order; somebody who left is skipped.
    """

    concurrency: int
    sample_early: bool = False

    def __post_init__(self) -> None:
        count("concurrency", self.concurrency)

    @property
    def early(self) -> bool:
        return self.sample_early

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

    def limit(self, workers: int) -> int:
        return self.concurrency


@dataclass(frozen=True)
class FirstOf(Dispatch):
    """Rounds: ask ``ask`` workers drawn without replacement, keep the first ``clients``, cancel the rest.

    By default a round asks as many workers as it keeps, as in federated averaging. With ``ask`` above ``clients`` it is
    the over-selection of Bonawitz et al. (2019), who ask 1.3 times as many.

    A lost job is replaced by a worker not asked yet in this round. Once all were asked and nothing is in flight, the
    round may ask any worker again, so that it never hangs or ends short.
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
                    f"is less than clients = {self.clients}: the round could never fill",
                    "ask for more",
                )

    @property
    def asked(self) -> int:
        """How many workers a round asks."""
        return self.clients if self.ask is None else self.ask

    @property
    def favours_fast(self) -> str | None:
        return "the slowest of every round are discarded" if self.asked > self.clients else None

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
        if full:  # only then: a round that ended short would leave its updates in the buffer of the next
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
    """One step of Fisher and Yates: items[place] becomes a random one of those from there on."""
    other = place + _draw(state, len(items) - place)
    items[place], items[other] = items[other], items[place]
