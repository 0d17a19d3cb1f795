"""One client as the server sees it: what it does, what waits for it, how often it failed."""

from __future__ import annotations

import math
import time
from collections import defaultdict, deque
from collections.abc import Iterable
from statistics import median

from asyncsgd.engines.base import Note
from asyncsgd.flower.engine import Clients
from asyncsgd.flower.sender import ClientMessage

# --------------------------------------------------------------------------------------------------------------
# How long a client may take before the server stops waiting for it: a multiple of what it usually takes.


LEAST = 60.0
"""Seconds that a client always gets: short jobs vary a lot, and a client may be restarted in the middle of one."""
FIRST = 600.0
"""Seconds that a client gets at least before it has answered once: it may have to load libraries and data."""
ANSWERS = 21
"""Answers of a client that its median is taken over: the last ones, so that it follows a client that becomes slower."""


class Patience:
    """Remembers how long each client took, for training and for evaluation apart. Used by the pool's thread alone."""

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


LONGEST = 6
"""Doublings of the pause of a client that keeps failing."""


class WorkerHandle:
    """Written to by the pool alone."""

    def __init__(self, number: int, node: int) -> None:
        self.number, self.node = number, node
        self.online = True
        self.left_at = 0.0
        self.doubtful = False  # it left because a reply said so, and nobody has looked since
        self.current: ClientMessage | None = None  # sent, no reply yet
        self.waiting: deque[ClientMessage] = deque()
        self.failures = 0  # in a row
        self.pauses = 0  # in a row: each is twice as long
        self.back_at: float | None = None  # left out until then
        self.silent_since: float | None = None  # given up at that time: left out until it answers
        self.left_out = 0.0  # seconds in all, the present pause to its end included

    @property
    def out(self) -> bool:
        """Whether it is left out for now."""
        return self.back_at is not None or self.silent_since is not None

    def next(self) -> ClientMessage | None:
        """The message to send now: one at a time, as a simulated client would take several at once."""
        if self.current is not None or not self.waiting:
            return None
        self.current = self.waiting.popleft()
        return self.current

    def drop(self, message: ClientMessage) -> None:
        """It is not wanted any more. A client cannot be stopped: if it has the message, it works on."""
        message.wanted = False
        if message is not self.current:
            self.waiting = deque(other for other in self.waiting if other is not message)

    def leave(self, now: float) -> None:
        """It is left out or gone: what it had is over."""
        self.left_at = now
        for message in (self.current, *self.waiting):
            if message is not None and message.kind == "train":
                message.wanted = False
        self.waiting = deque(message for message in self.waiting if message.wanted)

    def pause(self, seconds: float, why: str) -> Note:
        """Leave it out for a while; what there is to say about that."""
        pause = seconds * 2.0 ** min(self.pauses, LONGEST)
        self.pauses += 1
        self.back_at = time.monotonic() + pause
        self.left_out += pause
        last = why.strip().splitlines()[-1] if why.strip() else "no words"
        words = f"client {self.number} is left out for {pause:g} s after failing again and again, at last: {last}"
        bias = "meanwhile the model leans towards the data of the other clients"
        return Note("left_out", {"worker": self.number, "pause": pause, "reason": last}, f"{words}; {bias}")

    def silence(self, what: str, seconds: float) -> Note:
        """Leave it out until it answers; what there is to say about that."""
        self.silent_since = time.monotonic()
        reason = f"no answer to {what} in {seconds:.0f} s"
        words = f"client {self.number} is left out until it answers: {reason}"
        bias = "meanwhile the model leans towards the data of the other clients"
        details = {"worker": self.number, "seconds": seconds, "reason": reason}
        return Note("silent", details, f"{words}; {bias}")

    def heard(self) -> bool:
        """It has answered, or is offline; whether it had been given up."""
        since, self.silent_since = self.silent_since, None
        if since is not None:
            self.left_out += time.monotonic() - since
        return since is not None

    def was_left_out(self) -> float:
        """Seconds up to now."""
        now = time.monotonic()
        silent = 0.0 if self.silent_since is None else now - self.silent_since
        return self.left_out - max(0.0, (self.back_at or 0.0) - now) + silent


def bias(handles: Iterable[WorkerHandle]) -> list[Note]:
    """A note if some were left out for a while."""
    out = {handle.number: handle.was_left_out() for handle in handles if handle.left_out or handle.out}
    if not out:
        return []
    worst = max(out, key=lambda worker: out[worker])
    words = f"{len(out)} of the clients were left out for a while, client {worst} for {out[worst]:.0f} s"
    details = {"left_out": {str(worker): out[worker] for worker in out}}
    return [Note("bias", details, f"{words}: the model leans towards the data of the others")]
