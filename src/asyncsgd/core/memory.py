"""How much memory a server needs, computed before anything is allocated."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from asyncsgd.core.dispatch import Batch, FirstOf
from asyncsgd.core.method import Method
from asyncsgd.core.update import overwrites_points


class MemoryNeeded(NamedTuple):
    """Bytes that the server of a run needs for vectors as long as the model, by what they are for."""

    points: int
    """The models that jobs in flight read, and the newest one if it cannot take the place of one of them."""
    updates: int
    """The places where workers put their updates."""
    optimizer: int
    """What the optimizer remembers, such as the two means of AdamW."""
    buffers: int
    """The sum of a buffer, the running average, what transforms remember, and one vector for a changed update."""
    memories: int
    """The last update of every worker, where the aggregation keeps them, and their sum."""

    @property
    def total(self) -> int:
        """The sum of all parts."""
        return sum(self)


def memory_needed(method: Method, dimension: int, dtype: Any, workers: int) -> MemoryNeeded:
    """Return the bytes that the server of a run needs at most, by what they are for.

    A run has compiled kernels; with those of NumPy, a server needs one point more. The memory of the workers themselves
    and of the task's data is not included, nor are the copies that a run makes for evaluations and checkpoints.

    Args:
        method: The method, bound to the run with `asyncsgd.Method.bind`.
        dimension: The number of parameters of the model.
        dtype: The type of a parameter, such as ``"float32"``.
        workers: The number of workers.

    >>> import asyncsgd as asgd
    >>> method = asgd.async_sgd(0.001).using(optimizer=asgd.optimizers.adamw())
    >>> memory_needed(method, 10**8, "float32", workers=2)._asdict()
    {'points': 800000000, 'updates': 800000000, 'optimizer': 800000000, 'buffers': 0, 'memories': 0}
    >>> memory_needed(method, 10**8, "float32", workers=2).total / 1e9
    2.4
    """
    size = dimension * np.dtype(dtype).itemsize
    flight = method.dispatch.limit(workers)
    # In rounds all jobs read the point of their round. Else a move may overwrite the point of its arrival, or needs a
    # buffer besides those of all jobs in flight. Under early re-sampling the next point is lent before the arrival
    # gives its own point back.
    spare = method.dispatch.early + (not overwrites_points(method))
    points = 2 if isinstance(method.dispatch, Batch | FirstOf) else flight + spare
    updates = min(flight, 2 * workers)  # a worker holds at most two jobs; the others wait in the engine
    state, remembers = method.aggregation.vectors(workers), method.aggregation.remembers
    changed = bool(method.transforms) or remembers
    transforms = [transform.init(np.zeros(1)) for transform in method.transforms]
    kept = sum(isinstance(value, np.ndarray) for part in transforms for value in part.values())
    return MemoryNeeded(
        points=points * size,
        updates=updates * size,
        optimizer=method.optimizer.vectors() * size,
        buffers=(method.average + changed + kept + (0 if remembers else state)) * size,
        memories=state * size if remembers else 0,
    )
