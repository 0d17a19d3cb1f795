"""What the end of a run leaves half done: a buffer that was not full, a batch that did not all arrive."""

from __future__ import annotations

import numpy as np

from asyncsgd.core.dispatch import Batch
from asyncsgd.core.events import Outcome
from asyncsgd.core.gather import Buffer, Memory
from asyncsgd.core.method import Method
from asyncsgd.trace import Trace


def unused(method: Method, trace: Trace) -> int:
    """Return how many updates at the end no step of the model has used, as those of a buffer that was not full.

    >>> from asyncsgd import methods, simulate, tasks, durations
    >>> method = methods.fedbuff(0.1, concurrency=2, buffer=4)
    >>> run = simulate(tasks.quadratic(workers=2), method, durations.fixed([1, 2]), iterations=11)
    >>> unused(method, run.trace)
    3
    """
    applied = trace.counts[Outcome.APPLIED]
    if isinstance(method.aggregation, Buffer):
        return applied % method.aggregation.size
    if isinstance(method.aggregation, Memory) and not trace.step.any():  # some worker was never heard
        return applied
    return 0


def leftover(method: Method, trace: Trace) -> str | None:
    """Return what the end has left half done, in a sentence; None if nothing."""
    waiting = unused(method, trace)
    if waiting:
        who = "the last update was" if waiting == 1 else f"the last {waiting} updates were"
        why = "not every worker was heard"
        if isinstance(method.aggregation, Buffer):
            why = f"the model moves after every {method.aggregation.size}"
        return f"{who} not used, as {why}; more iterations use {'it' if waiting == 1 else 'them'}"
    flying = trace.jobs.in_flight
    if isinstance(method.dispatch, Batch) and flying.any():
        began = int(trace.jobs.assigned_iteration[flying].min())
        arrived = trace.iterations - began
        if arrived:
            of = arrived + int(np.count_nonzero(flying))
            return (
                f"the last batch is not complete: {arrived} of its {of} updates arrived, and the model has used these"
            )
    return None
