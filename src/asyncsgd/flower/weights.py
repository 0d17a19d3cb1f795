"""How clients weigh: the number that a reply reports, such as its examples, becomes the weight of its update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from asyncsgd.core.method import Method
from asyncsgd.engines.base import Note
from asyncsgd.trace.labels import client_label

EXAMPLES = "num-examples"
"""The name under which Flower's own clients report how many examples they used."""
LARGEST = 1e9
"""Largest credible report. A larger one is treated as no report."""
PARTS = 1_000_000
"""A number under another name may be a fraction. It is counted in millionths, because examples are whole numbers."""


def by_reports(method: Method, weighted_by: str | None) -> Method:
    """Return the method with updates weighed by what clients report, unless it says otherwise or cannot.

    A method cannot if it adds noise for privacy, counts every update once, or has weights of its own; see
    `asyncsgd.Method.unweighable`. ``weighted_by`` None leaves every method as it is.

    >>> import asyncsgd as asgd
    >>> by_reports(asgd.fedavg(clients=2), "num-examples").weights
    Weights(limit=10.0)
    >>> by_reports(asgd.fedavg(clients=2).clipped(1.0, noise=1.0), "num-examples").weights is None
    True
    """
    if weighted_by is None or method.weights is not None or method.unweighable is not None:
        return method
    return method.weighted()


def read_examples(records: Mapping[str, Any], weighted_by: str | None) -> int | None:
    """Return the number of examples that a reply reports; None if there is none, or none that is credible.

    A number under another name than "num-examples" is returned in millionths.

    >>> read_examples({"metrics": {"num-examples": 20, "loss": 0.5}}, "num-examples")
    20
    >>> read_examples({"metrics": {"trust": 0.25}}, "trust"), read_examples({"metrics": {"loss": 0.5}}, "trust")
    (250000, None)
    """
    for record in records.values():
        if weighted_by is None or weighted_by not in record:
            continue
        try:
            value = float(record[weighted_by])
        except (TypeError, ValueError, OverflowError):
            return None
        if not 0 <= value <= LARGEST:  # also for NaN, as every comparison with it is false
            return None
        return math.ceil(value) if weighted_by == EXAMPLES else round(value * PARTS)
    return None


class ReportWatch:
    """Notes once that some clients report their weight and others do not. Only the polling thread uses it."""

    def __init__(self, weighted_by: str | None, label: Callable[[int], str] = client_label) -> None:
        self._name, self._label = weighted_by, label
        self._first: dict[bool, int] = {}  # whether a client reports -> the first client that did so
        self._noted = weighted_by is None

    def note(self, worker: int, examples: int | None) -> list[Note]:
        """Return the note, if this reply is the first of the second kind.

        >>> watch = ReportWatch("num-examples")
        >>> watch.note(0, 20), watch.note(0, 20)
        ([], [])
        >>> [note.message for note in watch.note(1, None)]
        ["client 1 does not report 'num-examples', which client 0 does: it counts as an average client"]
        >>> watch.note(2, None)
        []
        """
        self._first.setdefault(examples is not None, worker)
        if self._noted or len(self._first) < 2:
            return []
        self._noted = True
        silent, reports = self._first[False], self._first[True]
        what = f"does not report {self._name!r}, which {self._label(reports)} does"
        text = f"{self._label(silent)} {what}: it counts as an average client"
        return [Note("no_weight", {"worker": silent}, text)]
