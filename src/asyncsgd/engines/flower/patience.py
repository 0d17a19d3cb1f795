"""How long a client may take before the server stops waiting for it: a multiple of what it usually takes."""

from __future__ import annotations

import math
from collections import defaultdict, deque
from statistics import median

from asyncsgd.engines.flower.clients import Clients

LEAST = 60.0
"""Seconds that a client always gets: short jobs vary a lot, and a client may be restarted in the middle of one."""
FIRST = 600.0
"""Seconds that a client gets at least before it has answered once: it may have to load libraries and data."""
ANSWERS = 21
"""Answers of a client that its median is taken over: the last ones, so that it follows a client that becomes slower."""


class Patience:
    """Remembers how long each client took, for training and for evaluation apart. Used by the crew's thread alone."""

    def __init__(self, rules: Clients) -> None:
        self._multiple, self._timeout = rules.patience, rules.timeout
        self._took: dict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=ANSWERS))
        self._medians: dict[str, dict[int, float]] = {"train": {}, "evaluate": {}}

    def took(self, worker: int, kind: str, seconds: float) -> None:
        """A client has answered, in time or late: a client that is slower than it was gets longer next time."""
        answers = self._took[kind, worker]
        answers.append(seconds)
        self._medians[kind][worker] = median(answers)

    def allowed(self, worker: int, kind: str) -> float:
        """Seconds that a client may take now; infinity: until Flower itself gives the message up.

        Before a client's first answer nothing is known of its speed, so it is held against the slowest of the others.
        The multiple ends halfway between the median and ``timeout``: later, a client that hangs would hold its jobs
        until Flower gives them up.
        """
        if self._multiple is None:
            return math.inf
        medians = self._medians[kind]
        usual = medians[worker] if worker in medians else max(medians.values(), default=0.0)
        least = LEAST if worker in medians else FIRST
        allowed = max(least, min(self._multiple * usual, (usual + self._timeout) / 2))
        return allowed if allowed < self._timeout else math.inf
