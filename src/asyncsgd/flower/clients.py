"""Which clients are connected, and what the server knows of each: its message, queue, failures, and patience.

Only the polling thread touches these objects, except that the thread of a message reads the message itself.
"""

from __future__ import annotations

import hashlib
import json
import math
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

from asyncsgd._files import write_text
from asyncsgd.engines.base import Note
from asyncsgd.flower.legacy import ClientFormat, Formats
from asyncsgd.flower.round_rules import ClientName
from asyncsgd.flower.sender import ClientMessage, Outcome, RunEnded, clean
from asyncsgd.trace.labels import CLIENT, SIMULATED

# --------------------------------------------------------------------------------------------------------------
# Which clients are connected, and which worker number each of them has.
# A thread of its own asks Flower for the nodes periodically, as the answer may take long. It only puts lists into the
# pool's inbox. The polling thread reads them, and alone uses `ClientNumbers` and `Reminder`. A list carries the time at
# which the question was asked, because it may be older than what the pool has learned from a reply meanwhile.


FILE = "clients.json"


class ClientNumbers:
    """Worker numbers 0, 1, ... for Flower's 64-bit node ids, in the order in which nodes were first seen.

    A file keeps the numbers from one start to the next. A node that registered with a key keeps its number as long as
    it has the key, even if the SuperLink was set up again. Simulated nodes have new ids at every start: there the n-th
    node is worker n.
    """

    def __init__(self, folder: Path | None, *, simulated: bool, resume: bool) -> None:
        self._file = None if folder is None else folder / FILE
        self._simulated = simulated
        self._rows: list[dict[str, str]] = []
        self._here: dict[int, int] = {}  # node id -> worker, since this start
        if resume and self._file is not None and self._file.exists():
            self._rows = json.loads(self._file.read_text("utf-8"))

    def number(self, nodes: Iterable[Any]) -> dict[int, Any]:
        """Return worker -> ``NodeInfo`` for every node. New nodes get the next numbers, in order of registration."""
        nodes = list(nodes)
        before = len(self._rows)
        for node in sorted(nodes, key=lambda node: (node.registered_at, node.node_id)):
            if node.node_id not in self._here:
                self._here[node.node_id] = self._find(node)
        if len(self._rows) > before:
            self._write()
        return {self._here[node.node_id]: node for node in nodes}

    def _find(self, node: Any) -> int:
        if self._simulated:
            name, key = f"{SIMULATED} {len(self._here)}", ""
        else:
            name, key = str(node.node_id), hashlib.sha256(node.public_key).hexdigest() if node.public_key else ""
        for worker, row in enumerate(self._rows):
            if row["node"] == name:
                return worker
        for worker, row in enumerate(self._rows):
            if key and row["key"] == key and worker not in self._here.values():
                row["node"] = name
                self._write()
                return worker
        self._rows.append({"node": name, "key": key})
        return len(self._rows) - 1

    def _write(self) -> None:
        if self._file is not None:
            write_text(self._file, json.dumps(self._rows, indent=1) + "\n")

    def name(self, worker: int) -> str:
        """Return Flower's id of this worker."""
        return self._rows[worker]["node"]


def connected(grid: Any, needed: int, note: Callable[[str], None]) -> int:
    """Wait until enough clients are connected; return how many there are once two lists in a row have the same number.

    Nodes connect one by one, so the first list that has enough of them may not have all.
    """
    seen, reminder = -1, Reminder(needed)
    while True:
        here = len(list(grid.get_nodes()))
        if here == seen >= needed:
            return here
        for reminded in reminder.due(time.monotonic(), present=False, online=here):
            note(str(reminded.message))
        seen = here
        time.sleep(OFTEN)  # Flower has no call that waits for nodes


OFTEN, SELDOM = 0.2, 1.0
"""Seconds between two lists of nodes: before the run begins, and after."""
REMIND = 60.0
"""Seconds between two reminders that no client is present."""


@dataclass(frozen=True)
class ConnectedNodes:
    """The nodes that were connected. The list was made at some time after ``began``."""

    began: float
    nodes: tuple[Any, ...]


class PresenceWatcher:
    """Puts a `ConnectedNodes` into ``inbox`` at every look."""

    def __init__(self, grid: Any, inbox: SimpleQueue[Any]) -> None:
        self._grid, self._inbox = grid, inbox
        self._stop = threading.Event()
        self.interval = OFTEN
        self._thread = threading.Thread(target=self._look, name="asyncsgd-presence", daemon=True)
        self._thread.start()

    def _look(self) -> None:
        trouble = ""
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._inbox.put(ConnectedNodes(began, tuple(self._grid.get_nodes())))
            except Exception as error:  # the SuperLink may be away for a while: clients still count as connected
                if trouble != (trouble := f"{type(error).__name__}: {clean(error)}"):
                    text = f"cannot list the connected clients ({trouble}); asking again"
                    self._inbox.put(Note("trouble", {"reason": trouble}, text))
            except BaseException as error:
                self._inbox.put((None, RunEnded(f"{type(error).__name__}: {error}")))
                return
            self._stop.wait(self.interval)

    def close(self, patience: float) -> None:
        """Stop asking. Wait up to ``patience`` seconds for a call in progress."""
        self._stop.set()
        self._thread.join(patience)


class Reminder:
    """Reminds the user periodically that the run waits for clients."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._next = time.monotonic() + REMIND

    def due(self, now: float, *, present: bool, online: int) -> list[Note]:
        """Return a note if no client has been present for a while."""
        if not present and now < self._next:
            return []
        self._next = now + REMIND
        text = f"waiting for clients: {online} connected, {self._needed} needed to begin"
        return [] if present else [Note("waiting", {"online": online}, text)]


LEAST = 60.0
"""Seconds that a client always gets: short jobs vary a lot, and a client may be restarted during one."""
FIRST = 600.0
"""Seconds that a client gets at least for its first answer: it may have to load libraries and data."""
LEAST_END, END_MULTIPLE, LONGEST_END, UNKNOWN = 2.0, 3.0, 20.0, 10.0
"""At the end of a run a client gets 2 s and 3 times its usual time, at most 20 s; 10 s if no usual time is known."""
SLOW_MULTIPLE = 1.25
"""A client for whose evaluations 20 s are usually not enough gets 2 s and this multiple of its usual time."""
ANSWERS = 21
"""Number of last answers whose median is a client's usual time. It follows a client that becomes slower."""


class Patience:
    """How long each client usually takes, for training and evaluation separately, and how long it may take."""

    def __init__(self, multiple: float | None, timeout: float) -> None:
        self._multiple, self._timeout = multiple, timeout
        self._took: dict[tuple[str, int], deque[float]] = defaultdict(lambda: deque(maxlen=ANSWERS))
        self._medians: dict[str, dict[int, float]] = {"train": {}, "evaluate": {}}

    def took(self, worker: int, kind: str, seconds: float) -> None:
        """Record an answer, in time or late: a client that has become slower gets more time."""
        answers = self._took[kind, worker]
        answers.append(seconds)
        self._medians[kind][worker] = median(answers)

    def usual(self, worker: int, kind: str) -> float | None:
        """Return the median of this client's last answers, else that of the slowest other client, else None."""
        medians = self._medians[kind]
        return medians[worker] if worker in medians else max(medians.values(), default=None)

    def last(self, worker: int, kind: str) -> float:
        """Return the seconds that a client gets once the run is over and its evaluation alone is still missing.

        A quick client gets a few times its own usual time, because short times vary a lot. A client that is known to be
        slow gets a little more than it usually takes: it may be alive, and there is no other way to find out. An
        evaluation is expected to take no longer than training if none has ended; that is a guess, for which the end
        does not wait longer than 20 s.
        """
        usual, guess = self.usual(worker, kind), self.usual(worker, "train")
        if usual is None:
            return UNKNOWN if guess is None else min(LONGEST_END, LEAST_END + END_MULTIPLE * guess)
        quick = min(LONGEST_END, LEAST_END + END_MULTIPLE * usual)
        return max(quick, LEAST_END + SLOW_MULTIPLE * usual)

    def allowed(self, worker: int, kind: str) -> float:
        """Return the seconds that a client may take now; infinity if only Flower's own time-out counts.

        Before its first answer a client's speed is unknown, so the slowest other client's median is used. The limit is
        at most halfway between the median and ``timeout``: with a later limit, a client that hangs would hold its jobs
        until Flower gives them up.
        """
        if self._multiple is None:
            return math.inf
        usual = self.usual(worker, kind) or 0.0
        least = LEAST if worker in self._medians[kind] else FIRST
        allowed = max(least, min(self._multiple * usual, (usual + self._timeout) / 2))
        return allowed if allowed < self._timeout else math.inf


LONGEST_NAME = 80
"""Largest number of characters of a client's name."""
LONGEST = 6
"""The pause of a client that keeps failing doubles at most this often."""


class WorkerHandle:
    """One client. Only the pool changes it."""

    def __init__(self, number: int, node: int, formats: Formats, name: str = "", simulated: bool = False) -> None:
        self.number, self.node = number, node
        self.format = ClientFormat(formats)
        self.registered = bool(name)  # whether the operator named the node; else the client may name itself
        self._name, self._simulated = clean(name)[:LONGEST_NAME], simulated
        self.online = True
        self.left_at = 0.0
        self.doubtful = False  # an error reply said that it is offline; the list of nodes has not confirmed it
        self.current: ClientMessage | None = None  # the message that was sent and has no reply yet
        self.waiting: deque[ClientMessage] = deque()
        self.failures = 0  # in a row
        self.pauses = 0  # in a row: each is twice as long as the one before
        self.back_at: float | None = None  # left out until this time
        self.silent_since: float | None = None  # given up at this time, and left out until it answers
        self.left_out = 0.0  # seconds in total, including the rest of the present pause
        self.proven = False  # whether a reply of it was good
        self.joins = 0
        self.applied = -1  # its last job that was applied since it joined
        self.undecided = -1  # the job whose update was reported, until the server's verdict is known

    @property
    def title(self) -> ClientName:
        """The names of the client, as they are known now."""
        return ClientName(self.number, self.node, self._name, self._simulated)

    def introduce(self, node: str) -> Note:
        """Return the note that maps the client's number to its node and its name."""
        return Note(CLIENT, {"worker": self.number, "node": node, "name": self._name})

    def rename(self, name: str) -> bool:
        """Take the name that the client reports, unless the operator named it. Return whether its name changed."""
        if self.registered or not name or name == self._name:
            return False
        self._name = name
        return True

    @property
    def out(self) -> bool:
        """Whether the client is left out now."""
        return self.back_at is not None or self.silent_since is not None

    def next(self) -> ClientMessage | None:
        """Return the next message to send, if the client is free.

        A client gets one message at a time: a simulated client would work on several at once. If it compresses updates,
        it must learn with its next job whether its last update was applied, so it waits for that too.
        """
        if self.current is not None or not self.waiting or self.undecided >= 0:
            return None
        self.current = self.waiting.popleft()
        self.current.joins, self.current.applied = self.joins, self.applied
        self.current.legacy = self.format.legacy
        return self.current

    def sends_again(self, message: ClientMessage, outcome: Outcome) -> bool:
        """Return whether the client did not understand the format of a message, which is then queued again.

        The same message object is sent, so the pool's records of a job or an evaluation stay as they are.
        """
        if not self.format.learn(message, outcome) or not message.wanted:
            return False
        self.waiting.appendleft(message)
        return True

    def judged(self, job: int, applied: bool) -> None:
        """Record the server's verdict on an update. A verdict from before the client left has no effect."""
        if self.undecided == job:
            self.undecided = -1
            self.applied = job if applied else self.applied

    def drop(self, message: ClientMessage) -> None:
        """Mark a message as not wanted. A client that already has it cannot be stopped, and works to the end."""
        message.wanted = False
        if message is not self.current:
            self.waiting = deque(other for other in self.waiting if other is not message)

    def leave(self, now: float) -> None:
        """Drop the client's training messages, as it is left out or gone. What it remembers starts afresh."""
        self.left_at = now
        self.joins, self.applied, self.undecided = self.joins + 1, -1, -1
        self.format.doubt()
        for message in (self.current, *self.waiting):
            if message is not None and message.kind == "train":
                message.wanted = False
        self.waiting = deque(message for message in self.waiting if message.wanted)

    def pause(self, seconds: float, why: str) -> Note:
        """Leave the client out for a while. Return the note about it."""
        pause = seconds * 2.0 ** min(self.pauses, LONGEST)
        self.pauses += 1
        self.back_at = time.monotonic() + pause
        self.left_out += pause
        last = why.strip().splitlines()[-1] if why.strip() else "no error message"
        what = f"{self.title} is left out for {pause:g} s after repeated failures; the last was: {last}"
        bias = "meanwhile the model leans towards the data of the other clients"
        return Note("left_out", {"worker": self.number, "pause": pause, "reason": last}, f"{what}; {bias}")

    def silence(self, what: str, seconds: float) -> Note:
        """Leave the client out until it answers. Return the note about it."""
        self.silent_since = time.monotonic()
        reason = f"no answer to {what} in {seconds:.0f} s"
        text = f"{self.title} is left out until it answers: {reason}"
        bias = "meanwhile the model leans towards the data of the other clients"
        details = {"worker": self.number, "allowed": seconds, "reason": reason}
        return Note("silent", details, f"{text}; {bias}")

    def welcome_back(self, now: float) -> bool:
        """End the pause of a client if it is over. Return whether it was."""
        over = self.back_at is not None and self.back_at <= now
        self.back_at = None if over else self.back_at
        return over

    def answered(self) -> bool:
        """Record that the client answered, or is offline. Return whether it had been given up."""
        since, self.silent_since = self.silent_since, None
        if since is not None:
            self.left_out += time.monotonic() - since
        return since is not None

    def was_left_out(self) -> float:
        """Return the seconds for which the client was left out so far."""
        now = time.monotonic()
        silent = 0.0 if self.silent_since is None else now - self.silent_since
        return self.left_out - max(0.0, (self.back_at or 0.0) - now) + silent


def bias(handles: Iterable[WorkerHandle]) -> list[Note]:
    """Return a note about the clients that were left out for a while, if there are any."""
    handles = list(handles)
    titles = {handle.number: handle.title for handle in handles}
    out = {handle.number: handle.was_left_out() for handle in handles if handle.left_out or handle.out}
    if not out:
        return []
    worst = max(out, key=lambda worker: out[worker])
    text = f"{len(out)} of the clients were left out for a while, {titles[worst]} for {out[worst]:.0f} s"
    details = {"left_out": {str(worker): out[worker] for worker in out}}
    return [Note("bias", details, f"{text}: the model leans towards the data of the others")]
