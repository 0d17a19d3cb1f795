"""The rows of a job, the micro-batches that they are computed in, and threads that read them."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import GAMMA, MASK, below, derive, output
from asyncsgd.core.validate import is_id
from asyncsgd.tasks._torch.data import DatasetRows, Integers, Rows
from asyncsgd.tasks.epochs import batches_per_epoch, rows_of_batch

if TYPE_CHECKING:
    from concurrent.futures import Future, ThreadPoolExecutor


@dataclass(frozen=True)
class Sampling:
    """Which rows a job computes on: drawn with replacement from its seed, or those of its place in an epoch."""

    sizes: tuple[int, ...]
    """Rows per job: one number, or one per worker, repeated if there are more workers."""
    epochs: bool = False
    seed: int = 0
    """The seed of the orders of epochs."""

    @property
    def options(self) -> dict[str, Any]:
        """The arguments of `asyncsgd.tasks.torch` that say the same."""
        size = self.sizes[0] if len(set(self.sizes)) == 1 else list(self.sizes)
        seed = {"sampling_seed": self.seed} if self.epochs else {}
        return {"batch_size": size, "sampling": "epochs" if self.epochs else "replacement", **seed}

    def size(self, worker: int) -> int:
        """Return the rows of a full batch of this worker."""
        return self.sizes[worker % len(self.sizes)]

    def rows(self, n_rows: int, worker: int, own: bool, seed: int, batch: int | None) -> Integers:
        """Return the rows of a job. ``own`` says that the worker has its own data, and its own order of them."""
        if not self.epochs:
            return draw_rows(seed, self.size(worker), n_rows)
        number = checked_batch(batch)
        return rows_of_batch(number, self.size(worker), n_rows, derive(self.seed, worker) if own else self.seed)

    def batches(self, lengths: Sequence[int]) -> int | None:
        """Return the number of jobs in an epoch of data of these lengths; None if there are no epochs."""
        if not self.epochs:
            return None
        return sum(batches_per_epoch(rows, self.size(worker)) for worker, rows in enumerate(lengths))


def checked_batch(batch: Any) -> int:
    """Return the number of a mini-batch; raise if the caller did not pass one."""
    if not is_id(batch) or batch < 0:
        fix = "call update(x, worker, seed, batch) with the number of mini-batches before this one, job.batch"
        raise BadParameter("batch", batch, "is not the number of a mini-batch, which decides about its rows", fix)
    return int(batch)


def pieces(total: int, number: int) -> list[slice]:
    """Return at most ``number`` slices of 0..total-1, all of the same length except perhaps the last.

    >>> pieces(8, 4)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None), slice(6, 8, None)]
    >>> pieces(5, 2), pieces(1, 4)
    ([slice(0, 3, None), slice(3, 5, None)], [slice(0, 1, None)])
    """
    size = -(-total // number)
    return [slice(begin, min(begin + size, total)) for begin in range(0, total, size)]


def rows_in(batch: Any) -> int | None:
    """Return the rows of a batch: the length of its first tensor or array; None if it has none.

    >>> rows_in({"tokens": np.zeros((3, 5)), "name": "x"})
    3
    """
    if isinstance(batch, str | bytes):
        return None
    if hasattr(batch, "shape"):
        return int(batch.shape[0]) if len(batch.shape) else None
    inside = batch.values() if isinstance(batch, Mapping) else batch if isinstance(batch, list | tuple) else ()
    return next((found for part in inside if (found := rows_in(part)) is not None), None)


def part_of(batch: Any, rows: slice, total: int) -> Any:
    """Return some rows of a batch: of every tensor, array or list in it that has ``total`` rows.

    >>> part_of({"tokens": np.arange(3), "names": ["a", "b", "c"], "scale": 2}, slice(1, 3), 3)
    {'tokens': array([1, 2]), 'names': ['b', 'c'], 'scale': 2}
    """
    if hasattr(batch, "shape"):
        return batch[rows] if len(batch.shape) and batch.shape[0] == total else batch
    if isinstance(batch, Mapping):
        return {key: part_of(value, rows, total) for key, value in batch.items()}
    if isinstance(batch, tuple) and hasattr(batch, "_fields"):
        return type(batch)(*(part_of(value, rows, total) for value in batch))
    if isinstance(batch, list | tuple):
        if len(batch) == total and rows_in(batch) is None:
            return batch[rows]
        return type(batch)(part_of(value, rows, total) for value in batch)
    return batch


class Loader:
    """Reads batches of rows in their order; with threads, the next one while the caller computes on this one.

    Only what is known can be read ahead: the other micro-batches of the same job, and with epochs the first
    micro-batch of the job that this worker probably gets next. If it gets another one, that read was in vain; no
    number changes, because a batch depends on nothing but its rows. For the same reason a Dataset that threads read
    must not draw from the random generators that all threads share: the first batch of each process checks that.

    Belongs to one process. The threads start with the first batch.
    """

    def __init__(self, threads: int) -> None:
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        if threads:
            from concurrent.futures import ThreadPoolExecutor

            self._pool = ThreadPoolExecutor(threads, thread_name_prefix="asyncsgd-loader")
        self._checked = False
        self._ahead: tuple[Rows, Integers, list[Future[list[Any]]]] | None = None

    def batches(self, rows: Rows, wanted: Sequence[Integers], then: Integers | None = None) -> Iterator[Any]:
        """Yield a batch of each of ``wanted``. ``then`` are rows that the next call probably asks for first."""
        if self._pool is None or not isinstance(rows, DatasetRows):
            yield from (rows.batch(chosen) for chosen in wanted)
            return
        following = [*wanted[1:], then]
        for chosen, after in zip(wanted, following, strict=True):
            reading = self._started(rows, chosen)
            if not self._checked:
                self._check(rows, reading)
            if after is not None:
                self._ahead = (rows, after, self._start(rows, after))
            yield rows.collated([item for part in reading for item in part.result()])

    def _started(self, rows: DatasetRows, chosen: Integers) -> list[Future[list[Any]]]:
        """Return the reads of these rows, which may have begun earlier."""
        ahead, self._ahead = self._ahead, None
        if ahead is not None:
            if ahead[0] is rows and np.array_equal(ahead[1], chosen):
                return ahead[2]
            for part in ahead[2]:
                part.cancel()
        return self._start(rows, chosen)

    def _start(self, rows: DatasetRows, chosen: Integers) -> list[Future[list[Any]]]:
        assert self._pool is not None
        return [self._pool.submit(rows.items, chosen[part]) for part in pieces(len(chosen), self._threads)]

    def _check(self, rows: DatasetRows, reading: list[Future[list[Any]]]) -> None:
        """Wait for the first batch, and raise if reading it again moves a shared random generator."""
        for part in reading:
            part.exception()
        before = _random_states()
        for part in self._start(rows, np.zeros(1, np.int64)):
            part.exception()
        if _random_states() != before:
            fix = "pass loaders=0, or draw in __getitem__ from a generator made there, such as default_rng(row)"
            kind = type(rows.dataset).__name__
            problem = (
                f"draws from a random generator that {self._threads} loading threads share: no job can be repeated"
            )
            raise BadParameter("data", kind, problem, fix)
        self._checked = True


def _random_states() -> tuple[Any, ...]:
    import torch

    state: Any = np.random.get_state()  # noqa: NPY002
    return (torch.default_generator.get_state().numpy().tobytes(), random.getstate(), state[1].tobytes(), state[2])


@lru_cache(maxsize=16)
def _places(size: int) -> NDArray[np.uint64]:
    return np.arange(1, size + 1, dtype=np.uint64) * GAMMAS


GAMMAS, FIRST, SECOND = np.uint64(GAMMA), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
BY_27, BY_30, BY_31, BY_32 = np.uint64(27), np.uint64(30), np.uint64(31), np.uint64(32)
LOW = np.uint64(0xFFFFFFFF)


def _mix(z: NDArray[np.uint64]) -> None:
    """`asyncsgd.core.random.mix` of each, in place."""
    z ^= z >> BY_30
    z *= FIRST
    z ^= z >> BY_27
    z *= SECOND
    z ^= z >> BY_31


def draw_rows(seed: int, size: int, n_rows: int) -> Integers:
    """Draw ``size`` rows of 0..n_rows-1 with replacement: row k is ``below(output(seed, k), n_rows)``, all at once.

    >>> from asyncsgd.core.random import below, output
    >>> draw_rows(7, 3, 100).tolist() == [below(output(7, k), 100)[1] for k in range(3)]
    True
    """
    z = _places(size) + np.uint64(seed & MASK)
    _mix(z)  # output(seed, k)
    z += GAMMAS
    _mix(z)
    z >>= BY_32
    z *= np.uint64(n_rows)
    rows = (z >> BY_32).astype(np.int64)
    z &= LOW
    for k in np.flatnonzero(z < n_rows):  # these may have to be drawn again; rare
        rows[k] = below(output(seed, int(k)), n_rows)[1]
    return rows
