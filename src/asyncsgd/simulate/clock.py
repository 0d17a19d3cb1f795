"""The server driven event by event by a simulated clock, in plain Python: slow, obvious, and the judge of the rest."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from asyncsgd.core.events import Arrived, Assign, Command, Job, Joined, Vector
from asyncsgd.core.server import Server
from asyncsgd.simulate.durations import Durations
from asyncsgd.trace import Recorder


def play(
    server: Server,
    compute: Callable[[Vector, Job], Vector],
    durations: Durations,
    iterations: int,
    recorder: Recorder,
    after: Callable[[float], None] | None = None,
) -> float:
    """Let all workers join at time 0 and run until ``iterations`` gradients have arrived; the time it is then.

    A worker does its jobs first in, first out. Arrivals at the same time are taken in order of assignment.
    ``after(time)`` is called after every arrival.
    """
    arrivals: list[tuple[float, int, Job]] = []
    waiting: dict[int, Job] = {}
    free_at = [0.0] * durations.workers
    started = [0] * durations.workers

    def obey(time: float, commands: list[Command]) -> None:
        for command in commands:
            job = command.job
            worker = job.worker
            if isinstance(command, Assign):
                begin = max(time, free_at[worker])
                free_at[worker] = begin + durations.draw(worker, started[worker], server.seed)
                started[worker] += 1
                heapq.heappush(arrivals, (free_at[worker], job.id, job))
                waiting[job.id] = job
            else:
                del waiting[job.id]
                free_at[worker] = time  # rules that cancel never queue a second job on a worker
        recorder.record(time, commands, server.ended)

    time = 0.0
    obey(time, server.handle(Joined(range(durations.workers))))
    while server.iteration < iterations:
        time, number, job = heapq.heappop(arrivals)
        if waiting.pop(number, None) is None:
            continue  # cancelled meanwhile
        obey(time, server.handle(Arrived(number, compute(server.point(number), job), job.worker)))
        if after is not None:
            after(time)
    return time
