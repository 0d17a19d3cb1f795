"""How texts that users read call a worker: one rule for the terminal, the page, ``watch``, figures and files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

CLIENT = "client"
"""The event of a journal's line that maps a worker to the name and Flower's id of its node."""
SIMULATED = "simulated"
"""The beginning of the id of a node in Flower's simulation. Such an id is new at every start, so no text shows it."""


def client_label(worker: int, name: str = "", node: str = "") -> str:
    """Return the label of a Flower client: its number, with its name if it has one, else with the id of its node.

    >>> client_label(2, "clinic-a", "1391"), client_label(2, "", "1391"), client_label(2, "", "simulated 2")
    ('client 2 (clinic-a)', 'client 2 (node 1391)', 'client 2')
    """
    if name:
        return f"client {worker} ({name})"
    return f"client {worker} (node {node})" if node and not node.startswith(SIMULATED) else f"client {worker}"


@dataclass(frozen=True)
class WorkerLabels:
    """The labels of the workers of one run. A worker that is not a Flower client has its number alone.

    >>> journal = [{"event": "client", "worker": 0, "node": "1391", "name": "clinic-a"}]
    >>> labels = WorkerLabels.of(journal)
    >>> labels(0), labels.short(0), labels(1), labels.short(1)
    ('client 0 (clinic-a)', 'clinic-a', 'worker 1', '1')
    """

    clients: Mapping[int, tuple[str, str]] = field(default_factory=dict)
    """The name and Flower's node id of every worker that is a client. Either may be empty."""

    @classmethod
    def of(cls, journal: Iterable[Mapping[str, Any]]) -> WorkerLabels:
        """Return the labels that a journal contains; of several lines about a client the last one counts."""
        rows = [row for row in journal if row.get("event") == CLIENT and isinstance(row.get("worker"), int)]
        return cls({row["worker"]: (str(row.get("name", "")), str(row.get("node", ""))) for row in rows})

    def __call__(self, worker: int) -> str:
        """Return the label of a worker for a sentence."""
        known = self.clients.get(worker)
        return f"worker {worker}" if known is None else client_label(worker, *known)

    def short(self, worker: int) -> str:
        """Return the label of a worker where there is little room: name, else node id, else number."""
        name, node = self.clients.get(worker, ("", ""))
        return name or ("" if node.startswith(SIMULATED) else node) or str(worker)


PLAIN = WorkerLabels()
"""The labels of workers that have no names."""
