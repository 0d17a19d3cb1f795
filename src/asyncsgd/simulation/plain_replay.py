"""The numbers along given arrivals through the core's own code: for every method, and the judge of the lanes."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

import numpy as np

from asyncsgd.core.arrival import Arrival
from asyncsgd.core.errors import NotFinite
from asyncsgd.core.events import Vector
from asyncsgd.core.fit import check_model, check_update
from asyncsgd.core.method import Method
from asyncsgd.core.random import derive, output
from asyncsgd.core.server import JOB
from asyncsgd.core.update import Update
from asyncsgd.simulation.arrivals import Arrivals, Floats, Weighed
from asyncsgd.tasks.base import Task


def replay_core(
    arrivals: Arrivals,
    task: Task,
    method: Method,
    *,
    seed: int,
    after: Callable[[int, Update], bool] | None = None,
    watch: Callable[[Arrival, Vector], bool] | None = None,
    present: Callable[[int], Collection[int]] | None = None,
    carry: Callable[[int, int, Vector], Vector] | None = None,
    noise: Mapping[int, int] | None = None,
) -> tuple[Update, Weighed, Floats, int | None]:
    """(the update half of the server at the end, weights, step of every arrival, iteration of divergence or None).

    The same code that a real server runs, along any arrivals, for every method. ``after(iterations, update)`` may
    return True to stop; ``watch(arrival, update)`` sees every update before it is used, and may stop there too.
    ``present(iteration)`` says who was there, where that is known; ``carry(iteration, worker, update)`` gives what
    reached the server of an update that is rounded on the way; ``noise`` has the seeds of noise, by the iteration
    that each was drawn from first.
    """
    start = task.initial()
    check_model(start)
    update = Update(method, start, derive(seed))
    seeds = derive(seed, JOB)
    total = len(arrivals)
    steps, weights, version = np.zeros(total), np.zeros(total), np.zeros(total + 1, np.int64)
    flush = np.zeros(total, np.uint8)
    lent: dict[int, tuple[int, int]] = {}  # job -> (slot, version)
    by_point = np.argsort(arrivals.iteration, kind="stable")
    next_lent = 0
    ended: int | None = None
    for t in range(total):
        if noise is not None and t in noise:
            update.reseed(noise[t])
        while next_lent < total and arrivals.iteration[by_point[next_lent]] == t:
            lent[int(arrivals.job[by_point[next_lent]])] = (update.points.lend(), update.version)
            next_lent += 1
        job, worker = int(arrivals.job[t]), int(arrivals.worker[t])
        slot, assigned_version = lent.pop(job)
        point = update.points[slot]
        arrival = Arrival(
            worker=worker,
            job=job,
            iteration=t,
            delay=t - int(arrivals.iteration[t]),
            staleness=update.version - assigned_version,
            version=update.version,
            concurrency=int(arrivals.concurrency[t]),
            max_concurrency=int(arrivals.max_concurrency[t]),
            workers=int(arrivals.workers[t]),
            x=update.points.current,
            point=point,
            present=None if present is None else present(t),
        )
        try:
            g = method.work.compute(task.update, point, worker, output(seeds, job))
            check_update(g, update.points.current, worker, job)
        except NotFinite:
            ended = t
            break
        if carry is not None:
            g = carry(t, worker, g)
        if watch is not None and watch(arrival, g):
            break
        before = update.version
        # A plain float: NumPy's own would make it a sum in float64 where the model is float32.
        weight = update.weigh(arrival)
        weights[t] = weight
        _, steps[t] = update.apply(arrival, g, weight)
        update.points.give_back(slot)
        version[t + 1] = update.version
        flush[t] = update.version != before
        if after is not None and after(t + 1, update):
            ended = None
            break
    return update, Weighed(weights, version, flush), steps, ended
