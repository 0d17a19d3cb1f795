"""What clients of a federated run measured themselves, as charts beside those of the server."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from asyncsgd.report import embed
from asyncsgd.report.measures import thinned
from asyncsgd.run.view import AXES, RunView

WORDS = {"train": "clients, while training", "evaluate": "clients, evaluating"}
MOST = 12
"""Charts: names come from clients, who could invent any number of them."""


def client_charts(subjects: Sequence[RunView]) -> list[dict[str, Any]]:
    """One chart per metric and kind: means over clients, by the journals."""
    known: dict[tuple[str, str], None] = {}
    for subject in subjects:
        for row in _rows(subject):
            known |= {(name, row["kind"]): None for name in row["metrics"]}
    charts = []
    for name, kind in list(known)[:MOST]:
        lines = []
        for place, subject in enumerate(subjects):
            rows = [row for row in _rows(subject) if row["kind"] == kind and name in row["metrics"]]
            at = [(row.get("at", row["iteration"]), row["seconds"], row["metrics"][name]) for row in rows]
            if at:
                values = np.array(at, float)
                columns = thinned({**{axis: values[:, n] for n, axis in enumerate(AXES)}, "value": values[:, 2]})
                lines.append({"run": place, **{key: embed.numbers(column) for key, column in columns.items()}})
        charts.append({"name": f"{name} ({WORDS[kind]})", "log": False, "target": None, "lines": lines})
    return charts


def _rows(subject: RunView) -> list[Mapping[str, Any]]:
    rows = [row for row in subject.journal if row.get("event") == "client_metrics"]
    return [row for row in rows if row.get("kind") in WORDS and isinstance(row.get("metrics"), Mapping)]
