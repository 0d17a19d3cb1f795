"""Workers that pretend to be slower than they are, for tests and demonstrations."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from asyncsgd.core.errors import BadParameter


def per_worker(
    name: str, given: Sequence[float] | Mapping[int, float] | None, workers: int, nothing: float
) -> tuple[float, ...]:
    """One number for each worker, none below ``nothing``; empty if nobody pretends.

    >>> per_worker("slowdown", {2: 10}, workers=3, nothing=1.0)
    (1.0, 1.0, 10.0)
    """
    if given is None:
        return ()
    if isinstance(given, Mapping):
        unknown = [worker for worker in given if worker not in range(workers)]
        if unknown:
            fix = f"name workers 0..{workers - 1}"
            raise BadParameter(name, given, f"names worker {unknown[0]}, who is not there", fix)
        given = [given.get(worker, nothing) for worker in range(workers)]
    try:
        values = tuple(float(value) for value in given)
    except (TypeError, ValueError) as error:
        each = given if isinstance(given, int | float) else nothing
        raise BadParameter(
            name, given, "is no list of numbers", f"give one per worker: [{each:g}] * {workers}"
        ) from error
    if len(values) != workers:
        raise BadParameter(name, given, f"has {len(values)} values for {workers} workers", "give one per worker")
    for value in values:
        if not nothing <= value < float("inf"):
            raise BadParameter(name, value, "makes no worker slower", f"pass a number of at least {nothing:g}")
    return values
