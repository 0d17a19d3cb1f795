"""Clients of Flower's legacy interface: ``ClientApp(client_fn=...)`` with a ``NumPyClient`` or a ``Client``.

Their messages have other records (``fitins.parameters`` in place of ``arrays``), and the arrays in them have numbers in
place of names. Nothing in Flower says which of the two formats a client understands. A message with the records of
both is not possible: Flower's own mods, and many ClientApps, accept one record of arrays only. So the server sends a
message of today's format first. A legacy client fails at once, before it computes anything, with the name of the record
that it misses. The server then sends the same message again in the legacy format, and remembers the format.

Only the polling thread uses `Formats` and `ClientFormat`. Threads of messages call the functions, which have no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from asyncsgd.core.errors import BadParameter, BadReply
from asyncsgd.engines.base import Note
from asyncsgd.flower.records import Records
from asyncsgd.flower.sender import ClientMessage, ErrorReply, Good, Outcome

WORDS = {"train": "fit", "evaluate": "evaluate"}
"""The legacy names of Flower's message types."""
FIT, EVALUATE = "fitins.parameters", "evaluateins.parameters"
"""Names of the records of arrays in messages to legacy clients."""
MISSED = FIT, EVALUATE
"""What the error of a legacy client contains that got a message of today's format."""
RAISED = (0, 2)
"""Flower's codes for a ClientApp that raised an exception."""
SCALARS = (bool, bytes, float, int, str)
"""What the configuration for a legacy client may hold."""
STATUS = {1: "GET_PROPERTIES_NOT_IMPLEMENTED", 2: "GET_PARAMETERS_NOT_IMPLEMENTED", 3: "FIT_NOT_IMPLEMENTED"}
STATUS |= {4: "EVALUATE_NOT_IMPLEMENTED"}
"""Flower's names of the status codes of legacy replies; 0 is OK."""


# --------------------------------------------------------------------------------------------------------------
# Which format a client understands.


class Formats:
    """The format that a client understood last. All clients of a run have the same app, so it is the best guess."""

    def __init__(self) -> None:
        self.legacy = False
        self._announced = False

    def news(self) -> list[Note]:
        """Return a note once it is known that clients have the legacy interface: their log shows an error."""
        if self._announced or not self.legacy:
            return []
        self._announced = True
        text = (
            "clients have Flower's legacy interface: from now on they get messages in its format. Each of them may "
            f"have logged an error about {FIT!r} or {EVALUATE!r}; it is harmless"
        )
        return [Note("legacy", {}, text)]


class ClientFormat:
    """The format of one client's messages: the guess until the client has answered, then what it understood.

    A client may change while it is away (a SuperNode that is set up again with another app), so `doubt` keeps the
    format but makes the next exception of the ClientApp a reason to try the other format. Each exception is worth at
    most two more messages: once a client named the record that it misses, its format is sure until the next doubt.
    """

    def __init__(self, run: Formats) -> None:
        self._run = run
        self._known: bool | None = None
        self._sure = False

    @property
    def legacy(self) -> bool:
        """Whether the client's next message has the legacy format."""
        return self._run.legacy if self._known is None else self._known

    def doubt(self) -> None:
        """Stop being sure of the format, as the client left or is left out."""
        self._sure = False

    def learn(self, message: ClientMessage, outcome: Outcome) -> bool:
        """Learn from an answer. Return whether the message has to be sent again, in the other format."""
        if isinstance(outcome, Good):
            self._known = self._run.legacy = message.legacy
            self._sure = True
            return False
        if self._sure or not isinstance(outcome, ErrorReply) or outcome.code not in RAISED:
            return False
        if message.legacy:
            self._known = False
            return True
        if any(name in outcome.reason for name in MISSED):
            self._known = self._run.legacy = self._sure = True
            return True
        return False


# --------------------------------------------------------------------------------------------------------------
# Messages and replies of legacy clients.


def numbered(record: Mapping[str, Any]) -> Any:
    """Return an ``ArrayRecord`` of the same arrays with the names "0", "1", ..., in the same order."""
    from flwr.app import ArrayRecord

    return ArrayRecord({str(place): array for place, array in enumerate(record.values())})


def legacy_content(kind: str, record: Any, config: Mapping[str, Any], number: int) -> Any:
    """Return the content of a message of this kind (``"train"`` or ``"evaluate"``) in the legacy format.

    The number of the round is in the configuration as ``"server-round"`` and as ``"server_round"``, the name that most
    legacy ClientApps read.
    """
    from flwr.app import ConfigRecord, RecordDict

    for name, value in config.items():
        if not isinstance(value, SCALARS):
            fix = "pass a number, a string, bytes or a boolean"
            what = f"is a {type(value).__name__}, which clients of Flower's legacy interface cannot receive"
            raise BadParameter(f"{kind}_config[{name!r}]", value, what, fix)
    word = WORDS[kind]
    given = {"server_round": number, **config, "server-round": number}
    return RecordDict({f"{word}ins.parameters": record, f"{word}ins.config": ConfigRecord(given)})


def legacy_metrics(records: Records, kind: str, weighted_by: str) -> dict[str, Any] | None:
    """Return the metrics of a legacy reply as one record; None if the reply has today's format.

    The number of examples becomes the metric ``weighted_by``, and the loss of an evaluation the metric ``"loss"``.
    Metrics that are not numbers, which Flower allows here, are left out. Raise `BadReply` if the client reports a
    failure.
    """
    res = f"{WORDS[kind]}res"
    status = records.configs.get(f"{res}.status")
    if status is None:
        return None
    check_status(status)
    given = records.configs.get(f"{res}.metrics", {})
    metrics = {name: value for name, value in given.items() if isinstance(value, int | float)}
    for name, renamed in (("loss", "loss"), ("num_examples", weighted_by)):
        found = records.metrics.get(f"{res}.{name}", {}).get(name)
        if found is not None:
            metrics[renamed] = found
    return metrics


def check_status(status: Mapping[str, Any]) -> None:
    """Raise `BadReply` with the client's message unless its status is OK.

    >>> check_status({"code": 0, "message": "Success"})
    >>> check_status({"code": 3, "message": "no data today"})
    Traceback (most recent call last):
        ...
    asyncsgd.core.errors.BadReply: the client reports FIT_NOT_IMPLEMENTED: no data today
    """
    code = status.get("code")
    if code != 0:
        name = STATUS.get(code, f"status {code!r:.20}") if isinstance(code, int) else f"status {code!r:.20}"
        raise BadReply(f"the client reports {name}: {status.get('message', '')}")
