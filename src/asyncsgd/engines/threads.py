"""How many threads the numerical libraries use. Two each for two workers on two processors cost a factor 10."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share(workers: int) -> int:
    """An equal share of the processors for each worker."""
    return max(1, processors() // max(1, workers))


@contextmanager
def limited(number: int | None) -> Iterator[None]:
    """Within the block, so many threads for every library that is loaded; None: leave them alone.

    The same number gives the same order of additions, hence the same bits.
    """
    if number is None:
        yield
        return
    from threadpoolctl import threadpool_limits

    torch: Any = sys.modules.get("torch")
    before = None if torch is None else torch.get_num_threads()
    with threadpool_limits(number):
        if torch is not None:
            torch.set_num_threads(number)
        try:
            yield
        finally:
            if torch is not None:
                torch.set_num_threads(before)
