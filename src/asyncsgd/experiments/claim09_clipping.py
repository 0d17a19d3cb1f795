"""Claim 9: does clipping remove the dependence on the longest delay, as the paper envisions?

The setting is that of the paper's figures: two workers, of which the second is τ_max times slower, no noise, and a step
tuned for each point. T is the first iteration from which the gradient norm stays at or below the target for three
cycles of the slow worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from asyncsgd.core.method import Method
from asyncsgd.experiments.common import Claim, Figure, Table, Verdict, tune
from asyncsgd.methods import async_sgd
from asyncsgd.simulation import durations, grid, simulate
from asyncsgd.tasks import paper_quadratic
from asyncsgd.theory.bounds import theorem1_bounded

DELAYS = (2, 8, 32, 128, 512, 2048, 8192)
TARGETS = (0.1, 0.03, 0.01)
"""Of the gradient norm at x_0."""
LEVELS = (None, 30.0, 10.0, 3.0, 1.0, 0.1)
"""Clipping norm G over the target; None: no clipping."""
STEPS = 128
FLAT, CEILING = 1.25, 1.1
"""Growth of T that counts as none: over all of τ_max, and over its last step."""


@dataclass(frozen=True)
class Row:
    """Iterations to one target at one clipping norm, for every τ_max."""

    target: float
    level: float | None
    iterations: tuple[float, ...]
    bound: float
    """What Theorem 1 with bounded gradients asks for if no gradient is longer than G."""

    @property
    def growth(self) -> float:
        """T at the longest τ_max over T at the shortest."""
        return self.iterations[-1] / self.iterations[0]

    @property
    def late_growth(self) -> float:
        """The growth of T over the last step in τ_max; 1 means that T has reached a ceiling."""
        return self.iterations[-1] / self.iterations[-2]

    @property
    def name(self) -> str:
        """The name in the figure and in the table."""
        return "no clipping" if self.level is None else f"G = {self.level:g} × target"


def measure(target: float, level: float | None, delays: Sequence[int] = DELAYS, steps: int = STEPS) -> Row:
    """Tune the step for every delay."""
    task = paper_quadratic(workers=2)
    start = task.evaluate(task.initial())
    first, gap = float(start["gradient_norm"]), float(start["loss"])
    epsilon = target * first
    norm = None if level is None else min(level * epsilon, first)

    def recipe(stepsize: float) -> Method:
        return async_sgd(stepsize) if norm is None else async_sgd(stepsize).clipped(norm)

    # Clipped far below the target, only the product of step and norm matters.
    largest = 4.0 / task.smoothness * max(1.0, 1.0 / (level or 1.0))
    smallest = 2e-3 / task.smoothness
    found = []
    for delay in delays:
        best = tune(
            task,
            recipe,
            durations.fixed([1.0, float(delay)]),
            stepsizes=grid(smallest, largest, steps),
            iterations=5_000 + 4 * (delay + 2),
            target=epsilon,
            sustained=True,
            window=3 * (delay + 1),
        )
        found.append(best.best_iterations)
    bound = theorem1_bounded(2.0, smoothness=task.smoothness, gap=gap, noise_variance=0.0, gradient_bound=norm or first)
    return Row(target, level, tuple(found), float(bound.iterations(epsilon**2)[0]))


def average_delay(delay: int) -> float:
    """Return τ_avg of the two workers over ten cycles of the slow one."""
    task, speeds = paper_quadratic(workers=2), durations.fixed([1.0, float(delay)])
    return simulate(task, async_sgd(1e-3), speeds, iterations=10 * (delay + 1)).trace.delays.average


def chosen(rows: Sequence[Row]) -> tuple[Row, Row]:
    """Return the rows that text and verdict are about: without clipping, and with one norm, at the smallest target.

    Of the norms with nearly the lowest T at the longest delay, it is the one that clips least.
    """
    hardest = [row for row in rows if row.target == min(row.target for row in rows)]
    lowest = min(row.iterations[-1] for row in hardest if row.level is not None)
    good = [row for row in hardest if row.level is not None and row.iterations[-1] <= 1.1 * lowest]
    return next(row for row in hardest if row.level is None), max(good, key=lambda row: row.level or 0.0)


def judge(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """Return "holds" if no clipped T grows with τ_max; "with a correction" if clipping lowers a ceiling of T."""
    shortened = [row for row in rows if row.level is not None]
    if all(row.growth <= FLAT for row in shortened):
        return Verdict.HOLDS, ""
    plain, best = chosen(rows)
    if not (all(row.late_growth <= CEILING for row in shortened) and best.iterations[-1] <= plain.iterations[-1] / 2):
        return Verdict.FAILS, "T keeps growing with τ_max in spite of clipping, or clipping does not help."
    return Verdict.CORRECTED, (
        "T does not become independent of τ_max; it gets a ceiling. Below it, T grows about like √τ_max as without "
        "clipping, unless G is near the target. The ceiling is there without clipping too, as the gradients on the "
        "way are bounded by the first: it is what the step ε/(LG) needs, at which one late gradient of length G no "
        "longer moves ‖∇f‖ past the target ε. Clipping lowers it, by a factor "
        f"{plain.iterations[-1] / best.iterations[-1]:.1f} at the smallest target with G = {best.level:g} × target, "
        f"and is paid for where delays are short: there T is {best.iterations[0] / plain.iterations[0]:.1f} times as "
        "long."
    )


def check(progress: Callable[[float], None]) -> Claim:
    """Measure every target and every clipping norm below the first gradient's."""
    wanted = [(target, level) for target in TARGETS for level in LEVELS if level is None or level * target <= 1]
    rows = []
    for done, one in enumerate(wanted):
        rows.append(measure(*one))
        progress((done + 1) / len(wanted))
    verdict, why = judge(rows)
    averages = [average_delay(delay) for delay in DELAYS]
    plain, best = chosen(rows)
    grows = (
        f"{plain.growth:.0f}-fold without clipping ({plain.iterations[0]:.0f} to {plain.iterations[-1]:.0f}) and "
        f"{best.growth:.1f}-fold with {best.name} ({best.iterations[0]:.0f} to {best.iterations[-1]:.0f})"
    )
    return Claim(
        number=9,
        title="Clipping and the longest delay",
        paper="With clipped gradients we envision a rate that depends on the average delay only, as with bounded "
        "gradients, which makes the algorithm robust to stragglers (not proved there).",
        measured=f"Two workers, τ_max from {DELAYS[0]} to {DELAYS[-1]}, target {min(TARGETS):g} of the first "
        f"gradient: T grows {grows}.",
        verdict=verdict,
        summary=f"T grows {grows} for τ_max from {DELAYS[0]} to {DELAYS[-1]}. The same norm makes T "
        f"{best.iterations[0] / plain.iterations[0]:.1f} times as long at the shortest delay and "
        f"{plain.iterations[-1] / best.iterations[-1]:.1f} times as short at the longest",
        refuted_by=f"A T that still grows by more than {CEILING - 1:.0%} over the last step in τ_max with some "
        "clipping norm; or, at the smallest target, no clipping norm that at least halves T at the longest delay.",
        why=why,
        values={"delays": list(DELAYS), "average_delays": averages, "rows": [asdict(row) for row in rows]},
        tables=(
            Table(
                f"Iterations T to the target at the best step, by τ_max; τ_avg is {min(averages):.2f} to "
                f"{max(averages):.2f}. Last: what Theorem 1 asks for if gradients are bounded by G.",
                ("target / ‖∇f(x_0)‖", "clipping", *(f"τ_max = {delay}" for delay in DELAYS), "bound"),
                tuple((f"{r.target:g}", r.name, *(f"{t:.0f}" for t in r.iterations), f"{r.bound:.1g}") for r in rows),
            ),
        ),
        figures=(
            Figure(
                "claim09-clipping",
                f"Left: iterations to {min(TARGETS):g} of the first gradient against τ_max. Right: the same at the "
                f"longest (τ_max = {DELAYS[-1]}) and at the shortest delay (τ_max = {DELAYS[0]}) against the clipping "
                "norm; at the right end of each line nothing is clipped.",
                partial(draw, rows=rows),
                columns=2,
                height=3.7,
            ),
        ),
    )


def draw(fig: Any, axes: Any, rows: Sequence[Row]) -> None:
    """Draw T against τ_max, and T at both ends against the clipping norm."""
    left, right = axes
    for row in rows:
        if row.target == min(TARGETS):
            left.loglog(DELAYS, row.iterations, linestyle="-" if row.level is None else "--", label=row.name)
    plain = next(row for row in rows if row.target == min(TARGETS) and row.level is None)
    x = np.array(DELAYS[:5], float)
    root = 0.75 * plain.iterations[0] * np.sqrt(x / x[0])
    left.loglog(x, root, color="#777777", linewidth=1, marker="", label="slope 1/2")
    left.set(xlabel=r"longest delay $\tau_{max}$ (iterations)", ylabel="iterations T to the target")
    left.set_ylim(bottom=8, top=9e3)
    left.legend(loc="upper left", ncols=2, columnspacing=1.0, handlelength=2.2)
    for place, target in enumerate(TARGETS):
        ends = {row.level or 1 / target: row.iterations for row in rows if row.target == target}
        levels, look = sorted(ends), {"color": f"C{place}", "marker": "os^"[place]}
        right.loglog(levels, [ends[level][-1] for level in levels], label=f"target {target:g}", **look)
        right.loglog(levels, [ends[level][0] for level in levels], linestyle=":", markerfacecolor="none", **look)
    right.plot([], [], color="#777777", marker="", label=r"longest $\tau_{max}$")
    right.plot([], [], linestyle=":", color="#777777", marker="", label=r"shortest $\tau_{max}$")
    right.set(xlabel="clipping norm G / target", ylabel="iterations T to the target")
    right.set_ylim(bottom=4, top=9e3)
    right.legend(loc="upper left", ncols=2, columnspacing=1.0, handlelength=2.2)
