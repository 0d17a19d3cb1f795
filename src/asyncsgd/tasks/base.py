"""What the built-in tasks share: constants, and compiled kernels behind the three methods."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import count, is_id
from asyncsgd.core.vectors import Vector

# --------------------------------------------------------------------------------------------------------------
# What the entries of ``task.lowered`` mean: ``(kind, params, A, B, labels, bounds)``.
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
BLOCK = 64
"""Rows of data worked on together: their lanes fit into the first-level cache."""


def scratch_rows(kind: int, dim: int, classes: int = 0) -> int:
    """How many rows of lanes the kernels need; single lanes are written up to seven beyond the last."""
    if kind == QUADRATIC:
        return 2 * dim
    return max(BLOCK, dim + 1 + classes) + 8


# --------------------------------------------------------------------------------------------------------------
# The three methods that make a task, and what the built-in ones add to them.
# **Your own task** is a class with the methods of `Task`; inherit from nothing. Attributes that help, all optional:
# ``workers``, ``heterogeneous``, and the constants ``smoothness``, ``noise_variance``, ``heterogeneity``, ``optimum``,
# ``minimum``. `asyncsgd.tasks.check_task` tests it.
# **Shared memory.** If it also has ``update_into(x, worker, seed, out)``, which writes into the vector ``out`` what
# ``update(x, worker, seed)`` returns, engines call that one, and a large update is not copied once more. x is read-only
# and does not change during the call.
# **Seeds** are integers below 2**64, and half of them lie above the largest int64. ``np.random.default_rng(seed)`` and
# ``torch.manual_seed(seed)`` take them as they are. ``np.random.seed`` takes 32 bits and a numba function 63, and both
# refuse more: pass `narrow_seed` of the seed on.
# **Fast path.** If it also has ``compiled = (gradient, data)`` (`CompiledTask`), runs of it are replayed in compiled
# code.


@runtime_checkable
class Task(Protocol):
    """What is to be minimised. ``update`` must depend on nothing but its arguments, so that a job can be repeated.

    A task whose data differ from worker to worker says so with an attribute ``heterogeneous = True``.
    """

    def initial(self) -> Vector:
        """Where to start: one flat vector of float32 or float64."""

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """A stochastic gradient of this worker's function at x, with the randomness of ``seed``.

        ``seed`` is an integer below 2**64; see `narrow_seed` for libraries that take fewer bits.
        """

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """Numbers to report about x, "loss" among them if there is one."""


@runtime_checkable
class WritingTask(Task, Protocol):
    """A task that writes its updates where they are wanted."""

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
    """Whether the task says that its data differ from worker to worker."""
    return bool(getattr(task, "heterogeneous", False))


def check_job(worker: Any, seed: Any, workers: int | None) -> None:
    """Refuse a worker that is not one of ``workers`` (None: of any number), and a seed that is not an integer.

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

    >>> import numpy as np
    >>> np.random.seed(narrow_seed(2**64 - 1))
    >>> narrow_seed(2**64 - 1, bits=63) == 2**63 - 1
    True
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
    """A task with constants and compiled kernels. ``update`` runs the kernel of `simulate` with one lane."""

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
    """Which of the five constants are exact; the docstring of each task says what the others are."""
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
        """The origin."""
        return np.zeros(self.dimension)

    def update(self, x: Vector, worker: int, seed: int) -> Vector:
        """The stochastic gradient of f_worker at x; noise and mini-batch are drawn from ``seed``."""
        from asyncsgd.tasks import kernels  # loads numba

        check_job(worker, seed, self.workers)
        out = np.empty((self.dimension, 1))
        seeds = np.array([int(seed) & 0xFFFFFFFFFFFFFFFF], np.uint64)
        kernels.gradient(self.lowered, self._lane(x), int(worker), seeds, out, self._scratch(), (0,))
        return out[:, 0]

    def evaluate(self, x: Vector) -> dict[str, Any]:
        """The "loss" f(x) - f* (f(x) if f* is unknown), the "gradient_norm" ‖∇f(x)‖, the "distance" ‖x - x*‖."""
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
        """A copy of x as one lane: a copy, since x may be a read-only view, which numba takes for another type."""
        lane = np.array(x, np.float64)
        if lane.shape != (self.dimension,):
            raise BadParameter("x", f"shape {lane.shape}", "does not fit the task", f"pass {self.dimension} numbers")
        return lane.reshape(self.dimension, 1)

    def _scratch(self) -> Floats:
        return np.zeros((self.scratch_rows, 1))
