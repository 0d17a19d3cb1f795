"""Clients that compress: a node with a state of its own, and the mod around what the client computes."""

from __future__ import annotations

from typing import Any

import numpy as np
from flower.fake import Client, as_messages
from flwr.app import Context, Message, RecordDict

from asyncsgd.core.compression import Compression
from asyncsgd.core.vectors import Vector
from asyncsgd.flower import compress_mod
from asyncsgd.flower.arrays import Layout
from asyncsgd.flower.encoding import TERMS


class Node:
    """A client with the mod. It keeps every record of terms, and every update as it was before it was compressed."""

    def __init__(self, client: Client, mod: Any = None) -> None:
        self.context = Context(7, 1, {}, RecordDict(), {})
        self.terms: list[dict[str, Any]] = []
        self.updates: dict[int, Vector] = {}  # by job
        self._client, self._mod = client, mod or compress_mod()

    def __call__(self, message: Message) -> Message:
        self.terms.append(dict(message.content.config_records.get(TERMS, {})))
        return self._mod(message, self.context, self._compute)

    def _compute(self, message: Message, context: Context) -> Message:
        before = message.content["arrays"]
        [reply] = as_messages(self._client(message), message)
        if not reply.has_error() and message.metadata.message_type == "train":
            layout = Layout.of(before)
            returned = layout.read(reply.content["arrays"])
            self.updates[self.terms[-1]["job"]] = layout.difference(layout.split(before)[0], returned)
        return reply


def sent(code: Compression, vector: Vector) -> Vector:
    """A vector as it arrives."""
    out = np.empty_like(vector)
    code.decode(code.encode(vector), out)
    return out
