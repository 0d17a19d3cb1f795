"""What schedule, clipping, momentum and AdamW cost per update of the server, beside AdamW of torch.

The yardstick is ``torch.optim.AdamW(foreach=True).step()`` on one flat parameter with the same number of threads. A
server with two workers handles a whole arrival: it checks the update, applies it and hands out the next job. So what is
compared is the time of all that with the time of the step alone.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

import asyncsgd as asgd
from asyncsgd.compiled.kernels import ready

SIZES = (10_000, 1_000_000, 10_000_000)
WANTED = {10_000_000: 1.3}
"""The largest time of AdamW, in those of torch."""


def methods(size: int) -> dict[str, asgd.Method]:
    """Return what is measured, by name; the first is what the others are compared with."""
    plain = asgd.async_sgd(1e-3)
    layout = (("weight", 0, (size - size // 100,)), ("bias", size - size // 100, (size // 100,)))
    adamw, torch_adamw = asgd.optimizers.adamw, asgd.optimizers.torch
    found = {
        "plain SGD": plain,
        "clipping": plain.clipped(1e-3),
        "momentum": plain.using(optimizer=asgd.optimizers.momentum()),
        "AdamW": plain.using(optimizer=adamw(weight_decay=0.1)),
        "AdamW, excluded": plain.using(optimizer=adamw(weight_decay=0.1, exclude="bias")).bind_layout(layout),
        "AdamW, clipping": plain.clipped(1e-3).using(optimizer=adamw(weight_decay=0.1)),
        "torch AdamW on the server": plain.using(optimizer=torch_adamw("AdamW", weight_decay=0.1, fused=True)),
    }
    found["schedule"] = asgd.async_sgd(asgd.schedules.cosine(1e-3, warmup=100, total=10**9))
    return found


def server_of(method: asgd.Method, size: int, threads: int) -> Callable[[], None]:
    """Return a function that handles one arrival."""
    kernels = ready(method, np.float32, threads)
    server = asgd.Server(np.ones(size, np.float32), method, kernels=kernels)
    server.handle(asgd.Joined([0, 1]))
    gradients = [np.random.default_rng(worker).standard_normal(size, np.float32) for worker in range(2)]

    def update() -> None:
        job = server.in_flight[0]
        server.handle(asgd.Arrived(job.id, gradients[job.worker]))

    return update


def yardstick_of(size: int) -> Callable[[], None]:
    """Return a function that does one step of torch."""
    parameter = torch.nn.Parameter(torch.ones(size))
    parameter.grad = torch.randn(size)
    optimizer = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.1, foreach=True)
    return lambda: optimizer.step()


def seconds_each(function: Callable[[], None], seconds: float) -> float:
    """Return the seconds per call, over about this many seconds and at least three calls."""
    calls, start = 0, time.perf_counter()
    while calls < 3 or time.perf_counter() - start < seconds:
        function()
        calls += 1
    return (time.perf_counter() - start) / calls


def measured(size: int, threads: int, options: Any) -> dict[str, Any]:
    """Return the figures of one size. Every contestant is measured between two measurements of the yardstick."""
    runs = {name: server_of(method, size, threads) for name, method in methods(size).items()}
    step = partial(seconds_each, yardstick_of(size), options.seconds / 2)
    for run in runs.values():
        seconds_each(run, 0.0)
    step()
    ratios: dict[str, list[float]] = {name: [] for name in runs}
    costs: dict[str, list[float]] = {name: [] for name in runs}
    times: dict[str, list[float]] = {name: [] for name in runs}
    steps = []
    for _ in range(options.rounds):
        before = step()
        for name, run in runs.items():
            took = seconds_each(run, options.seconds)
            after = step()
            ratios[name].append(2 * took / (before + after))
            times[name].append(took)
            steps.append(before)
            before = after
            costs[name].append(took / times["plain SGD"][-1])
    return {
        "wanted": WANTED.get(size),
        "seconds_of_torch": statistics.median(steps),
        **{
            name: {
                "of_torch": statistics.median(ratios[name]),
                "of_torch_by_round": [round(ratio, 3) for ratio in ratios[name]],
                "of_plain": statistics.median(costs[name]),
                "seconds": statistics.median(times[name]),
            }
            for name in runs
        },
    }


def part(options: Any) -> dict[str, Any]:
    """Measure and print one table per figure: a row per method, a column per size."""
    threads = options.threads or len(os.sched_getaffinity(0))
    torch.set_num_threads(threads)
    sizes = options.sizes or SIZES
    print(f"-- time of one update of the server with {threads} threads", flush=True)
    found = {str(size): measured(size, threads, options) for size in sizes}
    rows = [name for name, value in found[str(sizes[0])].items() if isinstance(value, dict)]
    for figure, title in (
        ("of_torch", "over a step of torch.optim.AdamW(foreach=True)"),
        ("of_plain", "over an update of plain SGD"),
    ):
        print(f"   {title:50}" + "".join(f"{size:>14.0e}" for size in sizes))
        for name in rows:
            print(f"   {name:50}" + "".join(f"{found[str(size)][name][figure]:>14.2f}" for size in sizes))
    goals = "".join((f"<= {WANTED[size]:.2f}" if size in WANTED else "").rjust(14) for size in sizes)
    print(f"   {'target for AdamW, over torch':50}{goals}", flush=True)
    return {"threads": threads, "seconds": options.seconds, **found}
