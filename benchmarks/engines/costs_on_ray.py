"""Measure the overhead of the Ray engine: its start, each job, and rounding an update to 16 bits."""

from __future__ import annotations

import statistics
import time

import numpy as np
from workload import WORKERS, Constant

SMALL, JOBS = 100, 2000
LARGE = 1_000_000


def start(rounds: int) -> dict[str, object]:
    """Return the seconds until the workers are ready, Ray included, and milliseconds per job with 100 parameters."""
    import asyncsgd as asgd

    task, method = Constant(SMALL), asgd.async_sgd(0.1)
    seconds, jobs = [], []
    for _ in range(rounds):
        before = time.perf_counter()
        with asgd.engines.ray(WORKERS).start(task, method.work, task.initial()):
            seconds.append(time.perf_counter() - before)
        run = asgd.train(task, method, engine=asgd.engines.ray(WORKERS), iterations=JOBS, every=JOBS, progress=False)
        jobs.append(1000 * float(run.trace.time[-1] - run.trace.time[JOBS // 10]) / (JOBS - 1 - JOBS // 10))
    found = {
        "rounds": rounds,
        "seconds_until_the_workers_are_there": [round(value, 1) for value in seconds],
        "milliseconds_per_job": [round(value, 2) for value in jobs],
    }
    print(
        f"   {min(seconds):.1f} to {max(seconds):.1f} s to start, {statistics.median(jobs):.2f} ms per job", flush=True
    )
    return found


def rounding(rounds: int) -> dict[str, object]:
    """Return CPU milliseconds by kind: to round 10^6 parameters of 32 bits with error feedback, and to decode them."""
    from asyncsgd.compiled.compression import fast
    from asyncsgd.core.compression import as_compression
    from asyncsgd.core.work import Encoded, Gradient
    from asyncsgd.core.worker import WorkerState

    g = np.random.default_rng(0).standard_normal(LARGE).astype(np.float32)
    out = np.empty_like(g)
    found: dict[str, object] = {}
    for kind in ("float16", "bfloat16"):
        worker = WorkerState(Encoded(Gradient(), up=as_compression("up", kind)), g, codec=fast)
        packed, read = [], []
        for _ in range(20 * rounds):
            before = time.process_time()
            worker.settle(used=True)
            message = worker.encode(g)
            between = time.process_time()
            worker.decode(message, out)
            packed.append(1000 * (between - before))
            read.append(1000 * (time.process_time() - between))
        found[kind] = {"round": round(statistics.median(packed), 2), "read": round(statistics.median(read), 2)}
        print(f"   {kind:10} {found[kind]}", flush=True)
    return found
