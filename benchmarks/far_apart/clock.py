"""Loss over the seconds of real runs: four processes that sleep as long as slow machines would compute.

Contestants take turns, seed by seed. A simulation predicts how long each of our runs takes, from the seconds per
mini-batch that a short pilot run measures.
"""

from __future__ import annotations

import math
import statistics
from typing import Any

import ddp
import quality
import setting

import asyncsgd as asgd

UNIT = 0.02
"""Seconds of one unit of time: the fastest worker takes 11.6 ms for a mini-batch."""
SEEDS = (0, 1)
MORE = 1.5
"""What a contestant that has time left gets in place of the same tokens."""
LONGER = f"{setting.EQUAL}, {MORE:g} times the tokens"
EVALUATIONS = 30
PILOT, WARM = 400, 3
"""Gradients of the pilot run, and how many of each worker do not count, because it still loads code and data."""
WANTED_SOONER, WANTED_PREDICTION = 2.0, 0.15

Curve = list[tuple[float, float]]


def engine(unit: float) -> asgd.engines.Engine:
    """Return worker processes that take as long for a mini-batch as the setting says."""
    return asgd.engines.processes(setting.WORKERS, threads=1, min_seconds=[unit * each for each in setting.SECONDS])


def contestants() -> dict[str, tuple[asgd.Method, int]]:
    """Return the methods to run, each with its number of mini-batches."""
    known, more = setting.contestants(), int(MORE * setting.BUDGET)
    names = ("diloco", "async_diloco", setting.EQUAL, setting.SMALL, "plain")
    return {name: (known[name], setting.BUDGET) for name in names} | {LONGER: (setting.equal_steps(budget=more), more)}


def real(method: asgd.Method, budget: int, seed: int, unit: float) -> tuple[Curve, asgd.Run]:
    """Return (seconds, loss) along a real run, and the run. Seconds count from the first job."""
    task, every = setting.task(seed, budget), max(1, quality.arrivals(method, budget) // EVALUATIONS)
    run = asgd.train(task, method, engine(unit), epochs=1, every=every, seed=seed, progress=False)
    begin = float(run.trace.jobs.assigned_time.min())
    pairs = zip(run.metrics["time"], run.metrics["loss"], strict=True)
    return [(float(seconds) - begin, float(loss)) for seconds, loss in pairs], run


def pilot(unit: float) -> asgd.durations.Durations:
    """Return the durations of mini-batches that a few gradients of each worker show."""
    options = {"iterations": PILOT, "every": PILOT, "progress": False}
    run = asgd.train(setting.task(0), asgd.async_sgd(1e-9), engine(unit), **options)
    return asgd.durations.from_trace(run.trace, skip=WARM)


def seconds_of(trace: asgd.Trace) -> float:
    """Return the seconds from the first job to the last update."""
    return float(trace.time[-1] - trace.jobs.assigned_time.min())


def reached(curve: Curve, loss: float) -> float:
    """Return the seconds after which a run has reached a loss; infinite if it never has."""
    return next((seconds for seconds, value in curve if value <= loss), math.inf)


def part(options: Any) -> dict[str, Any]:
    """Measure all contestants in turns, and return the figures."""
    setting.use(setting.QUARTER)
    unit, ours = options.unit or UNIT, contestants()
    measured = pilot(unit)
    predictions = {name: quality.predicted(*each, measured) for name, each in ours.items()}
    curves: dict[str, list[Curve]] = {name: [] for name in ("ddp", *ours)}
    took: dict[str, list[float]] = {name: [] for name in ours}
    for seed in SEEDS[: options.rounds]:
        curves["ddp"].append(ddp.real(seed, setting.PEAKS[setting.BUDGET]["ddp"], unit))
        print(f"   ddp, seed {seed}: {curves['ddp'][-1][-1]}", flush=True)
        for name, (method, budget) in ours.items():
            curve, run = real(method, budget, seed, unit)
            curves[name].append(curve)
            took[name].append(seconds_of(run.trace))
            print(f"   {name}, seed {seed}: loss {curve[-1][1]:.4f} after {took[name][-1]:.1f} s", flush=True)
    figures: dict[str, Any] = {}
    for name, found in curves.items():
        pairs = zip(curves["diloco"], found, strict=True)
        sooner = [slow[-1][0] / reached(curve, slow[-1][1]) for slow, curve in pairs]
        figures[name] = {
            "losses": [round(curve[-1][1], 4) for curve in found],
            "seconds": [round(curve[-1][0], 2) for curve in found],
            "loss_of_diloco_sooner": [round(ratio, 2) for ratio in sooner],
            "curves": [[[round(s, 2), round(v, 4)] for s, v in curve] for curve in found],
        }
    for name in ours:
        figures[name]["predicted_seconds"] = round(predictions[name], 2)
        figures[name]["predicted_over_real"] = round(predictions[name] / statistics.mean(took[name]), 3)
    # A run that uses more tokens in less time counts too: the goal is about seconds. The figures show both.
    least = max(min(figures[name]["loss_of_diloco_sooner"]) for name in (setting.EQUAL, LONGER))
    off = max(abs(figures[name]["predicted_over_real"] - 1) for name in ours)
    goals = {
        "sooner": [least, WANTED_SOONER, least >= WANTED_SOONER],
        "prediction": [round(off, 3), WANTED_PREDICTION, off <= WANTED_PREDICTION],
    }
    print(f"   {goals}", flush=True)
    return {"unit_seconds": unit, "batches": setting.QUARTER, "contestants": figures, "goals": goals}
