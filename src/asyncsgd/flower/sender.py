"""Messages to clients: one thread sends each message and waits for its reply, and all replies go to one queue.

Flower has no call that waits for the next reply, and one slow upload blocks ``pull_messages`` for seconds. So every
message in flight has a thread to itself, and only that thread pulls its reply. The thread builds the content, sends it,
pulls until the reply is there, checks the reply, and puts one (message, outcome) into the inbox. Then it waits for the
next message: a new thread for each one would cost more than a small message does. So there are as many threads as
messages were ever in flight at once. A thread touches nothing else of the pool: the polling thread reads the inbox and
changes all state. An exception in a thread becomes an outcome too, so that no message is lost silently, and the thread
stays. The grid of Flower's simulation is in this process, and its calls return at once: there the polling thread does
all of this itself (`DirectSender`).

The inbox may hold the reply of a client that has left meanwhile, or of a cancelled job. The polling thread sorts them
out (``ClientMessage.wanted`` and ``WorkerHandle.current``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from asyncsgd.core.errors import EngineError, NotKept, WorkerError

LONGEST = 2000


def clean(text: Any) -> str:
    r"""Return a client's text without control characters, cut to its end: a traceback ends with the error.

    >>> clean("\x1b[2Jgone")
    '?[2Jgone'
    """
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in str(text)[-LONGEST:])


UNDELIVERED = -1
"""A code of our own for a message that the SuperLink did not accept."""
EXPIRED = (UNDELIVERED, 3, 4)
"""Codes for a message or a reply that is gone. Most often its time-to-live has ended."""
OFFLINE = 5
SUPERLINKS = (*EXPIRED, OFFLINE)
"""Codes that only the SuperLink may send. A client cannot know them about itself."""
CODES = {
    0: "an unknown error",
    1: "the ClientApp cannot be loaded",
    2: "the ClientApp raised an exception",
    6: "a mod of the ClientApp refused",
    7: "the app bundle is invalid",
    8: "the ClientApp ended without a reply",
}


def meaning(code: int) -> str:
    """Return the meaning of one of Flower's error codes.

    >>> meaning(2), meaning(99)
    ('the ClientApp raised an exception', 'error 99')
    """
    return CODES.get(code, f"error {code}")


SOONEST, LATEST = 0.05, 2.0
"""Shortest and longest pause, in seconds, between two pulls of a reply. A pause is 1/20 of the time waited so far."""
TRIES = 5
"""Consecutive failed pulls after which a reply counts as lost. Flower itself tries for long before a pull fails."""


@dataclass(eq=False)
class ClientMessage:
    """A message to one client, and what is needed to read its reply."""

    worker: int
    node: int
    kind: str
    """``"train"`` or ``"evaluate"``, as Flower names them."""
    group: str
    """The round, as Flower's legacy server names the group: mods of legacy clients read it there."""
    content: Callable[[], Any]
    """Builds the ``RecordDict`` in the message's thread: serializing a large model takes a while."""
    timeout: float
    read: Callable[[Any], Any]
    """Checks the content of the reply in the message's thread; raises `asyncsgd.core.errors.BadUpdate`."""
    number: int
    """Number of the job, or iteration of the model to evaluate."""
    wanted: bool = True
    sent_at: float = 0.0
    joins: int = 0
    """How often the client had joined when the message was sent. What it remembers starts afresh each time."""
    applied: int = -1
    """The client's last job that was applied since it joined, as known when the message was sent; -1: none."""
    length: float = 0.0
    """The norm of the update, which ``read`` computes if the pool needs it. It is set before the outcome is queued."""
    legacy: bool = False
    """Whether the message has the format of Flower's legacy clients, see `asyncsgd.flower.legacy`."""
    records: Callable[[], Any] | None = None
    """Builds what the reply contained beside the model's arrays, a ``RecordDict``. ``read`` sets it."""
    examples: int | None = None
    """The number of examples that the reply reports. ``read`` sets it."""

    @property
    def what(self) -> str:
        """What the client was asked to do, in words."""
        return f"job {self.number}" if self.kind == "train" else f"the evaluation of model {self.number}"


@dataclass(frozen=True)
class Good:
    """A reply that passed every check, with the result of `ClientMessage.read`."""

    value: Any
    seconds: float


@dataclass(frozen=True)
class NoResult:
    """The reason why a message has no result; each subclass is one kind of failure."""

    reason: str


class Refused(NoResult):
    """A reply that failed a check."""


@dataclass(frozen=True)
class ErrorReply(NoResult):
    """One of Flower's error codes, which came instead of a reply."""

    code: int

    @property
    def offline(self) -> bool:
        """Whether the SuperLink says that the client is not connected."""
        return self.code == OFFLINE

    @property
    def expired(self) -> bool:
        """Whether the message or its reply is gone."""
        return self.code in EXPIRED


class Fatal(NoResult):
    """A failure that ends the run."""

    def error(self, who: str) -> EngineError:
        """Return the error that the run raises; ``who`` is the client that the message was for."""
        raise NotImplementedError


class RunEnded(Fatal):
    """Flower's run has ended, so no message can be sent."""

    def error(self, who: str) -> EngineError:
        fix = "start it again with resume=True to continue from the checkpoint"
        return EngineError(f"Flower's run has ended ({self.reason}); {fix}")


class NotBuilt(Fatal):
    """The message could not be built, because of its content or a bug."""

    def error(self, who: str) -> EngineError:
        fix = "check train_config and evaluate_config"
        return EngineError(f"the message to {who} could not be built ({self.reason}); {fix}")


class NotStored(Fatal):
    """A good reply that could not be written to the server's disk."""

    def error(self, who: str) -> EngineError:
        fix = "free some disk space and continue with resume=True"
        return EngineError(f"an update could not be written to disk ({self.reason}); {fix}")


Outcome = Good | Refused | ErrorReply | Fatal


class Sender:
    """Sends messages. Puts (message, outcome) into ``inbox``, once per message."""

    def __init__(self, grid: Any, inbox: SimpleQueue[Any]) -> None:
        self._grid, self._inbox = grid, inbox
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._idle: deque[SimpleQueue[ClientMessage | None]] = deque()  # the queue of every thread without a message

    def send(self, message: ClientMessage) -> None:
        """Give a message to an idle thread, or to a new one, and return at once. Only the polling thread calls this."""
        message.sent_at = time.monotonic()
        try:
            messages = self._idle.pop()
        except IndexError:
            messages = SimpleQueue()
            name = f"asyncsgd-message-{len(self._threads)}"
            thread = threading.Thread(target=self._deliver_each, args=(messages,), name=name, daemon=True)
            self._threads.append(thread)
            thread.start()
        messages.put(message)

    def next(self, timeout: float) -> Any:
        """Return the next item of the inbox, or raise ``Empty`` after ``timeout`` seconds. For the polling thread."""
        return self._inbox.get(timeout=timeout)

    def close(self, patience: float) -> None:
        """Stop pulling replies. Threads in the middle of a call get ``patience`` seconds to end.

        A thread that is still in a call after that is left behind. It is a daemon, so it does not keep the process
        alive, and whatever it puts into the inbox is never read.
        """
        self._stop.set()
        while self._idle:
            self._idle.pop().put(None)
        deadline = time.monotonic() + patience
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _deliver_each(self, messages: SimpleQueue[ClientMessage | None]) -> None:
        """Deliver one message after the other until the sender is closed."""
        while (message := messages.get()) is not None:
            try:
                outcome = self._exchange(message)
            except BaseException as error:  # Flower raises a BaseException when the run is over
                outcome = RunEnded(f"{type(error).__name__}: {error}")
            # Idle before the outcome is in the inbox: the polling thread may send the next message at once.
            self._idle.append(messages)
            if outcome is not None:
                self._inbox.put((message, outcome))
            del message, outcome  # an idle thread must not keep a model alive
            if self._stop.is_set():
                return

    def _exchange(self, message: ClientMessage) -> Outcome | None:
        name = self._push(message)
        return self._await(message, name) if isinstance(name, str) else name

    def _push(self, message: ClientMessage) -> str | NotBuilt | ErrorReply:
        """Build and send a message. Return Flower's name of it, or why it has none."""
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
            return ErrorReply(f"it could not be sent ({type(error).__name__}: {clean(error)})", UNDELIVERED)
        if len(taken) != 1 or not taken[0]:
            return ErrorReply("the SuperLink did not accept it: is the client still connected?", UNDELIVERED)
        return str(taken[0])

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
                    return ErrorReply(f"its reply could not be fetched ({clean(error)})", UNDELIVERED)
                replies = []
            if replies:
                return self._judge(message, name, replies)
            waited = time.monotonic() - message.sent_at
            self._stop.wait(min(LATEST, max(SOONEST, waited / 20)))
        return None

    def _judge(self, message: ClientMessage, name: str, replies: list[Any]) -> Outcome:
        seconds = time.monotonic() - message.sent_at
        if len(replies) > 1:
            return Refused(f"{len(replies)} replies came for one message")
        reply = replies[0]
        where = reply.metadata
        if where.reply_to_message_id != name:
            return Refused("the reply belongs to another message")
        if reply.has_error():
            code = int(reply.error.code)
            if code in SUPERLINKS and where.src_node_id == message.node:
                return Refused(f"it sent error {code}, which only the SuperLink may send")
            return ErrorReply(clean(reply.error.reason or ""), code)
        found = where.src_node_id, where.group_id, where.message_type
        if found != (message.node, message.group, message.kind):
            return Refused("the reply is from another node, or to another job")
        try:
            return Good(message.read(reply.content), seconds)
        except NotKept as error:
            return NotStored(str(error))
        except Exception as error:  # a client's content may cause any error
            kind = "" if isinstance(error, WorkerError) else f"{type(error).__name__}: "
            return Refused(f"{kind}{clean(error)}")


class DirectSender(Sender):
    """Sends messages without threads, for a grid in this process, whose calls return at once: Flower's simulation.

    The polling thread itself sends, and asks for all replies in one call whenever it waits for the inbox. With many
    clients that is much less work than one thread per message, each of which asks for its own reply.
    """

    def __init__(self, grid: Any, inbox: SimpleQueue[Any]) -> None:
        super().__init__(grid, inbox)
        self._sent: dict[str, ClientMessage] = {}  # by Flower's name; without a reply so far

    def send(self, message: ClientMessage) -> None:
        """Send a message."""
        message.sent_at = time.monotonic()
        name = self._guarded(partial(self._push, message))
        if isinstance(name, str):
            self._sent[name] = message
        else:
            self._inbox.put((message, name))

    def next(self, timeout: float) -> Any:
        """Return the next item of the inbox, or raise ``Empty`` after ``timeout`` seconds."""
        deadline = time.monotonic() + timeout
        while True:
            self._collect()
            left = deadline - time.monotonic()
            try:
                return self._inbox.get(timeout=max(0.0, min(left, SOONEST) if self._sent else left))
            except Empty:
                if left <= SOONEST:
                    raise

    def _collect(self) -> None:
        """Put the replies that have arrived into the inbox."""
        if not self._sent:
            return
        try:
            replies = list(self._grid.pull_messages(list(self._sent)))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # of the run's end, or of one reply, which must not hide the others
            for name, message in list(self._sent.items()):
                self._enter(name, self._guarded(partial(self._look, message, name)))
            return
        for reply in replies:
            name = str(reply.metadata.reply_to_message_id)
            if name in self._sent:
                self._enter(name, self._guarded(partial(self._judge, self._sent[name], name, [reply])))

    def _look(self, message: ClientMessage, name: str) -> Outcome | None:
        try:
            replies = list(self._grid.pull_messages([name]))
        except Exception as error:
            return Refused(f"the reply cannot be read ({type(error).__name__}: {clean(error)})")
        return self._judge(message, name, replies) if replies else None

    def _enter(self, name: str, outcome: Any) -> None:
        if outcome is not None:
            self._inbox.put((self._sent.pop(name), outcome))

    def _guarded(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as error:  # Flower raises a BaseException when the run is over
            return RunEnded(f"{type(error).__name__}: {error}")


def is_simulated(grid: Any) -> bool:
    """Return whether a grid is that of Flower's simulation engine."""
    return any(kind.__name__ == "InMemoryGrid" for kind in type(grid).__mro__)


def sender_for(grid: Any, inbox: SimpleQueue[Any]) -> Sender:
    """Return the sender that fits a grid."""
    return DirectSender(grid, inbox) if is_simulated(grid) else Sender(grid, inbox)
