"""A mod for ClientApps that compresses what clients send, and decodes what they receive. It runs on the client.

What encoding left over of the client's updates stays in the node's state (``context.state``), which Flower keeps from
message to message. The rule is that of every worker (`asyncsgd.core.worker`): what is left over counts only once the
server has applied the update. So the state holds what is left over *before* and *after* the last job, and the next
message tells which of them to use. A message or a reply that was lost changes nothing, as every message names the last
job that was applied.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from asyncsgd.compiled.compression import fast
from asyncsgd.core.compression import Compression, as_compression, as_down
from asyncsgd.core.errors import BadMessage, BadReply
from asyncsgd.core.vectors import Vector, is_finite
from asyncsgd.core.work import Encoded, Gradient
from asyncsgd.core.worker import WorkerState
from asyncsgd.flower.arrays import NUMPY, by_position, read_parts, view
from asyncsgd.flower.encoding import MODEL, TERMS, UPDATE, Terms, byte_array, byte_part, decode, shown, spell
from asyncsgd.flower.legacy import FIT, legacy_metrics, numbered
from asyncsgd.flower.npy_bytes import npy_bytes
from asyncsgd.flower.records import model_record, records_of

if TYPE_CHECKING:
    from flwr.app import Context, Message
    from flwr.clientapp.typing import ClientAppCallable, Mod

MEMORY = "asyncsgd-memory"
BEFORE, AFTER = "before", "after"
REFUSED = 6
"""Flower's code for a mod that refuses a message."""


def compress_mod(up: str | Compression | None = None, *, down: str | Compression | None = None) -> Mod:
    """Return a mod that compresses a client's updates, and decodes compressed models: one line in ``client_app.py``.

    ::

        app = ClientApp(mods=[asgd.flower.compress_mod()])

    The train function sees ordinary arrays and returns ordinary arrays. The server decides how they are compressed: its
    method is ``method.compressed("int4", down="bfloat16")``. Messages of a server that compresses nothing, and
    evaluations, pass unchanged. What a code leaves over of an update is added to the next one (error feedback). It is
    kept in the state of the node, where it takes twice the memory of the model.

    Put this mod first, so that other mods see ordinary arrays.

    Args:
        up: The code of updates that this client insists on, as for `asyncsgd.Method.compressed`; by default the
            server's. The client refuses jobs of a server with another one.
        down: The code of models that this client insists on; by default the server's.

    >>> mod = compress_mod("int4")

    See docs/guides/federated.md for what compression costs and what the server checks.
    """
    wanted_up = None if up is None else as_compression("up", up)
    wanted_down = None if down is None else as_down(down)

    def mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
        if message.metadata.message_type.partition(".")[0] != "train":
            return call_next(message, context)
        found = message.content.config_records.get(TERMS)
        try:
            terms = None if found is None else Terms.read(found)
            _check("updates", "up", wanted_up, None if terms is None else terms.up)
            _check("models", "down", wanted_down, None if terms is None else terms.down)
            if terms is None:
                return call_next(message, context)
            start, key = _open(message, terms)
        except (BadReply, BadMessage) as error:
            return _refuse(message, str(error))
        reply = call_next(message, context)
        if reply.has_error() or terms.up is None:
            return reply
        try:
            _compress(reply, context, terms, start, key)
        except BadReply as error:
            return _refuse(message, str(error))
        return reply

    return mod


def _check(what: str, argument: str, wanted: Compression | None, found: Compression | None) -> None:
    if wanted is not None and wanted != found:
        problem = f"this client compresses {what} as {shown(wanted)}, the server as {shown(found)}"
        raise BadReply(f"{problem}; use the same {argument} in method.compressed(...) and compress_mod(...)")


def _refuse(message: Message, reason: str) -> Message:
    from flwr.app import Error, Message

    return Message(Error(REFUSED, reason), reply_to=message)


def _open(message: Message, terms: Terms) -> tuple[Vector, str]:
    """Turn a job into an ordinary message, and return the model as one vector, and the name of its record."""
    from flwr.app import RecordDict

    content = {name: record for name, record in message.content.items() if name != TERMS}
    if len(message.content.array_records) != 1:
        raise BadMessage(f"the job has {len(message.content.array_records)} sets of arrays, one is expected")
    [(key, arrays)] = message.content.array_records.items()  # the server chooses the key
    layout = terms.layout
    if terms.down is not None:
        found = read_parts(arrays, (*layout.carried, byte_part(MODEL, terms.down, layout)))
        x = decode(terms.down, found.pop(MODEL), layout)
        record = layout.join(x, found)
        content[key] = numbered(record) if key == FIT else record
    else:
        x = layout.gather(layout.read(arrays))
    message.content = RecordDict(content)  # a new one: in a simulation, messages to several clients share records
    return x, key


def _compress(reply: Message, context: Context, terms: Terms, start: Vector, key: str) -> None:
    """Replace the trained arrays of a reply by one array of bytes, and remember what is left over."""
    from flwr.app import ArrayRecord, ConfigRecord, RecordDict

    layout = terms.layout
    up = terms.up
    assert up is not None
    records = records_of(reply.content)
    legacy_metrics(records, "train", "")  # raises if a legacy client reports a failure
    name, record = model_record(records, layout, key)
    arrays = layout.read(record)
    update = layout.difference(start, arrays) if terms.replies == "models" else layout.gather(arrays)
    if not is_finite(update):
        raise BadReply("the arrays that the ClientApp returned hold NaN or infinity")
    worker = WorkerState(Encoded(Gradient(), up=up), update, codec=fast)
    left = _remembered(context.state, terms)
    if left is not None:
        worker.continue_from(left)
    carried = by_position(record, layout.parts)
    encoded = ArrayRecord({part.name: carried[part.name] for part in layout.carried})
    encoded[UPDATE] = byte_array(worker.encode(update))
    _remember(context.state, terms, worker)
    content = {**reply.content, name: encoded, TERMS: ConfigRecord({"up": spell(up)})}
    reply.content = RecordDict(content)


# What the mod keeps in the node's state: the memory's name, the code and the number of the last job, and two vectors.


def _remembered(state: Any, terms: Terms) -> Vector | None:
    """Return what is left over of this client's applied updates; None if it starts afresh."""
    kept, arrays = state.config_records.get(TERMS), state.array_records.get(MEMORY)
    if kept is None or arrays is None or (kept["memory"], kept["up"]) != (terms.memory, spell(terms.up)):
        return None
    if kept["job"] < terms.applied:
        return None  # the node lost the state of a later job, so what it has was sent already
    name = AFTER if kept["job"] == terms.applied else BEFORE
    if name not in arrays:
        return None
    return view(name, arrays[name], (terms.layout.size,), terms.layout.dtype)


def _remember(state: Any, terms: Terms, worker: WorkerState) -> None:
    """Store what is left over if the server does not apply the update, and if it does. The worker is not used again."""
    from flwr.app import Array, ArrayRecord, ConfigRecord

    kept = ArrayRecord()
    for name in (BEFORE, AFTER):
        if name == AFTER:
            worker.settle(used=True)
        values = worker.left_over
        if values.any():  # at first there is nothing left over, and nothing to store
            data = npy_bytes(values, values.shape, values.dtype)
            kept[name] = Array(dtype=str(values.dtype), shape=values.shape, stype=NUMPY, data=data)
    state[MEMORY] = kept
    state[TERMS] = ConfigRecord({"memory": terms.memory, "up": spell(terms.up), "job": terms.job})
