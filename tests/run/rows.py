"""A task whose rows follow a count, in a module that workers can import. Its updates say which rows they used."""

from __future__ import annotations

from typing import Any

import numpy as np

from asyncsgd.core.vectors import Vector
from asyncsgd.tasks.epochs import batches_per_epoch, rows_of_batch


class Rows:
    """Coordinate r of an update is 1 if row r is in the mini-batch, so with step 1 the model counts uses of rows.

    With ``workers`` each worker has ``rows`` rows of its own, one block of coordinates each.
    """

    uses_batch = True

    def __init__(self, rows: int = 20, batch_size: int = 3, workers: int | None = None) -> None:
        self.rows, self.batch_size = rows, batch_size
        self.heterogeneous = workers is not None
        if workers is not None:
            self.workers = workers
        self.blocks = workers or 1
        self.batches_per_epoch = self.blocks * batches_per_epoch(rows, batch_size)
        self.epoch_rows = self.blocks * rows

    def initial(self) -> Vector:
        return np.zeros(self.epoch_rows)

    def of(self, worker: int, batch: int) -> np.ndarray:
        """The coordinates of the rows of a mini-batch."""
        block = worker if self.heterogeneous else 0
        return block * self.rows + rows_of_batch(batch, self.batch_size, self.rows, seed=5)

    def examples(self, worker: int, seed: int, batch: int) -> int:
        return len(self.of(worker, batch))

    def update(self, x: Vector, worker: int, seed: int, batch: int) -> Vector:
        g = np.zeros_like(x)
        g[self.of(worker, batch)] -= 1.0
        return g

    def evaluate(self, x: Vector) -> dict[str, Any]:
        return {"loss": float(np.abs(x).sum())}


class WritingRows(Rows):
    """The same, written in place."""

    def update_into(self, x: Vector, worker: int, seed: int, out: Vector, batch: int) -> None:
        out[:] = self.update(x, worker, seed, batch)
