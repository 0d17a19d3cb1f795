"""Claim 6: asynchronous SGD is always faster than mini-batch SGD, whatever the delays.

We simulate the seconds to a target for ten patterns of durations, with and without noise, and tune the step for each
method, pattern and noise. A speed-up is a product: the ratio of gradients per second times the ratio of gradients
needed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from asyncsgd import methods
from asyncsgd.core.dispatch import AlwaysBusy, Batch
from asyncsgd.experiments.common import Claim, Figure, Table, Verdict, tune
from asyncsgd.simulation import durations, grid
from asyncsgd.simulation.durations import Durations
from asyncsgd.simulation.schedule import schedule
from asyncsgd.tasks import quadratic

WORKERS = 16
NOISES = {"no noise": (0.0, 1e-6, 5_000), "strong noise": (1.0, 5e-2, 15_000)}
"""σ, the gradient norm to reach (mean of the last two batches), and gradients allowed."""
SEEDS = range(8)
STEPS = 37
WAITING = 1.25
"""Workers of mini-batch SGD count as waiting if this many times its gradients per second are possible."""
CONSTANT = 0.5
"""The lowest speed-up that still counts as "up to a constant"."""


def patterns(n: int = WORKERS) -> dict[str, Durations]:
    """Return ten kinds of durations for n workers; a typical job takes a second."""
    half = n // 2
    return {
        "all equal": durations.fixed(1.0, workers=n),
        "equal ± 10 %": durations.uniform(0.9, 1.1, workers=n),
        "one 5× faster": durations.fixed([1.0] * (n - 1) + [0.2]),
        "spread 1 s to 4 s": durations.fixed(np.linspace(1.0, 4.0, n)),
        "half 4× slower": durations.fixed([1.0] * half + [4.0] * (n - half)),
        "one 10× slower": durations.fixed([1.0] * (n - 1) + [10.0]),
        "exponential": durations.exponential(1.0, workers=n),
        "log-normal, σ = 1": durations.lognormal(1.0, 1.0, workers=n),
        "Pareto, shape 1.2": durations.pareto(1.0, 1.2, workers=n),
        "outages, 10 %": durations.fixed(1.0, workers=n).with_outages(every=90.0, lasting=10.0, until=5e4),
    }


@dataclass(frozen=True)
class Cell:
    """Ratios of mini-batch to asynchronous SGD, for one pattern and noise. Above 1: asynchronous SGD is better."""

    pattern: str
    noise: str
    speedup: float
    """Mean seconds of mini-batch over mean seconds of delay-adaptive asynchronous SGD."""
    low: float
    high: float
    """The same ratio of single seeds, smallest and largest."""
    constant: float
    """The speed-up of asynchronous SGD with a constant step."""
    throughput: float
    """Gradients per second, asynchronous over mini-batch."""
    possible: float
    """What that would be if no worker ever waited: from the durations alone, whatever the methods do."""
    gradients: float
    """Gradients needed, mini-batch over asynchronous."""
    seconds: tuple[float, float]
    """Mini-batch, delay-adaptive."""


def measure(pattern: str, speeds: Durations, noise: str, *, seeds: Sequence[int] = SEEDS, steps: int = STEPS) -> Cell:
    """Tune both methods on the same durations, task and seeds."""
    n = speeds.workers
    sigma, target, iterations = NOISES[noise]
    task = quadratic(dim=10, eigenvalues=(0.1, 1.0), workers=n, noise=sigma, seed=1)
    stepsizes = grid(0.04 / n, 5.0 / n, steps) if sigma else grid(0.3 / n, 9.0 / n, steps)
    time, count = {}, {}
    for recipe in (methods.minibatch_sgd, methods.async_sgd, methods.delay_adaptive):
        found = tune(
            task, recipe, speeds, stepsizes=stepsizes, seeds=seeds, iterations=iterations, target=target, window=2 * n
        )
        best = int(np.argmin(found.time.mean(axis=1)))
        time[recipe], count[recipe] = found.time[best], found.iterations[best]
    waiting, constant, adaptive = time.values()
    needed, _, needed_adaptive = count.values()
    speedup, gradients = float(waiting.mean() / adaptive.mean()), float(needed.mean() / needed_adaptive.mean())
    single = waiting / adaptive
    return Cell(
        pattern=pattern,
        noise=noise,
        speedup=speedup,
        low=float(single.min()),
        high=float(single.max()),
        constant=float(waiting.mean() / constant.mean()),
        throughput=speedup / gradients,
        possible=possible(speeds, 200 * n),
        gradients=gradients,
        seconds=(float(waiting.mean()), float(adaptive.mean())),
    )


def possible(speeds: Durations, arrivals: int) -> float:
    """Return gradients per second of workers that never wait, over those of workers that wait for the slowest."""
    busy, waiting = (schedule(rule, speeds, iterations=arrivals).arrival_time[-1] for rule in (AlwaysBusy(), Batch()))
    return float(waiting / busy)


def judge(cells: Sequence[Cell]) -> tuple[Verdict, str]:
    """Return "holds" if every pattern is faster; "with a correction" if only those without waiting are slower."""
    slower = [cell for cell in cells if not round(cell.speedup, 2) > 1]  # as shown; NaN: neither reached the target
    if not slower:
        return Verdict.HOLDS, ""
    where = ", ".join(f"{cell.pattern} with {cell.noise} ({cell.speedup:.2f}×)" for cell in slower)
    if not all(cell.speedup >= CONSTANT and cell.possible < WAITING for cell in slower):
        return (
            Verdict.FAILS,
            f"Not faster than mini-batch for {where}, and not only where no worker waits, or by more than a constant.",
        )
    return Verdict.CORRECTED, (
        f"Not faster for {where}. The two rates are equal up to a constant, and the constant is not 1: gradients of "
        "equal workers all arrive one batch late, which lowers the largest stable step from 2/L per batch towards "
        f"π/(2L), a factor π/4 = {np.pi / 4:.2f}. Where workers do not wait for each other, nothing makes up for "
        "that. Read the claim as: never slower by more than a constant factor, and faster as soon as workers wait."
    )


def check(progress: Callable[[float], None]) -> Claim:
    """Measure every pattern with and without noise."""
    wanted = [(name, speeds, noise) for noise in NOISES for name, speeds in patterns().items()]
    cells = []
    for done, one in enumerate(wanted):
        cells.append(measure(*one))
        progress((done + 1) / len(wanted))
    verdict, why = judge(cells)
    faster = [cell for cell in cells if round(cell.speedup, 2) > 1]
    best, worst = max(cells, key=lambda cell: cell.speedup), min(cells, key=lambda cell: cell.speedup)
    return Claim(
        number=6,
        title="Asynchronous against mini-batch SGD in simulated time",
        paper="Asynchronous SGD is always faster than mini-batch SGD, regardless of the delay pattern: both need "
        "equally many gradients (up to constants), and no worker waits.",
        measured=f"Faster in {len(faster)} of {len(cells)} cases, from {worst.speedup:.2f}× ({worst.pattern}, "
        f"{worst.noise}) to {best.speedup:.1f}× ({best.pattern}, {best.noise}); steps tuned for each, {WORKERS} "
        "workers.",
        verdict=verdict,
        summary=f"Faster in {len(faster)} of {len(cells)} cases; {worst.speedup:.2f} to {best.speedup:.1f} times as "
        "fast over all. Not faster for: "
        + (", ".join(f"{c.pattern}, {c.noise} ({c.speedup:.2f})" for c in cells if c not in faster) or "none"),
        refuted_by="A pattern of durations for which asynchronous SGD is not faster although workers of mini-batch SGD "
        f"wait (at least {WAITING:g} times its gradients per second are possible), or is less than {CONSTANT:g} times "
        "as fast; each method at its own best step.",
        why=why,
        values={"workers": WORKERS, "cells": [asdict(cell) for cell in cells]},
        tables=(
            Table(
                "Mini-batch against delay-adaptive asynchronous SGD, both at their best step; above 1 asynchronous "
                "is better. Speed-up = gradients per second × gradients needed.",
                HEADINGS,
                tuple(_cells(cell) for cell in cells),
            ),
        ),
        figures=(
            Figure(
                "claim06-speed-up",
                "Seconds of mini-batch SGD over seconds of asynchronous SGD to the same target, each at its best "
                f"step; {WORKERS} workers. Bars: smallest and largest over the seeds; grey: mini-batch is faster.",
                partial(draw, cells=cells),
                columns=2,
                height=3.8,
            ),
        ),
    )


HEADINGS = (
    *("durations", "noise", "gradients per second", "gradients needed", "speed-up", "range over seeds"),
    *("speed-up with constant step", "mini-batch (s)", "asynchronous (s)"),
)


def _cells(cell: Cell) -> tuple[str, ...]:
    ratios = (f"{ratio:.2f}" for ratio in (cell.throughput, cell.gradients, cell.speedup))
    seconds = (f"{float(f'{seconds:.3g}'):g}" for seconds in cell.seconds)  # enough digits for the speed-up beside them
    return (cell.pattern, cell.noise, *ratios, f"{cell.low:.2f} to {cell.high:.2f}", f"{cell.constant:.2f}", *seconds)


def draw(fig: Any, axes: Any, cells: Sequence[Cell]) -> None:
    """Draw one panel per noise, with one row per pattern and the speed-up to the right."""
    names = list(dict.fromkeys(cell.pattern for cell in cells))
    top = 1.3 * max(cell.high for cell in cells)
    for ax, noise in zip(axes, dict.fromkeys(cell.noise for cell in cells), strict=True):
        some = [cell for cell in cells if cell.noise == noise]
        y = np.array([names.index(cell.pattern) for cell in some])
        mean = np.array([cell.speedup for cell in some])
        # A ratio of means can lie outside the ratios of single seeds, and a bar cannot have a negative length.
        reach = np.maximum(0.0, [mean - [cell.low for cell in some], [cell.high for cell in some] - mean])
        ax.axvspan(0.1, 1.0, color="#777777", alpha=0.12, linewidth=0)  # here mini-batch is faster
        ax.errorbar(mean, y - 0.12, xerr=reach, linestyle="", capsize=2, label="delay-adaptive")
        ax.plot([cell.constant for cell in some], y + 0.2, linestyle="", markerfacecolor="none", label="constant step")
        ax.set(xscale="log", xlim=(0.6, top), title=noise, xlabel="speed-up over mini-batch (×)")
        ticks = [t for t in (1, 2, 5, 10, 20, 50) if t < top]
        ax.set_xticks(ticks, [f"{t}×" for t in ticks])
        ax.minorticks_off()
        ax.set_yticks(range(len(names)), names if ax is axes[0] else [""] * len(names))
        ax.invert_yaxis()
    axes[1].legend(loc="upper right")
