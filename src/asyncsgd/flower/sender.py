"""MessageWriter to clients: one thread pushes each and waits for its reply, and all replies end in one queue.

Flower has no call that waits for the next reply, and one slow upload blocks ``pull_messages`` for seconds. So every
message has a thread of its own, and nobody but that thread ever asks for its reply.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from asyncsgd.core.errors import NotKept, WorkerError

LONGEST = 2000


def clean(words: Any) -> str:
    r"""Printable characters only (no escape sequences), and not too many: the last ones, as tracebacks end well.

    >>> clean("\x1b[2Jgone")
    '?[2Jgone'
    """
    text = str(words)[-LONGEST:]
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


UNDELIVERED = -1
"""Not Flower's but ours: a outgoing that the SuperLink did not take."""
EXPIRED = (UNDELIVERED, 3, 4)
"""Flower's codes for a outgoing, or its reply, that is gone: most often its time-to-live is over."""
OFFLINE = 5
SUPERLINKS = (*EXPIRED, OFFLINE)
"""What a client cannot know of itself: such an error is believed if the SuperLink sent it."""
CODES = {
    0: "an unknown error",
    1: "the ClientApp cannot be loaded",
    2: "the ClientApp raised an exception",
    6: "a mod of the ClientApp refused",
    7: "the app bundle is invalid",
    8: "the ClientApp ended without a reply",
}


def meaning(code: int) -> str:
    """In words.

    >>> meaning(2), meaning(99)
    ('the ClientApp raised an exception', 'error 99')
    """
    return CODES.get(code, f"error {code}")


SOONEST, LATEST = 0.05, 2.0
"""Seconds between two questions whether the reply is there: a twentieth of the time that it has taken so far."""
TRIES = 5
"""How often in a row asking may fail on the way to the SuperLink; Flower itself tries for long before it says so."""


@dataclass(eq=False)
class ClientMessage:
    """What one client is to do."""

    worker: int
    node: int
    kind: str
    """``"train"`` or ``"evaluate"``, Flower's words."""
    group: str
    """Makes the outgoing one of its kind, as Flower's outgoing ids are hashes of the content."""
    content: Callable[[], Any]
    """Makes the ``RecordDict``, in the message's own thread: serializing a large model takes a while."""
    timeout: float
    read: Callable[[Any], Any]
    """Judges the content of the reply, in the message's own thread; raises `asyncsgd.core.errors.BadUpdate`."""
    number: int
    """Of the job, or the iteration of the model that is evaluated."""
    wanted: bool = True
    sent_at: float = 0.0


@dataclass(frozen=True)
class Good:
    """A reply that passed every check, and what `ClientMessage.read` made of it."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class Refused:
    """A reply that did not."""

    reason: str


@dataclass(frozen=True)
class ErrorReply:
    """No reply, but one of Flower's error codes."""

    code: int
    reason: str


@dataclass(frozen=True)
class RunEnded:
    """Flower's run has ended: nothing can be sent any more."""

    reason: str


@dataclass(frozen=True)
class NotBuilt:
    """The outgoing could not be made: a mistake of ours or in what is to be sent."""

    reason: str


@dataclass(frozen=True)
class NotStored:
    """A good reply, but our own disk would not have it."""

    reason: str


Outcome = Good | Refused | ErrorReply | RunEnded | NotBuilt | NotStored


class Sender:
    """Sends messages; ``inbox`` receives (message, outcome)."""

    def __init__(self, grid: Any, inbox: SimpleQueue[Any]) -> None:
        self._grid, self._inbox = grid, inbox
        self._stop = threading.Event()
        self._threads: set[threading.Thread] = set()

    def send(self, message: ClientMessage) -> None:
        """Returns at once."""
        message.sent_at = time.monotonic()
        thread = threading.Thread(target=self._deliver, args=(message,), name=f"asyncsgd-{message.group}", daemon=True)
        self._threads = {thread for thread in self._threads if thread.is_alive()}
        self._threads.add(thread)
        thread.start()

    def close(self, patience: float) -> None:
        """No more questions. Threads that are in the middle of one get ``patience`` seconds to end."""
        self._stop.set()
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _deliver(self, message: ClientMessage) -> None:
        try:
            outcome = self._exchange(message)
        except BaseException as error:  # Flower says with a BaseException that the run is over
            outcome = RunEnded(f"{type(error).__name__}: {error}")
        if outcome is not None:
            self._inbox.put((message, outcome))

    def _exchange(self, message: ClientMessage) -> Outcome | None:
        from flwr.app import Message

        try:
            outgoing = Message(
                message.content(), message.node, message.kind, ttl=message.timeout, group_id=message.group
            )
        except Exception as error:
            return NotBuilt(f"{type(error).__name__}: {error}")
        try:
            taken = list(self._grid.push_messages([outgoing]))
        except Exception as error:
            return ErrorReply(UNDELIVERED, f"it could not be sent ({type(error).__name__}: {clean(error)})")
        if len(taken) != 1 or not taken[0]:
            return ErrorReply(UNDELIVERED, "the SuperLink did not take it: is the client still connected?")
        del outgoing
        return self._await(message, taken[0])

    def _await(self, message: ClientMessage, name: str) -> Outcome | None:
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
                    return ErrorReply(UNDELIVERED, f"its reply could not be fetched ({clean(error)})")
                replies = []
            if replies:
                return self._judge(message, name, replies)
            waited = time.monotonic() - message.sent_at
            self._stop.wait(min(LATEST, max(SOONEST, waited / 20)))
        return None

    def _judge(self, message: ClientMessage, name: str, replies: list[Any]) -> Outcome:
        seconds = time.monotonic() - message.sent_at
        if len(replies) > 1:
            return Refused(f"{len(replies)} replies came for one outgoing")
        reply = replies[0]
        where = reply.metadata
        if where.reply_to_message_id != name:
            return Refused("the reply is to another outgoing")
        if reply.has_error():
            code = int(reply.error.code)
            if code in SUPERLINKS and where.src_node_id == message.node:
                return Refused(f"it sent error {code}, which is the SuperLink's to send")
            return ErrorReply(code, clean(reply.error.reason or ""))
        said = where.src_node_id, where.group_id, where.message_type
        if said != (message.node, message.group, message.kind):
            return Refused("the reply is from another node, or to another job")
        try:
            return Good(message.read(reply.content), seconds)
        except NotKept as error:
            return NotStored(str(error))
        except Exception as error:  # a stranger's content may make anything happen
            kind = "" if isinstance(error, WorkerError) else f"{type(error).__name__}: "
            return Refused(f"{kind}{clean(error)}")
