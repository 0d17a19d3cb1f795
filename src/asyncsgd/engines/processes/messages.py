"""What server and workers say to each other: fixed structs, far shorter than a pipe writes in one piece."""

from __future__ import annotations

from enum import IntEnum
from struct import Struct

JOB = Struct("<qQii")
"""To a worker: job, seed, slot of the point, place of the update (also of its note, and of the word to stop)."""

REPORT = Struct("<iiqd")
"""To the server, all workers through one pipe: kind, worker, job, seconds of computing."""

NOTE = 16_384
"""Bytes of text that a worker can leave for the server: a traceback, or what is wrong with an update."""


class Kind(IntEnum):
    """What a worker reports."""

    READY = 0
    DONE = 1
    REJECTED = 2
    FAILED = 3
    STOPPED = 4
