"""What the server counts about jobs: the mini-batches that they were handed, and how each of them ended.

``Job.batch`` is the number of mini-batches handed out before the job: the place in the data where the job begins. If
all workers share the data, it counts those of all workers, so that together they walk through each epoch once. If every
worker has data of its own, it counts those of this worker.

`Outcomes` takes little memory even for a long run, because most jobs end in the same way. The newest jobs take one byte
each. Older ones are folded, `CHUNK` at a time: neighbouring chunks whose jobs all ended in the same way take no memory,
and every other chunk is compressed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.work import SPEED, Work

COUNTED = ("all", "worker")
NEWEST = 0.5
"""The share of a worker's last job in its measured speed; earlier jobs have the rest."""


class Batches:
    """Counts mini-batches, over all workers (``"all"``) or for each of them (``"worker"``).

    A job has the steps of its worker: the same for all, given for each, or by measured speed. Then worker i takes
    H_i = max(1, ⌊H v_i / max_j v_j⌋) of H steps, where v_i is its steps per second (DyLU; Liu et al. 2024), and H until
    its first job has arrived.

    >>> from asyncsgd.core.work import LocalSteps
    >>> batches = Batches("worker", LocalSteps(4, 0.1))
    >>> batches.take(0), batches.take(0), batches.take(1)
    ((4, 0), (4, 4), (4, 0))
    >>> batches.left = 6
    >>> batches.take(1), batches.take(0), batches.left, batches.handed_out
    ((4, 4), (2, 8), 0, 18)
    >>> batches = Batches("all", LocalSteps(40, 0.1, per_worker="speed"))
    >>> batches.arrived(0, 40, seconds=1.0)
    >>> batches.arrived(1, 40, seconds=3.0)
    >>> batches.steps_of(0), batches.steps_of(1), batches.steps_of(2)
    (40, 13, 40)
    """

    __slots__ = ("by_worker", "handed_out", "left", "per_worker", "speeds", "steps")

    def __init__(self, counted: str, work: Work) -> None:
        if counted not in COUNTED:
            fix = 'pass "all" if the workers share their data, or "worker" if each has its own'
            raise BadParameter("batches", counted, "is not a way to count mini-batches", fix)
        self.steps, self.per_worker = work.steps, work.per_worker
        self.speeds: dict[int, float] = {}
        """Steps per second of the workers present, as far as they are known."""
        self.handed_out = 0
        """Mini-batches of all jobs so far."""
        self.left: int | None = None
        """Mini-batches that may still be handed out; None: any number."""
        self.by_worker: dict[int, int] | None = {} if counted == "worker" else None

    def take(self, worker: int) -> tuple[int, int]:
        """Return (steps, batch) of the next job of this worker, and count them. ``left`` must not be 0.

        The last job before the limit gets fewer steps than the others if that many are not left.
        """
        steps = self.steps if self.per_worker is None else self.steps_of(worker)
        if self.left is not None:
            steps = min(steps, self.left)
            self.left -= steps
        batch = self.handed_out
        if self.by_worker is not None:
            batch = self.by_worker.get(worker, 0)
            self.by_worker[worker] = batch + steps
        self.handed_out += steps
        return steps, batch

    def steps_of(self, worker: int) -> int:
        """Return the steps of this worker's next job, if that many are left."""
        if self.per_worker == SPEED:
            if worker not in self.speeds:
                return self.steps
            return max(1, int(self.steps * (self.speeds[worker] / max(self.speeds.values()))))
        if self.per_worker is None or worker >= len(self.per_worker):  # a worker that the run did not start with
            return self.steps
        return int(self.per_worker[worker])

    def arrived(self, worker: int, steps: int, seconds: float | None) -> None:
        """Take note of how fast a worker was, if the method wants to know."""
        if self.per_worker == SPEED and seconds:
            found, known = steps / seconds, self.speeds.get(worker)
            self.speeds[worker] = found if known is None else NEWEST * found + (1 - NEWEST) * known

    def gone(self, worker: int) -> None:
        """Forget the speed of a worker that left: whatever joins under its number may run elsewhere."""
        self.speeds.pop(worker, None)

    def state(self) -> dict[str, Any]:
        """Return the counts. Those of a worker that left remain: its data are where it stopped if it joins again."""
        by_worker = None if self.by_worker is None else dict(self.by_worker)
        speeds = {"speeds": dict(self.speeds)} if self.speeds else {}
        return {"handed_out": self.handed_out, "left": self.left, "by_worker": by_worker, **speeds}

    @classmethod
    def restore(cls, state: dict[str, Any], work: Work) -> Batches:
        """The inverse of `state`."""
        batches = cls("all" if state["by_worker"] is None else "worker", work)
        batches.speeds = dict(state.get("speeds", {}))
        batches.handed_out, batches.left = state["handed_out"], state["left"]
        batches.by_worker = None if state["by_worker"] is None else dict(state["by_worker"])
        return batches


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
