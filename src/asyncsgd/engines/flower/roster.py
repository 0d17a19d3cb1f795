"""Which client is which worker: Flower's 64-bit node ids as small numbers, remembered from one start to the next."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from asyncsgd.trace.atomic import write_text

FILE = "clients.json"


def is_simulated(grid: Any) -> bool:
    """Whether a grid is that of Flower's simulation engine."""
    return type(grid).__name__ == "InMemoryGrid"


class Roster:
    """Numbers for nodes, in the order in which they were first seen.

    A node that registered with a key keeps its number for as long as it has the key, also when the SuperLink was set
    up anew. Simulated nodes have new ids at every start: there the n-th node is worker n.
    """

    def __init__(self, folder: Path | None, *, simulated: bool, resume: bool) -> None:
        self._file = None if folder is None else folder / FILE
        self._simulated = simulated
        self._rows: list[dict[str, str]] = []
        self._here: dict[int, int] = {}  # node id -> worker, of this start
        if resume and self._file is not None and self._file.exists():
            self._rows = json.loads(self._file.read_text("utf-8"))

    def number(self, nodes: Iterable[Any]) -> dict[int, Any]:
        """Worker -> ``NodeInfo`` of every node; who is new gets the next numbers, by when they registered."""
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
        """What Flower calls this worker."""
        return self._rows[worker]["node"]
