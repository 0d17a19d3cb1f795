"""The three methods of a task, and what the built-in tasks add: constants and compiled kernels."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.random import derive
from asyncsgd.core.validate import count, is_id
from asyncsgd.core.vectors import Vector

# The entries of ``task.lowered``, ``(kind, params, A, B, labels, bounds)``:
# ========== ================================== =============== ======================================== =========
# kind       params                             A               B                                        labels
# ========== ================================== =============== ======================================== =========
# QUADRATIC  noise per coordinate, multiplier   Hessian         -b_i per worker, their mean, then x*     (none)
# the others HEADER numbers, the rows' weights  rows of data    A transposed (linear tasks only)         classes
#            in f, their offsets (linear tasks)
# ========== ================================== =============== ======================================== =========
# HEADER: ridge, batch (0: every row), f* (0: unknown), classes. bounds: first and one past the last row of worker i at
# 2i and 2i + 1. Rows of a linear task are scaled so that the slope of the loss of row r is φ(a_r·x + offset_r)·a_r.


QUADRATIC, LEAST_SQUARES, LOGISTIC, SOFTMAX = 0, 1, 2, 3
RIDGE, BATCH, MINIMUM, CLASSES, HEADER = 0, 1, 2, 3, 4


class Copies(NamedTuple):
    """Vectors as long as the model that a task holds, for the check of memory before a run starts."""

    server: int = 0
    """On the server, beside the model that it is given to evaluate."""
    shared: int = 0
    """Once for all worker processes of a machine: what the process that forks them has loaded."""
    worker: int = 0
    """In each worker, beside the gradient that it computes."""


BLOCK = 64
"""The number of rows of data that kernels process together: their lanes fit into the first-level cache."""


def scratch_rows(kind: int, dim: int, classes: int = 0) -> int:
    """Return the rows of lanes that the kernels need; single lanes write up to seven beyond the last."""
    if kind == QUADRATIC:
        return 2 * dim
    return max(BLOCK, dim + 1 + classes) + 8


# **Your own task** is a class with the methods of `Task`; inherit from nothing. Attributes that help, all optional:
# ``workers``, ``heterogeneous``, and the constants ``smoothness``, ``noise_variance``, ``heterogeneity``, ``optimum``,
# ``minimum``. `asyncsgd.tasks.check_task` tests it.
# **Shared memory.** If it also has ``update_into(x, worker, seed, out)``, which writes into the vector ``out`` what
# ``update(x, worker, seed)`` returns, engines call that method, which avoids one copy of a large update. x is read-only
# and does not change during the call.
# **Rows that follow a count.** A task with the attribute ``uses_batch = True`` is called with one more argument:
# ``update(x, worker, seed, batch)`` and ``update_into(x, worker, seed, out, batch)``. ``batch`` is the number of
# mini-batches handed out before this one, to all workers, or to this worker if the task is ``heterogeneous``. A task
# that walks its data in epochs (`asyncsgd.tasks.epochs`) also has ``batches_per_epoch``, the number of mini-batches in
# which all workers together see every row once, and ``epoch_rows``, the number of these rows.
# **Optional methods.** ``layout()`` returns (name, offset, shape) of each parameter, for optimizers that treat some
# differently. ``named_arrays(x)`` returns the whole model by name, for a task whose model has arrays that are not in
# x. The run asks for it in its own thread, right after the evaluation of x. ``fixed_options`` is a dict of plain
# values; a resume with others is refused. ``use_device(name)`` is called in a worker before its first job.
# ``examples(worker, seed, batch)`` returns the number of rows of a mini-batch, or None.
# **Memory.** An attribute ``copies`` (`Copies`) says how many vectors as long as the model the task itself holds.
# **Seeds** are integers below 2**64, and half of them lie above the largest int64. ``np.random.default_rng(seed)`` and
# ``torch.manual_seed(seed)`` take them as they are. ``np.random.seed`` takes 32 bits and a numba function 63, and both
# refuse more: pass ``narrow_seed(seed)`` to them. **Fast path.** If it also has ``compiled = (gradient, data)``
# (`CompiledTask`), runs of it are replayed in compiled code.


@runtime_checkable
class Task(Protocol):
    """The function to minimise. ``update`` must depend on nothing but its arguments, so that a job can be repeated.

    A task whose data differ from worker to worker has an attribute ``heterogeneous = True``. A task whose rows follow
    from a count has an attribute ``uses_batch = True``, and gets that count as the argument ``batch`` after all others.
    docs/howto/task.md shows how to write a task.
    """

    def initial(self) -> Vector:
        """Return the starting point: one flat vector of float32 or float64."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """Return a stochastic gradient of this worker's function at x, with the randomness of ``seed``.

        ``seed`` is an integer below 2**64; see `narrow_seed` for libraries that take fewer bits.
        """

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return numbers to report about x, with "loss" if there is one."""


@runtime_checkable
class WritingTask(Task, Protocol):
    """A task that writes its updates into a given vector.

    See docs/howto/task.md for what a task may have besides.
    """

    def update_into(self, x: Vector, worker: int, seed: int, out: Vector) -> None:
        """Write into ``out``, a vector like x, what ``update(x, worker, seed)`` returns, to the bit."""


@runtime_checkable
class CompiledTask(Task, Protocol):
    """A task whose gradient is a numba function: ``compiled = (gradient, data)``.

    ``gradient(x, worker, seed, out, data)`` writes into ``out`` what ``update(x, worker, seed)`` returns. x and out
    are float64 vectors, worker an int64, seed a uint64 (draw from it with `asyncsgd.compiled.random`), data
    whatever numba accepts: an array, a number or a tuple of them::

        @njit
        def gradient(x, worker, seed, out, data):
            for i in range(len(x)):
                out[i] = data[i] * x[i]
    """

    @property
    def compiled(self) -> tuple[Any, Any]:
        """(a numba function, its data)."""


def is_heterogeneous(task: Task) -> bool:
    """Return whether the task declares that its data differ from worker to worker."""
    return bool(getattr(task, "heterogeneous", False))


def batches_of(task: Task) -> str:
    """Return what ``batch`` counts for this task: mini-batches of "all" workers, or those of one "worker"."""
    return "worker" if is_heterogeneous(task) else "all"


def some_batch(task: Any, seed: int) -> tuple[int, ...]:
    """Return what to pass to ``task.update`` after the seed where no job is: a mini-batch of the first epoch, drawn.

    It is empty for a task without ``uses_batch``.
    """
    if not getattr(task, "uses_batch", False):
        return ()
    return (derive(seed) % (getattr(task, "batches_per_epoch", None) or 1 << 16),)


def gradient_of(task: Any) -> Callable[[Vector, int, int], Vector]:
    """Return ``task.update`` as a function of (x, worker, seed), for estimates that need any stochastic gradient."""

    def update(x: Vector, worker: int, seed: int) -> Vector:
        found: Vector = task.update(x, worker, seed, *some_batch(task, seed))
        return found

    return update


def check_job(worker: Any, seed: Any, workers: int | None) -> None:
    """Raise unless the worker is one of ``workers`` (None for any number) and the seed is an integer.

    >>> check_job(2, 0, 2)
    Traceback (most recent call last):
        ...
    asyncsgd.core.errors.BadParameter: worker = 2 is not one of 2; pass 0..1
    """
    if not is_id(worker) or worker < 0 or (workers is not None and worker >= workers):
        fix = "number the workers from 0" if workers is None else f"pass 0..{workers - 1}"
        raise BadParameter("worker", worker, f"is not one of {workers or 'any number'}", fix)
    if not is_id(seed):
        raise BadParameter("seed", seed, "is not an integer", "pass seed=0 or another integer")


def narrow_seed(seed: int, bits: int = 32) -> int:
    """Return the last ``bits`` bits of a job's seed, for libraries that refuse a seed of 64 bits.

    ``np.random.seed`` and scikit-learn's ``random_state`` take 32 bits. A numba function that is called from Python
    takes 63, as does everything else that wants an int64. Among 10,000 jobs the chance that two share their last 32
    bits is 1 %.

    Args:
        seed: The seed that the task got with a job.
        bits: How many bits the library accepts.

    >>> import numpy as np
    >>> np.random.seed(narrow_seed(2**64 - 1))
    >>> narrow_seed(2**64 - 1, bits=63) == 2**63 - 1
    True

    See docs/howto/task.md for a task of your own that uses it.
    """
    count("bits", bits)
    return seed & ((1 << int(bits)) - 1)


Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Lowered = tuple[int, Floats, Floats, Floats, Integers, Integers]

NO_INTEGERS = np.empty(0, np.int64)
NO_FLOATS = np.empty((0, 0))
ALL = frozenset({"smoothness", "noise_variance", "heterogeneity", "optimum", "minimum"})


@dataclass(frozen=True, eq=False, kw_only=True)
class BuiltIn:
    """A task with constants and compiled kernels. ``update`` runs the kernel of `simulate` with one lane.

    See docs/howto/task.md for a task of your own.
    """

    workers: int
    dimension: int
    smoothness: float
    """L: every f_i has gradients that are L-Lipschitz."""
    noise_variance: float
    """σ²: E‖g_i(x) - ∇f_i(x)‖², the largest over workers."""
    heterogeneity: Floats
    """ζ_i² = ‖∇f_i(x) - ∇f(x)‖², one per worker."""
    optimum: Floats | None
    """x*, None if there is none or it is unknown."""
    minimum: float | None
    """f*, None if it is unknown."""
    exact: frozenset[str]
    """The names of those of the five constants that are exact; the docstring of each task describes the others."""
    heterogeneous: bool
    """Whether the workers' functions differ."""
    deterministic: bool
    """Whether every ``update`` is ∇f(x) itself, bit for bit."""
    lowered: Lowered
    """The task as plain arrays: see `asyncsgd.tasks.base`."""
    scratch_rows: int
    """Rows of lanes that the kernels need to work in."""

    def __repr__(self) -> str:
        return f"{type(self).__name__}(dimension={self.dimension}, workers={self.workers})"

    def initial(self) -> Vector:
        """Return the origin."""
        return np.zeros(self.dimension)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """Return the stochastic gradient of f_worker at x; noise and mini-batch are drawn from ``seed``."""
        from asyncsgd.tasks import kernels  # loads numba

        check_job(worker, seed, self.workers)
        out = np.empty((self.dimension, 1))
        seeds = np.array([int(seed) & 0xFFFFFFFFFFFFFFFF], np.uint64)
        kernels.gradient(self.lowered, self._lane(x), int(worker), seeds, out, self._scratch(), (0,))
        return out[:, 0]

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Return "loss" f(x) - f* (f(x) if f* is unknown), "gradient_norm" ‖∇f(x)‖ and "distance" ‖x - x*‖."""
        from asyncsgd.tasks import kernels  # loads numba

        point, result, scratch, full = self._lane(x), np.empty(1), self._scratch(), np.empty((self.dimension, 1))
        kernels.loss(self.lowered, point, result, scratch, (0,))
        values = {"loss": float(result[0])}
        kernels.full_gradient(self.lowered, point, full, scratch, (0,))
        kernels.norm(full, self.dimension, result, (0,))
        values["gradient_norm"] = float(result[0])
        if self.optimum is not None:
            kernels.distance(point, self.optimum, self.dimension, result, (0,))
            values["distance"] = float(result[0])
        return values

    def _lane(self, x: Vector) -> Floats:
        """Return a copy of x as one lane. It is a copy because numba treats a read-only view as another type."""
        lane = np.array(x, np.float64)
        if lane.shape != (self.dimension,):
            raise BadParameter("x", f"shape {lane.shape}", "does not fit the task", f"pass {self.dimension} numbers")
        return lane.reshape(self.dimension, 1)

    def _scratch(self) -> Floats:
        return np.zeros((self.scratch_rows, 1))
