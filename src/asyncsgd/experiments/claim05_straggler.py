"""Claim 5: two workers, the second of which answers only at the last iteration T.

The average delay stays a small constant while τ_max = T. A step chosen for τ_max alone, 1/(2Lτ_max), makes no progress;
a step chosen for √(τ_C τ_max) (Theorem 1) or for τ_C (Theorem 2) reaches any accuracy.

The claim is about what each rate guarantees, so each rate chooses its step. If the late gradient does no harm, the mean
of ‖∇f‖² is about r0/(ηT), which gives the exponents 0, -1/2 and -1. A late gradient that does harm changes them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from asyncsgd import methods
from asyncsgd.core.method import Method
from asyncsgd.experiments.common import Claim, Figure, Table, Verdict, exponent
from asyncsgd.simulation import Run, durations, simulate
from asyncsgd.tasks import quadratic
from asyncsgd.theory import Bound, theorem1, theorem2

LENGTHS = (100, 1_000, 10_000, 100_000)
"""T."""
RULES = ("τ_max alone", "Theorem 1", "Theorem 2")
EXPECTED = {"τ_max alone": 0.0, "Theorem 1": -0.5, "Theorem 2": -1.0}
"""How the mean of ‖∇f‖² should fall with T: the exponent."""
CLOSE = 0.15


@dataclass(frozen=True)
class Row:
    """One rule at one T."""

    rule: str
    iterations: int
    average_delay: float
    remark: float
    """τ_avg by Remark 5's formula."""
    maximum_delay: int
    stepsize: float
    measured: float
    """The (weighted) mean of ‖∇f(x_t)‖², over ‖∇f(x_0)‖²."""
    bound: float


def measure(iterations: int, rule: str) -> Row:
    """Run one rule where the only gradient of the second worker, computed at x_0, arrives at t = T."""
    task = quadratic(dim=10, workers=2)
    gap, first = task.evaluate(task.initial())["loss"], task.evaluate(task.initial())["gradient_norm"] ** 2
    known = {"smoothness": task.smoothness, "gap": gap, "noise_variance": 0.0}
    speeds = durations.fixed([1.0, iterations + 0.5])

    def go(method: Method) -> Run:
        return simulate(task, method, speeds, iterations=iterations + 1, every=1)

    bound: Bound
    if rule == "Theorem 2":
        bound = theorem2(2, **known)
        run = go(methods.delay_adaptive(bound.max_step))
        weights = run.trace.step
        bound = theorem2(run.trace, **known, weights=weights / bound.max_step)
    else:
        # An earlier rate in τ_max alone is Theorem 1 with τ_max in place of √(τ_C τ_max).
        bound = theorem1((2, iterations) if rule == "Theorem 1" else (iterations, iterations), **known)
        run = go(methods.async_sgd(bound.max_step))
        weights = np.ones(iterations + 2)
    squares = run.metrics["gradient_norm"][: len(weights)] ** 2
    return Row(
        rule=rule,
        iterations=iterations,
        average_delay=run.trace.delays.average,
        remark=run.trace.remark5().paper,
        maximum_delay=run.trace.delays.maximum,
        stepsize=bound.max_step,
        measured=float(weights @ squares / weights.sum() / first),
        bound=bound.at(iterations + 1, bound.max_step) / first,
    )


def judge(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """Return "holds" if τ_avg = 2, τ_max = T and means fall as promised; "with a correction" if just τ_avg differs."""
    slopes = exponents(rows)
    above = sum(not row.measured <= row.bound for row in rows)
    odd = [rule for rule, slope in slopes.items() if not abs(slope - EXPECTED[rule]) <= CLOSE]
    delays = [row.average_delay for row in rows]
    if above or odd or any(row.maximum_delay != row.iterations for row in rows) or max(delays) > 3:
        return Verdict.FAILS, (
            f"τ_avg goes up to {max(delays):.2f}; the means do not fall as they should for {odd}; {above} exceed their "
            "bound."
        )
    if all(abs(delay - 2) < 0.05 for delay in delays):
        return Verdict.HOLDS, ""
    last = max(rows, key=lambda row: row.iterations)
    return Verdict.CORRECTED, (
        f"With τ = t - s the fast worker's delays are 0, and τ_avg is {last.average_delay:.3f}, not 2. The 2 is what "
        f"Remark 5's formula gives ({last.remark:.3f}), which counts every delay one higher. The conclusion stands."
    )


def exponents(rows: Sequence[Row]) -> dict[str, float]:
    """Return, per rule, the exponent with which the measured mean falls with T."""
    found = {}
    for rule in RULES:
        mine = [row for row in rows if row.rule == rule]
        found[rule] = exponent([row.iterations for row in mine], [row.measured for row in mine])
    return found


def check(progress: Callable[[float], None], lengths: Sequence[int] = LENGTHS) -> Claim:
    """Measure all rules at all T."""
    rows: list[Row] = []
    for iterations in lengths:
        for rule in RULES:
            rows.append(measure(iterations, rule))
            progress(len(rows) / (len(lengths) * len(RULES)))
    verdict, why = judge(rows)
    slopes = exponents(rows)
    last = rows[-1]
    ends = {row.rule: row.measured for row in rows if row.iterations == lengths[-1]}
    return Claim(
        number=5,
        title="Two workers, one of which answers only at the end",
        paper="The average delay τ_avg = 2 is a small constant, the maximum is τ_max = T. A rate in τ_max alone only "
        "guarantees a constant accuracy; both rates with √(τ_max τ_avg) and with τ_avg reach any accuracy.",
        measured=f"At T = {last.iterations}: τ_avg = {last.average_delay:.3f}, τ_max = {last.maximum_delay}. With the "
        "step that each rate allows, the mean of ‖∇f‖² (over that at the start) is "
        + ", ".join(f"{ends[rule]:.2g} for {rule} (∝ T^{slopes[rule]:.2f})" for rule in RULES)
        + ".",
        verdict=verdict,
        summary=f"After {last.iterations} iterations the mean of ‖∇f‖² is "
        + ", ".join(f"{ends[rule]:.2g} of the start by {rule}" for rule in RULES)
        + f"; τ_avg is {last.average_delay:.3f}",
        refuted_by="A τ_max other than T, or a τ_avg above 3; a mean of ‖∇f‖² above its bound; a mean that falls with "
        f"T with an exponent more than {CLOSE} from "
        + ", ".join(f"{power:g} ({rule})" for rule, power in EXPECTED.items())
        + ".",
        why=why,
        values={"exponents": slopes, "rows": [asdict(row) for row in rows]},
        tables=(
            Table(
                "Mean of ‖∇f(x_t)‖² over ‖∇f(x_0)‖², measured and bounded, at the largest step that each rate allows.",
                (
                    "T",
                    "τ_avg",
                    "by Remark 5",
                    "τ_max",
                    *(f"{rule}: {what}" for rule in RULES for what in ("measured", "bound")),
                ),
                tuple(_line([row for row in rows if row.iterations == iterations]) for iterations in lengths),
            ),
        ),
        figures=(
            Figure(
                "claim05-straggler",
                "A step for τ_max alone leaves the mean where it was, however long the run. Steps for √(τ_C τ_max) and "
                "for τ_C do not. Dashed: the bounds.",
                lambda fig, ax: _draw(ax, rows),
                width=5.2,
            ),
        ),
    )


def _line(rows: Sequence[Row]) -> tuple[Any, ...]:
    one = rows[0]
    means = [f"{value:.2g}" for row in rows for value in (row.measured, row.bound)]
    return one.iterations, f"{one.average_delay:.3f}", f"{one.remark:.3f}", one.maximum_delay, *means


def _draw(ax: Any, rows: Sequence[Row]) -> None:
    for place, rule in enumerate(RULES):
        mine = [row for row in rows if row.rule == rule]
        lengths = [row.iterations for row in mine]
        label = rule.replace("τ_max", r"$\tau_\mathrm{max}$")
        ax.loglog(lengths, [row.measured for row in mine], color=f"C{place}", marker="os^"[place], label=label)
        ax.loglog(lengths, [row.bound for row in mine], "--", color=f"C{place}", marker="", linewidth=1)
    ax.set(xlabel="T (iterations)", ylabel="mean of ‖∇f‖², relative to the start")
    ax.legend(title="step chosen for", loc="lower left")
