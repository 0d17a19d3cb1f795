"""Refuse a run that does not fit into the memory of this machine, before a worker starts."""

from __future__ import annotations

from pathlib import Path

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.memory import memory_needed
from asyncsgd.core.method import Method
from asyncsgd.core.vectors import Vector
from asyncsgd.run.last_good import on_disk

ROOT = Path("/")


def check_memory(method: Method, x: Vector, workers: int, free: int | None = None, *, directory: bool = False) -> None:
    """Raise if the server of a run needs more memory than is free.

    To what the server itself needs it adds the copies that a run makes: the last good model unless that is on the disk,
    the model that is being evaluated, and the state that is being written to a checkpoint.

    Args:
        method: The method, bound to the run.
        x: The model at the start.
        workers: The number of workers.
        free: Bytes of memory that are free; None asks the operating system.
        directory: Whether the run has a directory.
    """
    needed = memory_needed(method, len(x), x.dtype, workers)
    free = available() if free is None else free
    models = 2 if on_disk(x, directory=directory) else 3
    copies = models * x.nbytes + needed.optimizer + needed.buffers + needed.memories
    total = needed.total + copies
    if free is None or total <= free:
        return
    known = {**needed._asdict(), "copies": copies}
    parts = ", ".join(f"{name} {_gigabytes(value)}" for name, value in known.items() if value)
    problem = (
        f"need {_gigabytes(total)} of memory on the server for {len(x)} parameters of {x.dtype} ({parts}), "
        f"and {_gigabytes(free)} are free"
    )
    fix = "use fewer workers, a smaller concurrency, an optimizer that remembers less or a smaller model"
    if needed.memories:
        fix += ", or a method that does not remember an update of every worker"
    raise BadParameter("workers", workers, problem, fix)


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
        return path.read_text()
    except OSError:
        return ""


def _gigabytes(number: int) -> str:
    return f"{number / 1e9:.2f} GB"
