"""Who is connected: asked for again and again in a thread of its own, as the answer may take its time."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from asyncsgd.engines.base import Note
from asyncsgd.engines.flower.post import Over
from asyncsgd.engines.flower.words import clean

OFTEN, SELDOM = 0.2, 1.0
"""Seconds between two looks: before the run is open, and after."""
REMIND = 60.0
"""Seconds between two reminders that nobody is there."""


@dataclass(frozen=True)
class Roll:
    """The nodes that were connected at some time after ``began``."""

    began: float
    nodes: tuple[Any, ...]


class RollCall:
    """Puts a `Roll` into ``inbox`` at every look."""

    def __init__(self, grid: Any, inbox: SimpleQueue[Any]) -> None:
        self._grid, self._inbox = grid, inbox
        self._stop = threading.Event()
        self.interval = OFTEN
        self._thread = threading.Thread(target=self._look, name="asyncsgd-roll-call", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        trouble = ""
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._inbox.put(Roll(began, tuple(self._grid.get_nodes())))
            except Exception as error:  # the SuperLink may be away for a while: whoever was there still counts
                if trouble != (trouble := f"{type(error).__name__}: {clean(error)}"):
                    words = f"nobody can say who is connected ({trouble}); asking again"
                    self._inbox.put(Note("trouble", {"reason": trouble}, words))
            except BaseException as error:
                self._inbox.put((None, Over(f"{type(error).__name__}: {error}")))
                return
            self._stop.wait(self.interval)

    def close(self, patience: float) -> None:
        """Stop looking."""
        self._stop.set()
        self._thread.join(patience)


class Reminder:
    """Says now and then that the run waits for clients."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._next = time.monotonic() + REMIND

    def due(self, now: float, *, present: bool, online: int) -> list[Note]:
        """A note, if nobody has been present for a while."""
        if not present and now < self._next:
            return []
        self._next = now + REMIND
        words = f"waiting for clients: {online} connected, {self._needed} are needed to begin"
        return [] if present else [Note("waiting", {"online": online}, words)]
