"""Simulated time to an accuracy. Every contestant tries twelve pairs of step sizes with the same seeds."""

from __future__ import annotations

import math
import statistics
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import setting
from setting import CONTESTANTS, LEVELS, Measured, Setting

TUNING = (100, 101)
"""Seeds for the tuning; none of them is measured afterwards."""


def tuned(
    name: str, where: Setting, seeds: tuple[int, ...] = TUNING, local: tuple[float, ...] = setting.LOCAL
) -> list[tuple[float, float]]:
    """Return the (client's, server's) step sizes with the least median time, for each level."""
    tried = {
        pair: [setting.measure(method, where, seed) for seed in seeds]
        for pair, method in setting.methods(name, where, local).items()
    }

    def score(pair: tuple[float, float], level: int) -> tuple[float, float]:
        runs = tried[pair]
        return statistics.fmean(run.times[level] for run in runs), -statistics.fmean(run.last for run in runs)

    return [min(tried, key=lambda pair: score(pair, level)) for level in range(len(LEVELS))]


def times(name: str, where: Setting, seeds: int) -> dict[str, Any]:
    """Tune a contestant, measure it with seeds 0, 1, ..., and return the figures of each level."""
    pairs = tuned(name, where)
    found: dict[str, Any] = {}  # "steps" are the client's and the server's step sizes
    for level, pair in enumerate(pairs):
        method = setting.methods(name, where)[pair]
        runs: list[Measured] = [setting.measure(method, where, seed) for seed in range(seeds)]
        found[f"{LEVELS[level]:.0%}"] = {
            "steps": pair,
            "times": [run.times[level] if math.isfinite(run.times[level]) else None for run in runs],
            "updates per unit of time": round(statistics.fmean(run.rate for run in runs), 3),
            "accuracy at the end": round(statistics.fmean(run.last for run in runs), 4),
        }
    return found


def median(values: list[float | None]) -> float:
    """Return the median time; None means that the level was not reached."""
    return statistics.median(math.inf if value is None else value for value in values)


def ratios(of: dict[str, Any], to: dict[str, Any], level: str) -> list[float]:
    """Return how many times sooner a contestant gets to a level than another one, seed by seed, sorted."""
    pairs = zip(to[level]["times"], of[level]["times"], strict=True)
    return sorted(
        (math.inf if base is None else base) / seconds if seconds is not None else (math.nan if base is None else 0.0)
        for base, seconds in pairs
    )


def part(options: Any) -> dict[str, Any]:
    """Tune and measure all contestants."""
    with ProcessPoolExecutor(options.processes, mp_context=get_context("spawn")) as pool:
        asked = {name: pool.submit(times, name, Setting(), options.seeds) for name in CONTESTANTS}
        found = {name: answer.result() for name, answer in asked.items()}
    for level in next(iter(found.values())):
        for name, rows in found.items():
            row = rows[level]
            sooner = ratios(rows, found["FedAvg"], level)
            row["times as soon as FedAvg"] = [round(value, 3) for value in sooner]
            pace, last, steps = row["updates per unit of time"], row["accuracy at the end"], row["steps"]
            print(
                f"   {level}  {name:22} {median(row['times']):8.1f}  {statistics.median(sooner):5.2f} times as soon "
                f"({sooner[0]:.2f} to {sooner[-1]:.2f})  {pace:6.2f} updates per unit  {last:.3f} at the end  {steps}",
                flush=True,
            )
    return {"setting": Setting()._asdict(), "seeds": options.seeds, "contestants": found}
