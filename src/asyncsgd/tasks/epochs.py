"""Which rows of data a mini-batch holds when the data is walked in epochs.

Each epoch has an order of its own: a permutation drawn from the seed and the number of the epoch. Mini-batch number
``batch`` of a run is the next piece of that order, so a job's rows follow from its ``batch`` alone, on every engine and
in every replay. The seed is an option of the task, not the run's, so that an update stays a function of its arguments.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.random import GAMMA, MASK, derive
from asyncsgd.core.validate import count, integer, nonnegative

EPOCH = 0xE90C4  # keeps the orders of epochs apart from everything else that is drawn from the same seed
LARGE = 1 << 20  # rows from which on the order of only two epochs is kept: a batch may lie on either side of a boundary


def batches_per_epoch(rows: int, batch_size: int) -> int:
    """Return the number of mini-batches in an epoch; the last one may be smaller than the others.

    Args:
        rows: The number of rows of the data.
        batch_size: The number of rows of a mini-batch.

    >>> batches_per_epoch(rows=10, batch_size=4)
    3

    See docs/howto/task.md for a task that walks its data in epochs.
    """
    count("rows", rows)
    count("batch_size", batch_size)
    return -(-int(rows) // int(batch_size))


def rows_of_batch(batch: int, batch_size: int, rows: int, seed: int) -> NDArray[np.int64]:
    """Return the rows of mini-batch number ``batch``, counted from the first epoch on.

    The mini-batches of one epoch hold every row exactly once. The order of the current epoch is kept in memory, 4 bytes
    per row, so only the first mini-batch of an epoch takes time.

    Args:
        batch: The number of mini-batches before this one, as in `asyncsgd.core.events.Job`.
        batch_size: The number of rows of a mini-batch; the last one of an epoch may hold fewer.
        rows: The number of rows of the data.
        seed: The seed of the orders; it is an option of the task (``sampling_seed``), not the run's seed.

    >>> [rows_of_batch(batch, batch_size=4, rows=10, seed=0).tolist() for batch in range(3)]
    [[5, 8, 0, 9], [1, 4, 7, 6], [3, 2]]
    >>> rows_of_batch(3, batch_size=4, rows=10, seed=0).tolist()  # the next epoch
    [2, 5, 4, 8]

    The training guide (docs/guides) tells how a run walks its epochs.

    See docs/howto/task.md for a task that walks its data in epochs.
    """
    _check(seed, batch=batch)
    epoch, place = divmod(int(batch), batches_per_epoch(rows, batch_size))
    piece = _order(int(seed), epoch, int(rows))[place * int(batch_size) : (place + 1) * int(batch_size)]
    return piece.astype(np.int64)


def epoch_rows(seed: int, epoch: int, rows: int) -> NDArray[np.int64]:
    """Return the order of the rows in one epoch: a permutation drawn from (seed, epoch).

    Args:
        seed: The seed of the orders.
        epoch: The number of the epoch, from 0 on.
        rows: The number of rows of the data.

    >>> epoch_rows(seed=0, epoch=0, rows=6).tolist()
    [5, 0, 1, 4, 3, 2]

    See docs/howto/task.md for a task that walks its data in epochs.
    """
    _check(seed, epoch=epoch)
    count("rows", rows)
    return _order(int(seed), int(epoch), int(rows)).astype(np.int64)


def _check(seed: int, **numbers: int) -> None:
    integer("seed", seed)
    for name, value in numbers.items():
        integer(name, value)
        nonnegative(name, value)


def _order(seed: int, epoch: int, rows: int) -> NDArray[Any]:
    return (_few if rows >= LARGE else _many)(seed, epoch, rows)


def _sorted(seed: int, epoch: int, rows: int) -> NDArray[Any]:
    """Sort the rows by random keys.

    The low bits of a key are the row itself. So all keys differ, and sorting the keys gives the rows, in a fifth of the
    time of ``argsort``. The 64 - log2(rows) high bits that are left decide the order; a row in a million shares them
    with another one if there are 10^7.
    """
    low = (1 << (rows - 1).bit_length()) - 1
    row = np.arange(rows, dtype=np.uint64)
    keys = (row + np.uint64(1)) * np.uint64(GAMMA)  # modulo 2^64, as in `asyncsgd.core.random.output`
    keys += np.uint64(derive(seed, EPOCH, epoch))
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB), (31, 1)):
        keys ^= keys >> np.uint64(shift)
        keys *= np.uint64(factor)
    keys &= np.uint64(~low & MASK)
    keys |= row
    keys.sort()
    keys &= np.uint64(low)
    return keys.astype(np.int32 if rows < 1 << 31 else np.int64)


# Workers with data of their own, simulated in one process, walk as many orders at once as there are workers.
_many = lru_cache(maxsize=256)(_sorted)
_few = lru_cache(maxsize=2)(_sorted)
