"""The records of a reply: arrays, metrics and configurations, and which of the arrays are the model's."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

from asyncsgd.core.errors import BadReply
from asyncsgd.flower.arrays import Layout

ARRAYS, LEGACY = "arrays", "fitres.parameters"
"""Names of a reply's record with the model: that of Flower's own strategies, and that of legacy clients."""


class Records(NamedTuple):
    """The records of a message by their kind, each with its name."""

    arrays: dict[str, Any]
    metrics: dict[str, Any]
    configs: dict[str, Any]


@cache
def _kinds() -> tuple[type, ...]:
    from flwr.app import ArrayRecord, ConfigRecord, MetricRecord

    return ArrayRecord, MetricRecord, ConfigRecord


def records_of(content: Any) -> Records:
    """Return the records of a ``flwr.app.RecordDict`` by their kind.

    Flower's own properties, such as ``content.array_records``, check every record again at each call. A server reads
    every reply several times, so that would take as long as the update itself.
    """
    found: dict[type, dict[str, Any]] = {kind: {} for kind in _kinds()}
    for name, record in content.items():
        found[type(record)][name] = record
    return Records(*found.values())


def model_record(records: Records, layout: Layout, key: str = ARRAYS) -> tuple[str, Any]:
    """Return the name and the ``ArrayRecord`` of the model in a reply, or raise `BadReply`.

    It is the record with the name ``key``, under which the server sent the model, else the only one, else the one that
    has all arrays.
    """
    found = records.arrays
    for name in (key, LEGACY):
        if name in found:
            return name, found[name]
    fitting = list(found.items())
    if len(fitting) > 1:
        names = {part.name for part in layout.parts}
        fitting = [(name, record) for name, record in fitting if names <= record.keys()]
    if len(fitting) != 1:
        fix = f"name the record of the model {key!r}"
        raise BadReply(f"the reply has {len(found)} sets of arrays, and {len(fitting)} of them fit the model; {fix}")
    name, record = fitting[0]
    return name, record
