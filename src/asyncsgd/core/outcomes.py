"""How every job of a run ended, in little memory even for a long run, because most jobs end in the same way.

The newest jobs take one byte each. Older ones are folded, `CHUNK` at a time: neighbouring chunks whose jobs all ended
in the same way take no memory, and every other chunk is compressed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import Any

import numpy as np

CHUNK = 4096
"""The number of jobs that are folded at once."""


class Outcomes:
    """A list of small codes that grows at its end; 0 stands for a job in flight.

    >>> outcomes = Outcomes()
    >>> for _ in range(3):
    ...     outcomes.append(0)
    >>> outcomes[1] = 4
    >>> len(outcomes), outcomes[0], outcomes[1]
    (3, 0, 4)
    """

    def __init__(self) -> None:
        self._starts: list[int] = []  # the first job of each folded part, up to the next one
        self._parts: list[bytes] = []  # one byte if all of them ended alike, else compressed
        self._base = 0  # the first job that is not folded
        self._recent = bytearray()
        self._limit = 2 * CHUNK

    def __len__(self) -> int:
        return self._base + len(self._recent)

    def append(self, code: int) -> None:
        """Add the next job."""
        self._recent.append(code)
        if len(self._recent) >= self._limit:
            self._fold()

    def __getitem__(self, job: int) -> int:
        if job >= self._base:
            return self._recent[job - self._base]
        place = bisect_right(self._starts, job) - 1
        part = self._parts[place]
        return part[0] if len(part) == 1 else zlib.decompress(part)[job - self._starts[place]]

    def __setitem__(self, job: int, code: int) -> None:
        if job >= self._base:
            self._recent[job - self._base] = code
            return
        # Only a job that stayed in flight while thousands of later jobs ended gets here. Its part is one chunk.
        place = bisect_right(self._starts, job) - 1
        codes = bytearray(self._unpacked(place))
        codes[job - self._starts[place]] = code
        self._parts[place] = _packed(bytes(codes))

    def _fold(self) -> None:
        """Fold the oldest chunks. A chunk with jobs in flight waits for them, up to a limit."""
        patience = 16 * max(CHUNK, 2 * self._recent.count(0))
        while len(self._recent) >= 2 * CHUNK:
            chunk = bytes(self._recent[:CHUNK])
            if 0 in chunk and len(self._recent) < patience:
                break
            part = _packed(chunk)
            if not (self._parts and len(part) == 1 and self._parts[-1] == part and part != b"\0"):
                self._starts.append(self._base)
                self._parts.append(part if part != b"\0" else zlib.compress(chunk))
            self._base += CHUNK
            del self._recent[:CHUNK]
        self._limit = max(2 * CHUNK, len(self._recent) + CHUNK)

    def _unpacked(self, place: int) -> bytes:
        part = self._parts[place]
        end = self._starts[place + 1] if place + 1 < len(self._starts) else self._base
        return part * (end - self._starts[place]) if len(part) == 1 else zlib.decompress(part)

    @property
    def nbytes(self) -> int:
        """The number of bytes that the codes take."""
        return len(self._recent) + 8 * len(self._starts) + sum(map(len, self._parts))

    def state(self) -> dict[str, Any]:
        """Return the whole state as arrays and numbers (copies)."""
        return {
            "jobs": len(self),
            "starts": np.array(self._starts, np.int64),
            "sizes": np.array([len(part) for part in self._parts], np.int64),
            "parts": np.frombuffer(b"".join(self._parts), np.uint8),
            "recent": np.frombuffer(bytes(self._recent), np.uint8),
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> Outcomes:
        """Return the outcomes that `state` was taken from."""
        outcomes = cls()
        data, place = state["parts"].tobytes(), 0
        for size in state["sizes"].tolist():
            outcomes._parts.append(data[place : place + size])
            place += size
        outcomes._starts = state["starts"].tolist()
        outcomes._recent = bytearray(state["recent"].tobytes())
        outcomes._base = state["jobs"] - len(outcomes._recent)
        outcomes._limit = max(2 * CHUNK, len(outcomes._recent) + CHUNK)
        return outcomes


def _packed(codes: bytes) -> bytes:
    """Return one byte if all codes are the same, else the compressed codes, which are always longer."""
    return codes[:1] if codes.count(codes[0]) == len(codes) else zlib.compress(codes)
