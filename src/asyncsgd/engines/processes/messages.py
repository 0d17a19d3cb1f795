"""What server and workers say to each other: fixed structs, far shorter than a pipe writes in one piece."""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np
from numpy.typing import NDArray

JOB = Struct("<qQii")
"""To a worker: job, seed, slot of the point, place of the update (also of its note, and of the word to stop)."""

REPORT = Struct("<iiqd")
"""To the server, all workers through one pipe: `asyncsgd.engines.job.Kind`, worker, job, seconds of computing."""

NOTE = 16_384
"""Bytes of text that a worker can leave for the server: a traceback, or what is wrong with an update."""


def write_note(note: NDArray[Any], text: str) -> None:
    """The end of the text, where a traceback says what went wrong, behind its length.

    >>> note = np.zeros(NOTE, np.uint8)
    >>> write_note(note, "too bad")
    >>> read_note(note)
    'too bad'
    """
    data = text.encode(errors="replace")[-(NOTE - 8) :]
    note[:8] = np.frombuffer(len(data).to_bytes(8, "little"), np.uint8)
    note[8 : 8 + len(data)] = np.frombuffer(data, np.uint8)


def read_note(note: NDArray[Any]) -> str:
    """What `write_note` wrote."""
    length = int.from_bytes(note[:8].tobytes(), "little")
    return note[8 : 8 + length].tobytes().decode(errors="replace")
