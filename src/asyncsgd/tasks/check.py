"""A check that every task should pass, including your own."""

from __future__ import annotations

from collections.abc import Sequence
from mmap import mmap
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadTask
from asyncsgd.core.vectors import Vector
from asyncsgd.tasks.base import gradient_of, narrow_seed, some_batch


def check_task(task: Any, *, workers: int | None = None, slope: bool = False, draws: int = 200, seed: int = 0) -> None:
    """Raise `BadTask` with the problem and the fix unless the task fulfils the contract of `Task`.

    It checks at a few points and for a few workers: shapes, dtypes, finite numbers, that nothing writes into x, and
    that ``update`` depends on (x, worker, seed) alone, and on the ``batch`` if the task has ``uses_batch = True``.
    ``update_into`` and a ``compiled`` gradient must give the bits of ``update``; a ``layout`` must cover the vector.

    Args:
        task: The task to check.
        workers: The number of workers; by default ``task.workers``, or 1.
        slope: Whether to compare the mean of ``draws`` updates with the slope of ``evaluate(x)["loss"]``, found by
            finite differences. Only for tasks whose updates are unbiased gradients of that loss.
        draws: The number of updates for ``slope``, spread over all workers.
        seed: Seed for points, directions and the seeds of jobs.

    >>> from asyncsgd import tasks
    >>> tasks.check_task(tasks.quadratic(workers=3, noise=0.1), slope=True)

    See docs/howto/task.md for what a task must keep to.
    """
    number = workers if workers is not None else getattr(task, "workers", None) or 1
    for name in ("initial", "update", "evaluate"):
        if not callable(getattr(task, name, None)):
            raise BadTask(f"the task has no method {name}(); add it, see asyncsgd.tasks.Task")
    random = np.random.Generator(np.random.Philox(key=seed))
    x0 = task.initial()
    _check_vector("initial()", x0, None)
    if x0.dtype not in (np.float32, np.float64):
        raise BadTask(f"initial() has dtype {x0.dtype}; return float64 (or float32)")
    if not _same(task.initial(), x0):
        raise BadTask("initial() differs from call to call; fix the starting point when the task is made")
    if callable(getattr(task, "layout", None)):
        _check_layout(task.layout(), len(x0))
    points = [x0, (x0 + random.standard_normal(x0.shape)).astype(x0.dtype)]
    for x in points:
        for worker in sorted({0, number // 2, number - 1}):
            _check_update(task, x, worker, 2**64 - 1 - int(random.integers(2**63)))  # as large as those of jobs
        _check_evaluate(task, x)
    if slope:
        _check_slope(task, points[-1].astype(np.float64), number, draws, random)


def _same(a: Vector, b: Vector) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and a.tobytes() == b.tobytes()


def _check_vector(name: str, value: Any, like: Vector | None) -> None:
    if not isinstance(value, np.ndarray) or value.ndim != 1 or not value.size:
        raise BadTask(f"{name} is {type(value).__name__}, not a vector; return a 1-D NumPy array")
    if like is not None and (value.shape != like.shape or value.dtype != like.dtype):
        raise BadTask(f"{name} is {value.dtype}{list(value.shape)}; return {like.dtype}{list(like.shape)}, like x")
    if not np.isfinite(value).all():
        raise BadTask(f"{name} holds NaN or infinity")


def _frozen(x: Vector) -> Vector:
    copy = x.copy()
    copy.flags.writeable = False
    return copy


def _check_update(task: Any, x: Vector, worker: int, seed: int) -> None:
    name = f"update(x, {worker}, {seed})"
    first = _updated(task, _frozen(x), worker, seed)
    _check_vector(name, first, x)
    kept = first.copy()
    # With another seed, and a small one: a numba function that was compiled for small seeds refuses large ones.
    _updated(task, x.copy(), worker, narrow_seed(seed, 31))
    if not _same(first, kept):
        raise BadTask(f"{name} returns an array that the next call overwrites; return a new one")
    again = _updated(task, x.copy(), worker, seed)
    if not _same(again, kept):
        raise BadTask(f"{name} is not repeatable; draw all randomness from the seed, e.g. np.random.default_rng(seed)")
    if callable(getattr(task, "update_into", None)):
        _check_into(task, x, worker, seed, kept)
    compiled = getattr(task, "compiled", None)
    if compiled is not None:
        function, data = compiled
        out = np.zeros_like(x)
        function(x.copy(), worker, np.uint64(seed), out, data)
        if not _same(out, kept):
            raise BadTask(f"the compiled gradient differs from {name} by up to {np.abs(out - kept).max():.3g}")


def _updated(task: Any, x: Vector, worker: int, seed: int) -> Any:
    """Return what ``update`` returns; explain its errors if the reason is known."""
    try:
        return task.update(x, worker, seed, *some_batch(task, seed))
    except (OverflowError, TypeError, ValueError) as error:
        name = f"update(x, {worker}, {seed})"
        if "read-only" in str(error):
            raise BadTask(f"{name} writes into x; work on a copy, x.copy()") from error
        if seed >> 31 and _works(task, x, worker, narrow_seed(seed, 31)):
            fix = "pass asgd.tasks.narrow_seed(seed) on to what takes 32 bits, narrow_seed(seed, bits=63) to numba"
            raise BadTask(f"{name} refuses a seed of 64 bits, as jobs have ({error}); {fix}") from error
        raise


def _works(task: Any, x: Vector, worker: int, seed: int) -> bool:
    try:
        task.update(x, worker, seed, *some_batch(task, seed))
    except Exception:
        return False
    return True


def _check_layout(layout: Any, length: int) -> None:
    place = 0
    for name, offset, shape in layout:
        if offset != place:
            raise BadTask(f"layout(): {name!r} begins at {offset}, the numbers before it end at {place}; list them all")
        place += int(np.prod(shape, dtype=np.int64))
    if place != length:
        raise BadTask(f"layout() covers {place} numbers, initial() has {length}; list every parameter once")


def _check_into(task: Any, x: Vector, worker: int, seed: int, expected: Vector) -> None:
    name = f"update_into(x, {worker}, {seed}, out)"
    rooms = [np.frombuffer(mmap(-1, x.nbytes + x.itemsize), x.dtype) for _ in range(2)]
    for place in (0, 1, 1):  # at the start of a page, as in an engine; elsewhere; and where it has written before
        here, out = (room[place : place + len(x)] for room in rooms)
        here[:], out[:] = x, np.nan
        here.flags.writeable = False
        if task.update_into(here, worker, seed, out, *some_batch(task, seed)) is not None:
            raise BadTask(f"{name} returns something; write into out and return None")
        if not _same(out, expected):
            raise BadTask(f"{name} writes {out}, update returns {expected}; they must agree to the bit")


def _check_evaluate(task: Any, x: Vector) -> None:
    values = task.evaluate(_frozen(x))
    if not isinstance(values, dict):
        raise BadTask(f"evaluate(x) is {type(values).__name__}; return a dict such as {{'loss': 0.5}}")
    for key, value in values.items():
        if not isinstance(key, str) or np.ndim(value) or not np.isfinite(value):
            raise BadTask(f"evaluate(x)[{key!r}] = {value!r}; return finite numbers under names")


def _check_slope(task: Any, x: Vector, workers: int, draws: int, random: np.random.Generator) -> None:
    values = task.evaluate(x)
    if "loss" not in values:
        raise BadTask("evaluate(x) has no 'loss' to compare the gradient with; add it, or pass slope=False")
    direction = random.standard_normal(x.shape)
    direction /= np.linalg.norm(direction)
    h = 1e-5 * max(1.0, float(np.abs(x).max()))
    slope = (task.evaluate(x + h * direction)["loss"] - task.evaluate(x - h * direction)["loss"]) / (2 * h)
    rounds, gradient = max(1, -(-draws // workers)), gradient_of(task)
    samples: Sequence[float] = [
        float(np.mean([gradient(x, worker, int(random.integers(2**63))) @ direction for worker in range(workers)]))
        for _ in range(rounds)
    ]
    mean = float(np.mean(samples))
    error = float(np.std(samples) / np.sqrt(max(rounds - 1, 1)))
    allowed = 6 * error + 1e-5 * max(1.0, abs(slope))
    if abs(mean - slope) > allowed:
        raise BadTask(
            f"the updates' mean slope is {mean:.6g}, that of the loss {slope:.6g} (allowed difference {allowed:.2g}); "
            "they are not unbiased gradients of it"
        )


def why_not_sent(task: Any, error: Exception) -> str:
    """Return why a task could not be pickled: the error, and the attribute that caused it if it can be found.

    Engines call it when pickling has failed. A task may have a property ``sent``, a dict of its parts by names that its
    user knows; otherwise they are named as the attributes of the task.

    >>> import threading
    >>> class Mine:
    ...     def __init__(self):
    ...         self.rows = {"first": [1, threading.Lock()]}
    >>> why_not_sent(Mine(), TypeError("cannot pickle it"))
    'TypeError: cannot pickle it, in rows["first"][1], a lock'
    """
    given = getattr(task, "sent", None)
    parts = dict(given) if isinstance(given, dict) else dict(getattr(task, "__dict__", {}))
    found = _find(parts, "", set()).lstrip(".")
    return f"{type(error).__name__}: {error}" + (f", in {found}" if found else "")


def _find(value: Any, path: str, seen: set[int]) -> str:
    """Return the path of the innermost part that cannot be pickled, below ``value``, which cannot."""
    if id(value) in seen:
        return ""
    seen.add(id(value))
    for name, part in _parts_of(value, top=path == ""):
        if not _can_be_pickled(part):
            return _find(part, path + name, seen) or f"{path}{name}, a {type(part).__name__}"
    return ""


def _parts_of(value: Any, *, top: bool = False) -> list[tuple[str, Any]]:
    if isinstance(value, dict):
        return [(f".{key}" if top else f"[{_quoted(key)}]", part) for key, part in value.items()]
    if isinstance(value, list | tuple):
        return [(f"[{place}]", part) for place, part in enumerate(value)]
    cells = getattr(value, "__closure__", None)
    if cells:  # a function that uses variables of the function around it
        return [(f".{name}", cell.cell_contents) for name, cell in zip(value.__code__.co_freevars, cells, strict=True)]
    return [(f".{name}", part) for name, part in getattr(value, "__dict__", {}).items()]


def _quoted(key: Any) -> str:
    return f'"{key}"' if isinstance(key, str) else repr(key)


def _can_be_pickled(value: Any) -> bool:
    import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception:
        return False
    return True
