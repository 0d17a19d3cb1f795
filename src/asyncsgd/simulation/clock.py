"""The server driven event by event by a simulated clock, in plain Python: slow, obvious, and the judge of the rest."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrived, Assign, Job, Joined, Reply, Vector
from asyncsgd.core.server import Server
from asyncsgd.simulation.durations import Durations
from asyncsgd.trace import Recorder


def play(
    server: Server,
    compute: Callable[[Vector, Job], Vector],
    durations: Durations,
    iterations: int,
    recorder: Recorder,
    after: Callable[[float], bool] | None = None,
) -> float:
    """Let all workers join at time 0 and run until ``iterations`` gradients have arrived; the time it is then.

    A job travels to its worker, waits until the worker has done those before it, is computed, and travels back.
    Arrivals at the same time are taken in order of assignment. ``after(time)`` is called after every arrival; if it
    says True, the run ends there.
    """
    arrivals: list[tuple[float, int, Job]] = []
    waiting: dict[int, Job] = {}
    down, up = durations.lowered.down.tolist(), durations.lowered.up.tolist()
    free_at = [0.0] * durations.workers
    started = [0] * durations.workers

    def obey(time: float, reply: Reply) -> None:
        for command in reply.commands:
            job = command.job
            worker = job.worker
            if isinstance(command, Assign):
                begin = max(time + down[worker], free_at[worker])
                work = durations.draw(worker, started[worker], server.seed)
                free_at[worker] = durations.finish(worker, begin, work)
                started[worker] += 1
                heapq.heappush(arrivals, (free_at[worker] + up[worker], job.id, job))
                waiting[job.id] = job
            else:
                del waiting[job.id]
                free_at[worker] = time  # rules that cancel never queue a second job on a worker
        recorder.record(time, reply.commands, reply.ended)

    def next_arrival() -> tuple[float, int, Job]:
        while arrivals:
            time, number, job = heapq.heappop(arrivals)
            if waiting.pop(number, None) is not None and math.isfinite(time):
                return time, number, job  # else it was cancelled meanwhile, or its worker stands still for ever
        raise BadParameter(
            "durations",
            durations,
            f"let only {server.iteration} of {iterations} gradients arrive: all others wait for workers that stand "
            "still for ever",
            "let these go on (a last speed above 0, a period, the end of an outage) or ask for fewer iterations",
        )

    time = 0.0
    obey(time, server.handle(Joined(range(durations.workers))))
    while server.iteration < iterations:
        time, number, job = next_arrival()
        obey(time, server.handle(Arrived(number, compute(server.point(number), job), job.worker)))
        if after is not None and after(time):
            break
    return time
