"""Compressed models and updates in Flower's messages: what the server and the mod of a ClientApp agree on.

With a job the server sends a record of *terms*: which codes it uses, which arrays make up the vector, and what became
of the client's last update. If models are compressed, one array of bytes replaces the arrays that are trained. The mod
(`asyncsgd.flower.mod`) turns the message into an ordinary one, and replies with one array of bytes in place of the
trained arrays, beside the carried ones.

A reply comes from outside. Its length follows from the model and the code, so the server refuses any other length
before it allocates anything, and `Compression.decode` refuses numbers out of range.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.compiled.compression import fast
from asyncsgd.core.compression import NAMES, Compression, Message
from asyncsgd.core.errors import BadParameter, BadReply
from asyncsgd.core.vectors import Vector
from asyncsgd.flower.arrays import NUMPY, Arrays, Layout, Part, read_parts, view
from asyncsgd.flower.npy_bytes import npy_bytes
from asyncsgd.flower.records import Records

TERMS = "asyncsgd"
"""Name of the record with the terms of a job, of the record in a reply, and of the mod's record in a node's state."""
MODEL, UPDATE = "asyncsgd-model", "asyncsgd-update"
"""Names of the arrays of bytes that replace the trained arrays of a model and of a reply."""
FORMAT = 1
FIX = "add mods=[asgd.flower.compress_mod()] to the ClientApp"


def spell(code: Compression | None) -> str:
    """Return a code and its options as text, which `unspell` reads; "" for None.

    >>> from asyncsgd.core.compression import Int4, Int8
    >>> spell(Int4()), unspell(spell(Int8(block=32)))
    ('{"block": 64, "code": "int4"}', Int8(block=32))
    """
    if code is None:
        return ""
    options = {option.name: getattr(code, option.name) for option in fields(code)}
    return json.dumps({"code": code.name, **options}, sort_keys=True)


def unspell(text: str) -> Compression | None:
    """Return the code that `spell` made the text from. Raise ValueError, TypeError or KeyError for any other text."""
    if not text:
        return None
    options = json.loads(text)
    return NAMES[options.pop("code")](**options)


def shown(code: Compression | None) -> str:
    """Return a code for messages to people.

    >>> from asyncsgd.core.compression import Int4
    >>> shown(Int4()), shown(None)
    ('int4(block=64)', 'uncompressed')
    """
    if code is None:
        return "uncompressed"
    options = ", ".join(f"{option.name}={getattr(code, option.name)}" for option in fields(code))
    return f"{code.name}({options})"


def check_sendable(code: Compression | None, argument: str) -> None:
    """Raise `BadParameter` for a code that a client cannot know."""
    if code is not None and type(code) not in NAMES.values():
        fix = "use a code of asgd.compression"
        raise BadParameter(argument, type(code).__name__, "is not known to the clients", fix)


@dataclass(frozen=True)
class Terms:
    """What the server tells the mod with a job."""

    up: Compression | None
    down: Compression | None
    replies: str
    layout: Layout
    memory: str
    """Names the memory to use: it starts afresh when this changes."""
    job: int
    applied: int
    """The client's last job that was applied since its memory started; -1 if there is none."""

    def record(self, rows: str) -> Any:
        """Return the terms as a ``ConfigRecord``; ``rows`` is `layout_text` of the layout."""
        from flwr.app import ConfigRecord

        codes = {"up": spell(self.up), "down": spell(self.down), "replies": self.replies, "layout": rows}
        memory = {"memory": self.memory, "job": self.job, "applied": self.applied}
        return ConfigRecord({"format": FORMAT, **codes, **memory})

    @classmethod
    def read(cls, record: Mapping[str, Any]) -> Terms:
        """Return the terms of a record. Raise `BadReply` if they cannot be read."""
        try:
            if record["format"] != FORMAT:
                raise ValueError(f"format {record['format']} is not {FORMAT}")
            rows = [
                (name, tuple(shape), np.dtype(kind), rule) for name, shape, kind, rule in json.loads(record["layout"])
            ]
            return cls(
                unspell(record["up"]),
                unspell(record["down"]),
                record["replies"],
                Layout.laid_out(rows),
                record["memory"],
                record["job"],
                record["applied"],
            )
        except (KeyError, TypeError, ValueError) as error:
            fix = "install the same version of asyncsgd on the server and on the client"
            raise BadReply(f"the server's terms cannot be read ({type(error).__name__}: {error}); {fix}") from error


def layout_text(layout: Layout) -> str:
    """Return a layout as text for the terms of jobs."""
    return json.dumps(layout.rows())


def byte_array(message: Message) -> Any:
    """Return encoded bytes as a ``flwr.app.Array``."""
    from flwr.app import Array

    kind = np.dtype(np.uint8)
    return Array(dtype="uint8", shape=message.shape, stype=NUMPY, data=npy_bytes(message, message.shape, kind))


def byte_part(name: str, code: Compression, layout: Layout) -> Part:
    """Return the description of the array of bytes that carries a vector of this layout."""
    return Part(name, (code.size(layout.size, layout.dtype),), np.dtype(np.uint8), None, "whole")


def decode(code: Compression, message: NDArray[Any], layout: Layout) -> Vector:
    """Return the vector of a message whose length was checked. Raise `BadMessage` if it is damaged.

    Several threads read replies, and a compiled code may have buffers of its own: every call makes its own.
    """
    out: Vector = np.empty(layout.size, layout.dtype)
    fast(code).decode(message, out)
    return out


class Coding:
    """The server's half: models become messages, and messages updates. Several threads use it at once."""

    def __init__(self, layout: Layout, up: Compression | None, down: Compression | None, replies: str) -> None:
        self._layout, self._up, self._down, self._replies = layout, up, down, replies
        self._rows = layout_text(layout)

    @property
    def used(self) -> bool:
        """Whether anything is compressed."""
        return self._up is not None or self._down is not None

    @property
    def encodes_models(self) -> bool:
        """Whether the server compresses models."""
        return self._down is not None

    @property
    def encodes_updates(self) -> bool:
        """Whether clients compress their updates, and so keep a memory."""
        return self._up is not None

    def terms(self, memory: str, job: int, applied: int) -> Any:
        """Return the record of terms of a job."""
        terms = Terms(self._up, self._down, self._replies, self._layout, memory, job, applied)
        return terms.record(self._rows)

    def model(self, point: Vector, carried: Arrays) -> Any:
        """Return the ``ArrayRecord`` of a model on its way to a client."""
        if self._down is None:
            return self._layout.join(point, carried)
        record = Layout(self._layout.carried, self._layout.dtype).join(point, carried)
        record[MODEL] = byte_array(fast(self._down).encode(point))
        return record

    def start(self, point: Vector) -> Vector:
        """Return the point from which the client started."""
        if self._down is None:
            return point
        return decode(self._down, fast(self._down).encode(point), self._layout)

    def update(self, records: Records, record: Mapping[str, Any]) -> tuple[Vector, Arrays]:
        """Return (the update, the carried arrays) of a reply with this ``ArrayRecord``, or raise `BadReply`."""
        assert self._up is not None
        if UPDATE not in record:
            raise BadReply(f"the update is not compressed, the server expects {shown(self._up)}; {FIX}")
        said = records.configs.get(TERMS, {}).get("up")
        if said != spell(self._up):
            fix = "call asgd.flower.compress_mod() without options, or with those of the method"
            raise BadReply(f"the update is compressed as {said!r:.100}, the server expects {spell(self._up)}; {fix}")
        part = byte_part(UPDATE, self._up, self._layout)
        arrays = read_parts(record, self._layout.carried)
        return decode(self._up, view(UPDATE, record[UPDATE], part.shape, part.dtype), self._layout), arrays
