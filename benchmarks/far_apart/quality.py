"""Loss after equal tokens, and bytes, in simulated time.

A simulation computes the same numbers as a real run whose jobs arrive in the same order, so many seeds are cheap:
nobody sleeps. Each seed has an initial model and an order of the rows of its own, which all contestants share.
"""

from __future__ import annotations

import functools
import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import ddp
import setting

import asyncsgd as asgd

SEEDS = (0, 1, 2, 3, 4)
WANTED_UP, WANTED_BOTH, WANTED_LOSS = 300, 100, 1.02


def timing(method: asgd.Method, budget: int, speeds: asgd.durations.Durations) -> asgd.Trace:
    """Return who finishes when until the tokens are used up: that depends on speeds, not on the numbers of a model."""
    tiny = asgd.tasks.quadratic(dim=1, workers=setting.WORKERS, noise=0.0)
    work = asgd.async_sgd(1.0).local(method.work.steps, 1e-9, per_worker=method.work.per_worker).work
    method = method.using(optimizer=asgd.optimizers.sgd(), transforms=(), work=work, step=asgd.steps.constant(1e-9))
    most = budget if work.steps == 1 else 3 * budget // work.steps  # jobs of slow workers are shorter
    run = asgd.simulate(tiny, method, speeds, iterations=most, every=most)
    used = run.trace.arrivals().steps.cumsum()
    return run.trace.until(int((used < budget).sum()) + 1)


@functools.cache
def arrivals(method: asgd.Method, budget: int) -> int:
    """Return how many updates arrive until the tokens are used up."""
    return timing(method, budget, asgd.durations.fixed(setting.SECONDS)).iterations


def predicted(method: asgd.Method, budget: int, speeds: asgd.durations.Durations) -> float:
    """Return the simulated seconds until the tokens are used up."""
    return float(timing(method, budget, speeds).time[-1])


def simulate(method: asgd.Method, seed: int, every: int | None = None) -> asgd.Run:
    """Simulate a method until the tokens are used up."""
    iterations, speeds = arrivals(method, setting.BUDGET), asgd.durations.fixed(setting.SECONDS)
    return asgd.simulate(
        setting.task(seed), method, speeds, iterations=iterations, every=every or iterations, seed=seed
    )


def loss(method: asgd.Method, seed: int) -> float:
    """Return the loss at the end of a simulation; infinite if it diverged."""
    run = simulate(method, seed)
    return math.inf if run.diverged is not None else float(run.metrics["loss"][-1])


def simulated(name: str, seed: int) -> dict[str, Any]:
    """Return the loss, the time and the bytes of one contestant."""
    run = simulate(setting.contestants()[name], seed)
    return {
        "loss": float(run.metrics["loss"][-1]),
        "time": float(run.metrics["time"][-1]),
        "updates": run.trace.iterations,
        "bytes_up": run.bytes_up,
        "bytes_both": run.bytes_up + run.bytes_down,
    }


def of_ddp(seed: int) -> dict[str, Any]:
    """Return the same of DistributedDataParallel, which waits for the slowest worker at each step."""
    steps = setting.BUDGET // setting.WORKERS
    sent = 4 * len(setting.task(seed).initial()) * setting.BUDGET  # 4 bytes per parameter, rank and step
    loss = ddp.alone(seed, setting.PEAKS[setting.BUDGET]["ddp"])
    seconds = steps * max(setting.SECONDS)
    return {"loss": loss, "time": seconds, "updates": setting.BUDGET, "bytes_up": sent, "bytes_both": 2 * sent}


def _one(name: str, seed: int) -> dict[str, Any]:
    return of_ddp(seed) if name == "ddp" else simulated(name, seed)


def part(options: Any) -> dict[str, Any]:
    """Simulate all contestants with all seeds, and return the figures."""
    names = ["ddp", *setting.contestants()]
    seeds = SEEDS[: options.seeds]
    figures: dict[str, Any] = {}
    setting.use(setting.WHOLE)
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        asked = {(name, seed): pool.submit(_one, name, seed) for seed in seeds for name in names}
        for name in names:
            rows = [asked[name, seed].result() for seed in seeds]
            losses = [row["loss"] for row in rows]
            figures[name] = {
                "loss": round(statistics.mean(losses), 4),
                "standard_error": _error(losses),
                "losses": [round(loss, 4) for loss in losses],
                **{key: rows[0][key] for key in ("updates", "bytes_up", "bytes_both")},
                "time": round(rows[0]["time"], 1),
            }
            print(f"   {name}: {figures[name]}", flush=True)
    first, base = figures["ddp"], figures[setting.EQUAL]
    for row in figures.values():
        row["fewer_bytes_up"] = round(first["bytes_up"] / row["bytes_up"], 1)
        row["fewer_bytes_both"] = round(first["bytes_both"] / row["bytes_both"], 1)
        row["loss_over_ddp"] = round(row["loss"] / first["loss"], 4)
        row["loss_minus_float32"] = round(row["loss"] - base["loss"], 4)
        row["error_of_difference"] = _error([a - b for a, b in zip(row["losses"], base["losses"], strict=True)])
    best, int8 = figures[setting.SMALL], figures[setting.INT8]
    goals = {
        "bytes_up": [best["fewer_bytes_up"], WANTED_UP, best["fewer_bytes_up"] >= WANTED_UP],
        "bytes_both": [best["fewer_bytes_both"], WANTED_BOTH, best["fewer_bytes_both"] >= WANTED_BOTH],
        "loss_over_ddp": [best["loss_over_ddp"], WANTED_LOSS, best["loss_over_ddp"] <= WANTED_LOSS],
        "int8_within_one_error": [
            int8["loss_minus_float32"],
            base["standard_error"],
            abs(int8["loss_minus_float32"]) <= base["standard_error"],
        ],
    }
    print(f"   {goals}", flush=True)
    return {"seeds": list(seeds), "contestants": figures, "goals": goals}


def _error(values: list[float]) -> float:
    """Return the standard error of a mean."""
    return round(statistics.stdev(values) / math.sqrt(len(values)), 4) if len(values) > 1 else math.nan
