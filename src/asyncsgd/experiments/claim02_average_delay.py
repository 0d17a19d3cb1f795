"""Claim 2: Remark 5, the average delay is the average concurrency.

We check the integer identity behind it, Σ_t (τ_t + 1) + Σ_{in flight} (T - s_i + 1) = Σ_t |C_t|, and the remark's own
formula, over many dispatch rules, kinds of durations, lengths of runs and seeds. Nothing here uses ``trace.delays``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd import methods
from asyncsgd.core.method import Method
from asyncsgd.experiments.common import Claim, Figure, Table, Verdict
from asyncsgd.simulation import durations, simulate
from asyncsgd.simulation.durations import Durations
from asyncsgd.tasks import quadratic
from asyncsgd.trace import Trace

SIZES = (1, 2, 5, 10, 30, 100)
"""Numbers of workers, and of jobs in flight."""
LENGTHS = (30, 300, 3000)
"""T."""
SEEDS = range(2)


def dispatches(n: int) -> dict[str, Method]:
    """Return dispatch rules with at most n jobs in flight."""
    return {
        "always busy": methods.async_sgd(0.01),
        "mini-batch": methods.minibatch_sgd(0.01),
        "uniform (Algorithm 2)": methods.federated_async_sgd(0.01, concurrency=n),
        "shuffled": methods.federated_async_sgd(0.01, concurrency=n, order="shuffled"),
    }


def patterns(n: int) -> dict[str, Durations]:
    """Return kinds of durations for n workers; a typical job takes a second."""
    return {
        "equal": durations.fixed(1.0, workers=n),
        "one 20× slower": durations.fixed([1.0] * (n - 1) + [20.0]),
        "exponential": durations.exponential(1.0, workers=n),
        "Pareto, shape 1.2": durations.pareto(1.0, 1.2, workers=n),
    }


@dataclass(frozen=True)
class Row:
    """One run."""

    workers: int
    dispatch: str
    jobs: int
    """Σ (τ_t + 1) over the arrivals and Σ (T - s_i + 1) over what is in flight, from the jobs."""
    active: int
    """Σ |C_t| for t = 0..T, as the server counted."""
    concurrency: float
    """τ̄_C."""
    average: float
    """τ_avg with τ = t - s."""
    remark: float
    """What Remark 5 says it is."""
    expected: float
    """By how much the remark is too large if delays that start at 1, and j_T, are the only reasons."""


def measure(trace: Trace, workers: int, dispatch: str) -> Row:
    """Count both sides of the identity. The trace goes one arrival further than T, so that j_T is known."""
    last = trace.iterations - 1
    before = trace.until(last).jobs
    flying = np.flatnonzero(before.in_flight)
    delays = last - before.assigned_iteration[flying]
    omitted = int(delays[flying == trace.job[last]][0])
    divisor = last + len(flying) - 1
    total = int(trace.delay[:last].sum() + delays.sum())
    active = int(trace.concurrency.sum())
    return Row(
        workers=workers,
        dispatch=dispatch,
        jobs=total + last + len(flying),
        active=active,
        concurrency=active / (last + 1),
        average=(total - omitted) / divisor,
        remark=active / divisor,
        expected=(last + len(flying) + omitted) / divisor,
    )


def judge(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """Return "holds" if the formula is exact; "with a correction" if the integers are and explain the difference."""
    if all(abs(row.remark - row.average) < 1e-9 for row in rows):
        return Verdict.HOLDS, ""
    wrong = sum(row.jobs != row.active for row in rows)
    unexplained = sum(abs(row.remark - row.average - row.expected) > 1e-9 for row in rows)
    if wrong or unexplained:
        return Verdict.FAILS, (
            f"The delays do not add up to the concurrency in {wrong} runs, and what the remark is too large by is not "
            f"explained in {unexplained}."
        )
    return Verdict.CORRECTED, (
        "The proof starts every delay at 1, although x^(t-τ_t) counts from 0, and the definition leaves j_T out of "
        "τ_avg while the proof keeps it. Together that makes (T + |C_T| + τ_{j_T}) / (T + |C_T| - 1), which is the "
        "difference in every run. The integers always add up. The order, τ_avg = O(τ̄_C), stands; with few jobs in "
        "flight the formula is far off: it gives sequential SGD, where no gradient is late, an average delay of 1."
    )


def check(
    progress: Callable[[float], None],
    sizes: Sequence[int] = SIZES,
    lengths: Sequence[int] = LENGTHS,
    seeds: Sequence[int] = SEEDS,
) -> Claim:
    """Measure all combinations."""
    rows: list[Row] = []
    for done, n in enumerate(sizes, start=1):
        task = quadratic(dim=1, workers=n)
        for dispatch, method in dispatches(n).items():
            for speeds in patterns(n).values():
                for length in lengths:
                    runs = [simulate(task, method, speeds, iterations=length + 1, seed=seed) for seed in seeds]
                    rows += [measure(run.trace, n, dispatch) for run in runs]
        progress(done / len(sizes))
    verdict, why = judge(rows)
    exact = sum(row.jobs == row.active for row in rows)
    off = [row.remark - row.average for row in rows]
    groups = [_group(rows, n) for n in sizes]
    return Claim(
        number=2,
        title="Remark 5: the average delay is the average concurrency",
        paper="τ_avg = (T + 1)/(T + |C_T| - 1) · τ̄_C in every run, whichever workers get the jobs.",
        measured=f"The integer identity is exact in {exact} of {len(rows)} runs. The remark's formula is too large in "
        f"{sum(value > 1e-9 for value in off)}: by {min(off):.3f} to {max(off):.3f} iterations, "
        f"the median is {np.median(off):.3f}.",
        verdict=verdict,
        summary=f"The integer identity is exact in {exact} of {len(rows)} runs; the formula is too large by "
        f"{min(off):.3f} to {max(off):.3f} iterations",
        refuted_by="A run whose delays, counted as integers from its jobs, do not add up to its concurrency; or a run "
        "in which the formula is off by anything but (T + |C_T| + τ_{j_T})/(T + |C_T| - 1).",
        why=why,
        values={"runs": len(rows), "identity_exact": exact, "too_large_by": [min(off), max(off)], "groups": groups},
        tables=(
            Table(
                f"Four ways to hand out jobs, four kinds of durations, T = {', '.join(map(str, lengths))}, "
                f"{len(seeds)} seeds.",
                ("workers", "runs", "identity exact", "τ_avg, median", "Remark 5, median", "too large by (iterations)"),
                tuple(
                    (
                        g["workers"],
                        g["runs"],
                        g["identity_exact"],
                        *(f"{g[key]:.2f}" for key in ("average", "remark")),
                        "{:.3f} to {:.3f}".format(*g["too_large_by"]),
                    )
                    for g in groups
                ),
            ),
        ),
        figures=(
            Figure(
                "claim02-average-delay",
                "Left: the average delay of every run is about one less than the remark says. Right: the difference as "
                "a share of the average delay. Sequential runs, whose average delay is 0 and not 1, are left out.",
                lambda fig, axes: _draw(axes, rows),
                columns=2,
            ),
        ),
    )


def _group(rows: Sequence[Row], workers: int) -> dict[str, Any]:
    mine = [row for row in rows if row.workers == workers]
    off = [row.remark - row.average for row in mine]
    return {
        "workers": workers,
        "runs": len(mine),
        "identity_exact": sum(row.jobs == row.active for row in mine),
        "average": float(np.median([row.average for row in mine])),
        "remark": float(np.median([row.remark for row in mine])),
        "too_large_by": [min(off), max(off)],
    }


def _draw(axes: Any, rows: Sequence[Row]) -> None:
    left, right = axes
    late = [row for row in rows if row.average > 0]
    for place, name in enumerate(dispatches(1)):
        mine = [row for row in late if row.dispatch == name]
        look: dict[str, Any] = {"linestyle": "", "markersize": 6 - 1.2 * place, "fillstyle": "none", "label": name}
        left.loglog([row.remark for row in mine], [row.average for row in mine], **look)
        right.loglog([row.concurrency for row in mine], [100 * (row.remark / row.average - 1) for row in mine], **look)
    line = np.geomspace(1.2, max(row.remark for row in rows), 400)
    left.plot(line, line, "--", color="C6", marker="", label="as Remark 5 says")
    left.plot(line, line - 1, color="C6", marker="", linewidth=1, label="one less")
    right.plot(line, 100 / (line - 1), color="C6", marker="", linewidth=1, label="one iteration")
    delay = r"$\tau_\mathrm{avg}$"
    left.set(xlabel=f"{delay} by Remark 5 (iterations)", ylabel=f"{delay} measured (iterations)")
    right.set(xlabel="average concurrency (jobs)", ylabel=f"Remark 5 too large by (% of {delay})")
    left.legend(loc="lower right")
