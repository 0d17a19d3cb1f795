"""How much memory the server of a run needs; refuse a run that does not fit into this machine before it starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from asyncsgd.core.dispatch import Batch, FirstOf
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.method import Method
from asyncsgd.core.update import overwrites_points
from asyncsgd.core.vectors import Vector
from asyncsgd.core.work import Encoded, LocalSteps, Work
from asyncsgd.format import size
from asyncsgd.run.last_good import on_disk
from asyncsgd.run.options import RunRequest
from asyncsgd.tasks.base import Copies

ROOT = Path("/")


BEST = 4
"""Vectors of a `asyncsgd.callbacks.SaveBest`: the model that waits, the one that is written, its module, the file."""


def check_memory(
    method: Method,
    x: Vector,
    workers: int,
    free: int | None = None,
    *,
    directory: bool = False,
    task: Any = None,
    best: int = 0,
    on_this_machine: bool = False,
) -> None:
    """Raise if a run needs more memory on the server's machine than is free.

    To what the server itself needs it adds the copies that a run makes: the last good model unless that is on the disk,
    the model that is being evaluated, and the state that is being written to a checkpoint; those that the task holds;
    the best models that are being written; and, if the workers are on this machine, theirs. The data of the task and
    the activations of its model are not known here.

    Args:
        method: The method, bound to the run.
        x: The model at the start.
        workers: The number of workers.
        free: Bytes of memory that are free; None asks the operating system.
        directory: Whether the run has a directory.
        task: The task, which may have ``copies`` (`asyncsgd.tasks.base.Copies`).
        best: The number of best models that the run writes.
        on_this_machine: Whether the workers are on this machine.
    """
    needed = memory_needed(method, len(x), x.dtype, workers)
    free = available() if free is None else free
    models = 2 if on_disk(x, directory=directory) else 3
    held: Copies = getattr(task, "copies", Copies())
    known = {
        **needed._asdict(),
        "copies": models * x.nbytes + needed.optimizer + needed.buffers + needed.memories,
        "task": held.server * x.nbytes,
        "best models": best * BEST * x.nbytes,
        "worker processes": worker_vectors(method.job, held, workers) * x.nbytes if on_this_machine else 0,
    }
    total = sum(known.values())
    if free is None or total <= free:
        return
    parts = ", ".join(f"{name} {size(value)}" for name, value in known.items() if value)
    where = "for the server and its worker processes" if on_this_machine else "on the server"
    problem = (
        f"need {size(total)} of memory {where} for {len(x):,} parameters of {x.dtype} ({parts}), "
        f"and {size(free)} are free"
    )
    fix = "use fewer workers, a smaller concurrency, an optimizer that remembers less or a smaller model"
    if needed.memories:
        fix += ", or a method that does not remember an update of every worker"
    raise BadParameter("workers", workers, problem, fix)


def remembered(request: RunRequest) -> str | None:
    """Return how much memory a method needs for the last update of every worker; None if it does not remember them.

    A run notes this before anything is allocated, also if it fits: the memory grows with the number of workers.
    """
    method, workers, noun = request.method, request.engine.workers, request.engine.noun
    if not method.aggregation.remembers:
        return None
    x = request.task.initial()
    needed = memory_needed(method, len(x), x.dtype, workers).memories
    each = f"{size(needed)} of memory on the server for {workers} {noun}s, {size(x.nbytes)} more for each further one"
    return f"{method.name} remembers one update per {noun}: {each}"


def worker_vectors(work: Work, held: Copies, workers: int) -> int:
    """Return the vectors that the worker processes of one machine need, beside points and updates in shared memory.

    >>> from asyncsgd.core.work import Gradient
    >>> worker_vectors(Gradient(), Copies(server=2, shared=2, worker=1), workers=3)
    8
    """
    inner = work.inner if isinstance(work, Encoded) else work
    each = 1 + held.worker  # the gradient
    if isinstance(inner, LocalSteps):
        kept = 2 if inner.state == "kept" else 1  # the state after the last job waits for the server's verdict
        each += 1 + kept * inner.optimizer.vectors()
    if isinstance(work, Encoded):  # what is encoded and what that leaves over; the point that was decoded
        each += 2 * (work.up is not None) + (work.down is not None)
    return held.shared + workers * each


def available(root: Path = ROOT) -> int | None:
    """Return the bytes of memory that a process can still get without swapping, or None if the system does not say.

    It is the smaller of what the machine has and what the control groups of this process (a container's limit) allow.
    """
    found = [_machine(root), *_groups(root)]
    known = [number for number in found if number is not None]
    return min(known, default=None)


def _machine(root: Path) -> int | None:
    for line in _text(root / "proc/meminfo").splitlines():
        name, _, rest = line.partition(":")
        if name == "MemAvailable":
            return int(rest.split()[0]) * 1024
    return None


def _groups(root: Path) -> list[int | None]:
    """Return what each control group above this process still allows, for both versions of control groups."""
    found: list[int | None] = []
    for line in _text(root / "proc/self/cgroup").splitlines():
        number, controllers, place = [*line.split(":", 2), "", ""][:3]
        if number == "0" and not controllers:
            top, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            top = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        group = top / place.lstrip("/")
        while True:
            found.append(_left(group, *names))
            if group == top:
                break
            group = group.parent
    return found


def _left(group: Path, limit: str, usage: str, reclaimable: str) -> int | None:
    most, used = _text(group / limit).strip(), _text(group / usage).strip()
    if not (most.isdigit() and used.isdigit()):  # "max", or a group without these files
        return None
    files = 0  # the usage counts copies of files, which the system drops when it needs memory
    for line in _text(group / "memory.stat").splitlines():
        name, _, value = line.partition(" ")
        if name == reclaimable and value.isdigit():
            files = int(value)
    return max(0, int(most) - int(used) + files)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""


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
    vector = dimension * np.dtype(dtype).itemsize
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
        points=points * vector,
        updates=updates * vector,
        optimizer=method.optimizer.vectors() * vector,
        buffers=(method.average + changed + kept + (0 if remembers else state)) * vector,
        memories=state * vector if remembers else 0,
    )
