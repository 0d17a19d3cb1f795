"""The bound on the norm of updates that follows the run, ``Clients(max_norm="auto")``.

A reply's own thread computes the norm, as that is a pass over the whole update. The polling thread compares it with the
bound when it hands the update on to the server, and only that thread touches `NormLimit`. So the bound depends on the
order of arrivals alone, which is the order of the trace, and not on which thread computed first.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Literal

from asyncsgd.core.method import Method
from asyncsgd.core.transforms import Clip
from asyncsgd.engines.base import Note
from asyncsgd.flower.engine import Clients
from asyncsgd.trace.labels import client_label

TIMES = 10.0
"""The bound is this many times the median. Clients with different data differ by much less."""
LAST = 50
"""Number of accepted updates whose median is used. It follows a warm-up or a schedule within 25 updates."""
FIRST = 20
"""Number of updates that are accepted before there is a bound."""
ALIKE = 3.0
"""A client's update is like its last one if it is at most this many times as long."""
FIX = "if such updates are right, pass Clients(max_norm=None), or a number to refuse only longer ones"


@dataclass(frozen=True)
class Refusal:
    """Why an update is refused, and a note about it if it is the first one of its client."""

    reason: str
    notes: list[Note]


class NormLimit:
    """Refuses updates that are much longer than usual: one finite update of 1e30 would destroy the model.

    The bound is 10 times the median norm of the last 50 accepted updates, once 20 were accepted. An update of norm 0 is
    accepted and says nothing about the usual norm. After a resume the bound starts again without a memory: the clients
    may have been changed meanwhile, and then every update of theirs could be refused.

    There is one exception. Where the model fits the data of most clients, their updates become short, and the bound
    falls below what clients with other data send, and have sent all along. To refuse them would make the bias worse. So
    an update above the bound is accepted if it is at most 3 times as long as the last accepted one of the same client,
    and below the highest bound so far: a client whose updates keep growing is refused in the end.

    >>> limit = NormLimit("auto")
    >>> for _ in range(20):
    ...     assert limit.judge(0, 1.0) is None
    >>> limit.judge(1, 1e30).reason
    'the update has norm 1e+30, more than 10 times the median norm 1 of the last 20 updates'
    """

    def __init__(self, rule: float | Literal["auto"] | None, label: Callable[[int], str] = client_label) -> None:
        self._active, self._label = rule == "auto", label
        self._norms: deque[float] = deque(maxlen=LAST)
        self._refused: Counter[int] = Counter()
        self._own: dict[int, float] = {}  # the norm of the last accepted update of each client
        self._highest = 0.0  # the highest bound so far

    def judge(self, worker: int, length: float) -> Refusal | None:
        """Return None if an update of this norm is accepted."""
        if not self._active:
            return None
        usual = median(self._norms) if len(self._norms) >= FIRST else math.inf
        if usual < math.inf:
            self._highest = max(self._highest, TIMES * usual)
        alike = length <= min(ALIKE * self._own.get(worker, 0.0), self._highest)
        if length > TIMES * usual and not alike:
            seen = f"more than {TIMES:g} times the median norm {usual:.4g} of the last {len(self._norms)} updates"
            reason = f"the update has norm {length:.4g}, {seen}"
            self._refused[worker] += 1
            text = (
                f"{self._label(worker)}: {reason}; all updates of this client that are so long will be refused; {FIX}"
            )
            first = Note("too_long", {"worker": worker, "norm": _finite(length), "usual": usual}, text)
            return Refusal(reason, [first] if self._refused[worker] == 1 else [])
        if length > 0:
            self._norms.append(length)
            self._own[worker] = length
        return None

    def summary(self) -> list[Note]:
        """Return a note with the number of refused updates of every client, if there are any."""
        if not self._refused:
            return []
        (worker, most), total = self._refused.most_common(1)[0], sum(self._refused.values())
        who = f"{total} update{'s' * (total != 1)} refused as too long, {most} of them from {self._label(worker)}"
        details = {"refused": {str(worker): times for worker, times in sorted(self._refused.items())}}
        return [Note("too_long_in_total", details, f"{who}; {FIX}")]


def _finite(length: float) -> float | None:
    return length if math.isfinite(length) else None  # for JSON


def fitting(clients: Clients, method: Method) -> Clients:
    """Return the options without ``max_norm="auto"`` if the method clips: a clipped update is short already."""
    clips = any(isinstance(transform, Clip) for transform in method.transforms)
    return replace(clients, max_norm=None) if clips and clients.max_norm == "auto" else clients
