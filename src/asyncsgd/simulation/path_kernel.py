"""What a method makes of the arrivals before any number is known: versions, flushes, and where points are kept."""

from __future__ import annotations

from typing import Any

from asyncsgd.compiled.jit import borrowing


@borrowing
def versions(iteration: Any, weight: Any, table: Any, size: Any, version: Any, flush: Any) -> Any:
    """Follow the buffer of ``size`` along the arrivals; weights come from the table by staleness where it has entries.

    ``iteration`` is that of each arriving gradient's point; ``version`` (T + 1) and ``flush`` are written.
    """
    held = 0
    version[0] = 0
    for t in range(iteration.shape[0]):
        if table.shape[0] > 0:
            weight[t] = table[version[t] - version[iteration[t]]]
        flush[t] = 0
        if weight[t] != 0.0:
            held += 1
            if held == size:
                held = 0
                flush[t] = 1
        version[t + 1] = version[t] + flush[t]


@borrowing
def slots(iteration: Any, weight: Any, version: Any, read: Any, write: Any, readers: Any, place: Any, free: Any) -> Any:
    """Where each point is kept: (how many slots, slot of x^(0) or -1). A version has a slot while it will be read.

    A point that nobody will read goes to slot number ``used``, behind the others.
    ``readers``, ``place`` have one entry per version, ``free`` one per arrival; ``read`` and ``write`` are written.
    """
    iterations = iteration.shape[0]
    for t in range(iterations):
        if weight[t] != 0.0:
            readers[version[iteration[t]]] += 1
    used, spare = 0, 0
    place[0] = -1
    if readers[0] > 0:
        place[0] = 0
        used = 1
    for t in range(iterations):
        read[t] = 0
        if weight[t] != 0.0:
            v = version[iteration[t]]
            read[t] = place[v]
            readers[v] -= 1
            if readers[v] == 0:
                free[spare] = place[v]
                spare += 1
        write[t] = -1
        v = version[t + 1]
        if v != version[t]:
            place[v] = -1
            if readers[v] > 0:
                if spare > 0:
                    spare -= 1
                    place[v] = free[spare]
                else:
                    place[v] = used
                    used += 1
                write[t] = place[v]
    for t in range(iterations):
        if write[t] < 0:
            write[t] = used
    return used, place[0]
