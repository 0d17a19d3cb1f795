"""How fast updates come, whether thousands per second or one every ten minutes."""

from __future__ import annotations

import math
from collections import deque

SECONDS = 5.0
"""The speed is measured over at least this time,"""
EACH, FEW = 4, 10
"""and over at least this many updates of each worker, and in all: so slow workers count too."""
TOGETHER = 0.2
"""Seconds."""
MOST = 10_000
"""Moments that are remembered."""


class Pace:
    """Moments at which updates had arrived, and the speed that follows from them.

    >>> pace = Pace(0.0)
    >>> for update in range(1, 5):
    ...     pace.add(25.0 * update, update)
    >>> pace.per_second(110.0, workers=1)
    0.04
    """

    def __init__(self, time: float, iteration: int = 0) -> None:
        self._seen = deque([(time, iteration)], maxlen=MOST)
        self._moment = -math.inf  # when the newest moment began
        self._from_start = True

    def add(self, time: float, iteration: int) -> None:
        """Note how many updates had arrived at this time. Those that come together, as a batch does, are one moment."""
        if iteration <= self._seen[-1][1]:
            return
        if time < self._moment + TOGETHER:
            self._seen.pop()
        else:
            self._moment = time
        self._seen.append((time, iteration))

    def per_second(self, now: float, workers: int) -> float:
        """Return updates per second up to now; 0 before the first one.

        Between two moments the speed stays what it was. It falls once the next one is later than the mean.
        The time before the first update, in which workers may have started, counts only until enough came after it.
        """
        seen, last = self._seen, self._seen[-1]
        least = max(FEW, EACH * workers)
        while len(seen) > 2 and last[1] - seen[1][1] >= least and (self._from_start or seen[1][0] <= now - SECONDS):
            seen.popleft()
            self._from_start = False
        first = seen[0]
        updates = last[1] - first[1]
        if not updates:
            return 0.0
        took = last[0] - first[0]
        between = took / (len(seen) - 1)
        return updates / max(took, now - between - first[0], 1e-9)
