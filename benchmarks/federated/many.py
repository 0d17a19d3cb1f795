"""Simulate 10^5 clients of 80 kinds, which are distributed as those of the part `prediction`: seconds and memory."""

from __future__ import annotations

import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np
import prediction

import asyncsgd as asgd

CLIENTS, AT_ONCE, UPDATES = 100_000, 800, 1_000_000


def simulated(clients: int, at_once: int, updates: int) -> tuple[float, float, float]:
    """Return seconds, the growth of this process's memory in GB, and simulated seconds per update."""
    random = np.random.default_rng(0)
    means = prediction.SECONDS * np.exp(prediction.SPREAD * random.standard_normal(prediction.PILOT))
    pilot = asgd.durations.lognormal(means.tolist(), sigma=0.1)
    prediction.predict(pilot, prediction.PILOT, 8, 100, 0)  # compiles
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.monotonic()
    run = prediction.predict(pilot, clients, at_once, updates, 0)
    seconds = time.monotonic() - began
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1e6
    return seconds, grown, float(run.metrics["time"][-1]) / updates


def part(options: Any) -> dict[str, Any]:
    """Simulate in a process of its own, so that its memory can be told apart."""
    rows = {}
    for clients, at_once in ((1000, 8), (CLIENTS, AT_ONCE)):
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            seconds, memory, pace = pool.submit(simulated, clients, at_once, UPDATES).result()
        rows[f"{clients:,} clients, {at_once} in flight"] = {
            "seconds": round(seconds, 2),
            "gigabytes": round(memory, 3),
            "simulated seconds per update": pace,
        }
        print(f"   {clients:,} clients, {at_once} in flight, {UPDATES:,} updates: {seconds:.1f} s, {memory:.2f} GB")
    return {"updates": UPDATES, "simulations": rows}
