"""Letters to clients: one thread pushes each and waits for its reply, and all replies end in one queue.

Flower has no call that waits for the next reply, and one slow upload blocks ``pull_messages`` for seconds. So every
letter has a thread of its own, and nobody but that thread ever asks for its reply.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from asyncsgd.core.errors import NotKept, WorkerError
from asyncsgd.flower.error_text import SUPERLINKS, UNDELIVERED, clean

SOONEST, LATEST = 0.05, 2.0
"""Seconds between two questions whether the reply is there: a twentieth of the time that it has taken so far."""
TRIES = 5
"""How often in a row asking may fail on the way to the SuperLink; Flower itself tries for long before it says so."""


@dataclass(eq=False)
class Letter:
    """What one client is to do."""

    worker: int
    node: int
    kind: str
    """``"train"`` or ``"evaluate"``, Flower's words."""
    group: str
    """Makes the message one of its kind, as Flower's message ids are hashes of the content."""
    content: Callable[[], Any]
    """Makes the ``RecordDict``, in the letter's own thread: serializing a large model takes a while."""
    timeout: float
    read: Callable[[Any], Any]
    """Judges the content of the reply, in the letter's own thread; raises `asyncsgd.core.errors.BadUpdate`."""
    number: int
    """Of the job, or the iteration of the model that is evaluated."""
    wanted: bool = True
    sent_at: float = 0.0


@dataclass(frozen=True)
class Good:
    """A reply that passed every check, and what `Letter.read` made of it."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class Refused:
    """A reply that did not."""

    reason: str


@dataclass(frozen=True)
class Trouble:
    """No reply, but one of Flower's error codes."""

    code: int
    reason: str


@dataclass(frozen=True)
class Over:
    """Flower's run has ended: nothing can be sent any more."""

    reason: str


@dataclass(frozen=True)
class Unwritten:
    """The message could not be made: a mistake of ours or in what is to be sent."""

    reason: str


@dataclass(frozen=True)
class Unkept:
    """A good reply, but our own disk would not have it."""

    reason: str


Outcome = Good | Refused | Trouble | Over | Unwritten | Unkept


class Post:
    """Sends letters; ``inbox`` receives (letter, outcome)."""

    def __init__(self, grid: Any, inbox: SimpleQueue[Any]) -> None:
        self._grid, self._inbox = grid, inbox
        self._stop = threading.Event()
        self._threads: set[threading.Thread] = set()

    def send(self, letter: Letter) -> None:
        """Returns at once."""
        letter.sent_at = time.monotonic()
        thread = threading.Thread(target=self._deliver, args=(letter,), name=f"asyncsgd-{letter.group}", daemon=True)
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        self._threads.add(thread)
        thread.start()

    def close(self, patience: float) -> None:
        """No more questions. Threads that are in the middle of one get ``patience`` seconds to end."""
        self._stop.set()
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _deliver(self, letter: Letter) -> None:
        try:
            outcome = self._exchange(letter)
        except BaseException as error:  # Flower says with a BaseException that the run is over
            outcome = Over(f"{type(error).__name__}: {error}")
        if outcome is not None:
            self._inbox.put((letter, outcome))

    def _exchange(self, letter: Letter) -> Outcome | None:
        from flwr.app import Message

        try:
            message = Message(letter.content(), letter.node, letter.kind, ttl=letter.timeout, group_id=letter.group)
        except Exception as error:
            return Unwritten(f"{type(error).__name__}: {error}")
        try:
            taken = list(self._grid.push_messages([message]))
        except Exception as error:
            return Trouble(UNDELIVERED, f"it could not be sent ({type(error).__name__}: {clean(error)})")
        if len(taken) != 1 or not taken[0]:
            return Trouble(UNDELIVERED, "the SuperLink did not take it: is the client still connected?")
        del message
        return self._await(letter, taken[0])

    def _await(self, letter: Letter, name: str) -> Outcome | None:
        fails = 0
        while not self._stop.is_set():
            try:
                replies = list(self._grid.pull_messages([name]))
                fails = 0
            except Exception as error:
                if type(error).__module__.partition(".")[0] != "httpx":
                    return Refused(f"the reply cannot be read ({type(error).__name__}: {clean(error)})")
                fails += 1
                if fails >= TRIES:
                    return Trouble(UNDELIVERED, f"its reply could not be fetched ({clean(error)})")
                replies = []
            if replies:
                return self._judge(letter, name, replies)
            waited = time.monotonic() - letter.sent_at
            self._stop.wait(min(LATEST, max(SOONEST, waited / 20)))
        return None

    def _judge(self, letter: Letter, name: str, replies: list[Any]) -> Outcome:
        seconds = time.monotonic() - letter.sent_at
        if len(replies) > 1:
            return Refused(f"{len(replies)} replies came for one message")
        reply = replies[0]
        where = reply.metadata
        if where.reply_to_message_id != name:
            return Refused("the reply is to another message")
        if reply.has_error():
            code = int(reply.error.code)
            if code in SUPERLINKS and where.src_node_id == letter.node:
                return Refused(f"it sent error {code}, which is the SuperLink's to send")
            return Trouble(code, clean(reply.error.reason or ""))
        said = where.src_node_id, where.group_id, where.message_type
        if said != (letter.node, letter.group, letter.kind):
            return Refused("the reply is from another node, or to another job")
        try:
            return Good(letter.read(reply.content), seconds)
        except NotKept as error:
            return Unkept(str(error))
        except Exception as error:  # a stranger's content may make anything happen
            kind = "" if isinstance(error, WorkerError) else f"{type(error).__name__}: "
            return Refused(f"{kind}{clean(error)}")
