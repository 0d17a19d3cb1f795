"""What to say about workers that are not there, in one sentence where Ray says it in twenty lines."""

from __future__ import annotations

from collections.abc import Sequence

from asyncsgd.engines.lifecycle import Lifecycle, Stage
from asyncsgd.engines.ray.member import WorkerHandle

LOADING = "cannot load the task"
BEGINNINGS = ("The actor is dead because ", "The actor died because of ", "The actor died because ")
LOST = "Failed to retrieve object"
"""How Ray begins where an answer was lost with its node; why comes last."""
LONGEST = 200


def explain(error: Exception) -> str:
    r"""Why a worker is gone.

    >>> explain(Exception("The actor died.\n\tpid: 7\nThe actor is dead because its node has died. See the logs."))
    'is gone: its node has died'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first = lines[-1] if lines[0].startswith(LOST) else lines[0]
    words = next((line for line in lines if line.startswith(BEGINNINGS)), first)
    for beginning in BEGINNINGS:
        words = words.removeprefix(beginning)
    first, _, detail = words.partition(". ")
    if "Worker exit detail: " in detail:
        first += f" ({detail.partition('Worker exit detail: ')[2].partition('. ')[0].removeprefix('Worker ')})"
    return f"is gone: {first.rstrip('.')[:LONGEST]}"


def missing(handles: Sequence[WorkerHandle], life: Lifecycle, wanted: int, seconds: float, cluster: str) -> str:
    """Who is not there, what was asked for, what the cluster has, and what to do."""
    here = [worker for worker in life.workers if worker.number not in life.retired]
    there = sum(worker.stage is Stage.READY for worker in here)
    parts = []
    for stage in (Stage.ABSENT, Stage.WAITING, Stage.LOADING):
        numbers = [worker.number for worker in here if worker.stage is stage]
        if numbers:
            parts.append(f"{_named(numbers)} {stage.value if len(numbers) == 1 else stage.plural}")
    if life.retired:
        parts.append(f"{_named(sorted(life.retired))} died too often")
    needs = sorted({_needs(handles[worker.number]) for worker in here if worker.stage is Stage.WAITING})
    asked = f"Ray was asked for nodes with {' or '.join(needs)} free; the" if needs else "The"
    return (
        f"{there} of the {wanted} workers that the run needs were there after {seconds:.0f} s: {'; '.join(parts)}."
        f"{_reasons(life)} {asked} cluster has {cluster}. Ask for less per worker, begin with fewer (at_least), add "
        "nodes, or pass a larger start_timeout"
    )


def _reasons(life: Lifecycle) -> str:
    """Why those that are not there died the last time: two of them, if they differ."""
    found: dict[str, int] = {}
    for worker in life.workers:
        if worker.reason and worker.stage is not Stage.READY:
            lines = worker.reason.strip().splitlines()
            found.setdefault(" ".join(dict.fromkeys((lines[0], lines[-1]))), worker.number)
    return "".join(f" Worker {number} {reason}." for reason, number in list(found.items())[:2])


def _needs(member: WorkerHandle) -> str:
    return ", ".join(f"{amount:g} {name}" for name, amount in member.group.needs.items()) or "anything"


def _named(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:8])) + (", …" if len(numbers) > 8 else "")
    return f"worker{'s' if len(numbers) > 1 else ''} {shown}"
