"""How clients weigh: the number that a reply reports, such as its examples, becomes the weight of its update."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from asyncsgd.core.aggregation import Buffer
from asyncsgd.core.dispatch import Batch, FirstOf
from asyncsgd.core.method import Method
from asyncsgd.core.weights import Reports
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


def report_limit(method: Method) -> float | None:
    """Return how many times the median a report counts at most; None if this method has no limit, as in rounds.

    >>> import asyncsgd as asgd
    >>> report_limit(asgd.fedbuff(1.0, concurrency=2).weighted()), report_limit(asgd.fedavg(clients=2).weighted())
    (10.0, None)
    """
    rounds = isinstance(method.dispatch, Batch | FirstOf) and type(method.aggregation) is Buffer
    return None if method.weights is None or rounds else method.weights.limit


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
    """Notes once that some clients report their weight and others do not, and once that a report counts as less.

    Only the polling thread uses it.
    """

    def __init__(
        self, weighted_by: str | None, label: Callable[[int], str] = client_label, limit: float | None = None
    ) -> None:
        self._name, self._label, self._limit = weighted_by, label, limit
        self._first: dict[bool, int] = {}  # whether a client reports -> the first client that did so
        self._noted = weighted_by is None
        self._reports = None if limit is None else Reports(limit, {})  # None: nothing to note, or noted

    def note(self, worker: int, examples: int | None) -> list[Note]:
        """Return the notes about this reply, each once.

        >>> watch = ReportWatch("num-examples", limit=10.0)
        >>> watch.note(0, 20), watch.note(0, 20)
        ([], [])
        >>> [note.message for note in watch.note(1, None)]
        ["client 1 does not report 'num-examples', which client 0 does: it counts as an average client"]
        >>> watch.note(2, 30), watch.note(3, 9000)
        ([], [Note(event='weight_limited', details={'worker': 3, 'reported': 9000, 'counted': 300}, message="client 3 \
reports a 'num-examples' of more than 10 times the median of all clients, and counts as 10 times the median; \
method.weighted(limit=None) counts every report in full")])
        """
        self._first.setdefault(examples is not None, worker)
        return [*self._silent(), *self._limited(worker, examples)]

    def _silent(self) -> list[Note]:
        if self._noted or len(self._first) < 2:
            return []
        self._noted = True
        silent, reports = self._first[False], self._first[True]
        what = f"does not report {self._name!r}, which {self._label(reports)} does"
        text = f"{self._label(silent)} {what}: it counts as an average client"
        return [Note("no_weight", {"worker": silent}, text)]

    def _limited(self, worker: int, examples: int | None) -> list[Note]:
        if self._reports is None or not examples:
            return []
        self._reports.take(worker, examples)
        found = self._reports.lowered
        if found is None:
            return []
        self._reports = None
        largest, reported, counted = found
        what = f"reports a {self._name!r} of more than {self._limit:g} times the median of all clients"
        fix = "method.weighted(limit=None) counts every report in full"
        text = f"{self._label(largest)} {what}, and counts as {self._limit:g} times the median; {fix}"
        return [Note("weight_limited", {"worker": largest, "reported": reported, "counted": counted}, text)]
