"""The three methods that make a task, and what the built-in ones add to them.

**Your own task** is a class with the methods of `Task`; inherit from nothing. Attributes that help, all optional:
``workers``, ``heterogeneous``, and the constants ``smoothness``, ``noise_variance``, ``heterogeneity``, ``optimum``,
``minimum``. `asyncsgd.tasks.check_task` tests it.

**Into shared memory.** If it also has ``update_into(x, worker, seed, out)``, which writes into the vector ``out`` what
``update(x, worker, seed)`` returns, engines call that one, and a large update is not copied once more. x is read-only
and does not change during the call.

**Seeds** are integers below 2**64, and half of them lie above the largest int64. ``np.random.default_rng(seed)`` and
``torch.manual_seed(seed)`` take them as they are. ``np.random.seed`` takes 32 bits and a numba function 63, and both
refuse more: pass `narrow_seed` of the seed on.

**Fast path.** If it also has ``compiled = (gradient, data)`` (see `CompiledTask`), runs of it are replayed in compiled
code.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

from asyncsgd.core.check import count, is_id
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Vector


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
