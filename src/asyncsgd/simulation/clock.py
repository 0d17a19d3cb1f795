"""A simulated clock that drives the core server: slow, but obviously right."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from typing import Any

from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrived, Assign, Job, Joined, Outcome, Reply
from asyncsgd.core.server import Server
from asyncsgd.core.worker import Workers
from asyncsgd.engines.base import example_counter
from asyncsgd.simulation.durations import Durations
from asyncsgd.trace import Recorder


def play(
    server: Server,
    computing: tuple[Any, Workers],
    durations: Durations,
    iterations: int,
    recorder: Recorder,
    after: Callable[[float], bool] | None = None,
) -> float:
    """Drive a server with a simulated clock until ``iterations`` gradients have arrived; return the time.

    It is plain Python: slow, but obviously right, so tests compare the compiled code with it. All workers join at time
    0.

    ``computing`` is the task, and what its workers keep from job to job.

    A job travels to its worker, waits until the worker has done those before it, is computed, and travels back. A job
    of H steps is computed for H times the duration that was drawn for it, and the server hears how long that took. If
    workers keep state, a job leaves the server only when the worker's last update has arrived. Arrivals at the same
    time are handled in order of assignment. ``after(time)`` is called after every arrival; if it returns True, the run
    ends there.
    """
    durations.check_known()
    task, workers = computing
    examples = example_counter(task, server.method.work)
    keeps = server.method.job.keeps
    arrivals: list[tuple[float, int, Job]] = []
    waiting: dict[int, float] = {}  # job -> seconds of computing
    down, up = durations.lowered.down.tolist(), durations.lowered.up.tolist()
    free_at = [0.0] * durations.workers
    started = [0] * durations.workers

    def obey(time: float, reply: Reply) -> None:
        for command in reply.commands:
            job = command.job
            worker = job.worker
            if isinstance(command, Assign):
                begin = max(time + down[worker], free_at[worker])
                work = job.steps * durations.draw(worker, started[worker], server.seed)
                end = durations.finish(worker, begin, work)
                free_at[worker] = end + up[worker] + down[worker] if keeps else end
                started[worker] += 1
                heapq.heappush(arrivals, (end + up[worker], job.id, job))
                waiting[job.id] = end - begin
            else:
                del waiting[job.id]
                free_at[worker] = time  # rules that cancel never queue a second job on a worker
        recorder.record(time, reply.commands, reply.ended)

    def next_arrival() -> tuple[float, Job, float]:
        while arrivals:
            time, number, job = heapq.heappop(arrivals)
            seconds = waiting.pop(number, None)
            if seconds is not None and math.isfinite(time):
                return time, job, seconds  # else the job was cancelled, or its worker has stopped for good
        raise BadParameter(
            "durations",
            durations,
            f"let only {server.iteration} of {iterations} gradients arrive: all others wait for workers that have "
            "stopped for good",
            "let these resume (a last speed above 0, a period, the end of an outage) or ask for fewer iterations",
        )

    time = 0.0
    obey(time, server.handle(Joined(range(durations.workers))))
    while server.iteration < iterations:
        time, job, seconds = next_arrival()
        update = workers.compute(task, server.point(job.id), job.worker, job.seed, job.steps, job.batch)
        counted = None if examples is None else examples(job)
        reply = server.handle(Arrived(job.id, update, job.worker, counted, seconds))
        workers.settle(job.worker, reply.ended[0].outcome is Outcome.APPLIED)
        obey(time, reply)
        if after is not None and after(time):
            break
    return time
