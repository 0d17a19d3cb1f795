"""Which clients are connected, and which worker number each of them has.

A thread of its own asks Flower for the nodes periodically, as the answer may take long. It only puts lists into the
pool's inbox. The polling thread reads them, and alone uses `ClientNumbers` and `Reminder`. A list carries the time at
which the question was asked, because it may be older than what the pool has learned from a reply meanwhile.
"""

from __future__ import annotations

import hashlib
import json
import threading
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from asyncsgd._files import write_text
from asyncsgd.engines.base import Note
from asyncsgd.flower.sender import RunEnded, clean

FILE = "clients.json"


def is_simulated(grid: Any) -> bool:
    """Return whether a grid is that of Flower's simulation engine."""
    return type(grid).__name__ == "InMemoryGrid"


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
            name, key = f"simulated {len(self._here)}", ""
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
