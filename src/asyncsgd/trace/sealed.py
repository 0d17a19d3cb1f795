"""Append-only files that detect damage: blocks of bytes and lines of JSON, each with a checksum.

Every checksum also covers all bytes before it. So a reader detects a block or line that was deleted, repeated or moved,
as well as one whose bits have changed. CRC-32 protects against accidents, not against forgery.

A kill or a full disk can leave the last block or line half written. That is *torn* and not damaged: readers ignore it,
because the run never relied on it.
"""

from __future__ import annotations

import json
import re
import struct
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from asyncsgd.core.errors import Damage

HEAD = struct.Struct("<III")
"""The head of a block: its length, the checksum of it and all bytes before, and a checksum of these two numbers."""
SUM = re.compile(rb', "crc32": "([0-9a-f]{8})"\}\Z')
"""The end of every line."""


@dataclass(frozen=True)
class Mark:
    """The length of a file at some moment, and the checksum of its contents up to there."""

    size: int = 0
    chain: int = 0


# ------------------------------------------------------------------------------------- blocks


def block(payload: bytes, chain: int) -> tuple[bytes, int]:
    """Return the bytes of the next block, and the checksum to pass for the block after it.

    >>> data, chain = block(b"abc", 0)
    >>> [(bytes(payload), mark.size) for payload, mark in blocks(data)]
    [(b'abc', 15)]
    """
    chain = zlib.crc32(payload, chain)
    return _head(len(payload), chain) + payload, chain


def _head(length: int, chain: int) -> bytes:
    words = HEAD.pack(length, chain, 0)[:8]
    return words + zlib.crc32(words).to_bytes(4, "little")


def blocks(data: bytes | memoryview, mark: Mark = Mark()) -> Iterator[tuple[memoryview, Mark]]:  # noqa: B008 - frozen
    """Yield every whole block of ``data`` and the mark at its end; ``data`` starts at ``mark``.

    Stop at a torn block. Raise `Damage` at a block that is whole and wrong.
    """
    view, place = memoryview(data), 0
    while len(view) - place >= HEAD.size:
        length, chain, check = HEAD.unpack_from(view, place)
        where = mark.size + place
        if zlib.crc32(view[place : place + 8]) != check:
            if not any(view[place:]):
                return  # a power cut can leave zeros in place of a block
            raise Damage(f"the block at byte {where} has a wrong head")
        start = place + HEAD.size
        if len(view) - start < length:
            return
        payload = view[start : start + length]
        if zlib.crc32(payload, mark.chain) != chain:
            raise Damage(f"the block at byte {where} does not match its checksum")
        place = start + length
        mark = Mark(where + HEAD.size + length, chain)
        yield payload, mark
        view, place = view[place:], 0


# ------------------------------------------------------------------------------------- lines


def line(row: Mapping[str, Any], chain: int) -> tuple[bytes, int]:
    """Return a row as the next line, and the checksum to pass for the line after it.

    >>> [(row, mark.size) for row, mark in lines(line({"iteration": 3}, 0)[0])]
    [({'iteration': 3}, 38)]
    """
    text = json.dumps(row).encode()
    chain = zlib.crc32(text, chain)
    return b'%s, "crc32": "%08x"}\n' % (text[:-1], chain), chain


def lines(data: bytes, mark: Mark = Mark()) -> Iterator[tuple[dict[str, Any], Mark]]:  # noqa: B008 - frozen
    """Yield every whole line of ``data`` as a row, and the mark at its end; ``data`` starts at ``mark``.

    Stop at a last line without its end. Raise `Damage` at a line that does not match its checksum.
    """
    size, chain = mark.size, mark.chain
    for number, text in enumerate(data.split(b"\n")[:-1], 1):
        end = SUM.search(text)
        if end is None:
            raise Damage(f"line {number} has no checksum")
        body = text[: end.start()] + b"}"
        chain = zlib.crc32(body, chain)
        if chain != int(end[1], 16):
            raise Damage(f"line {number} does not match its checksum")
        size += len(text) + 1
        yield json.loads(body), Mark(size, chain)
