"""Measure the speed and the delays of a run while it trains."""

from __future__ import annotations

from asyncsgd.run.evaluator import TICK
from asyncsgd.run.tail import Pace


class Progress:
    """Speed and delays of the updates: the numbers of a `LiveView`."""

    def __init__(self, iteration: int = 0) -> None:
        self._started_at = iteration
        self._delay_sum, self.maximum_delay = 0, 0
        self._next_tick = 0.0
        self.per_second = 0.0

    def begin(self, now: float, iteration: int) -> None:
        """Start to measure: the loop starts."""
        self._next_tick = now
        self._pace = Pace(now, iteration)

    def arrived(self, delay: int) -> None:
        """Count an update."""
        self._delay_sum += delay
        if delay > self.maximum_delay:
            self.maximum_delay = delay

    def average_delay(self, iteration: int) -> float:
        """Return the mean delay of the updates since the start or the last resume."""
        return self._delay_sum / max(1, iteration - self._started_at)

    def due(self, now: float) -> bool:
        """Return whether it is time to call ``on_progress``."""
        return now >= self._next_tick

    def tick(self, now: float, iteration: int, workers: int) -> None:
        """Measure the speed."""
        self._pace.add(now, iteration)
        self.per_second = self._pace.per_second(now, workers)

    def ticked(self, now: float) -> None:
        """Make the next tick due a tick from now."""
        self._next_tick = now + TICK
