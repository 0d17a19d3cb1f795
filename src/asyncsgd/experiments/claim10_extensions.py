"""Claim 10: local steps, buffers and early re-sampling: orthogonal to the effect of delays?

T to a target against τ_max without noise, one worker slower than the others, steps (server and local) tuned per point,
judged by a criterion that covers three slow cycles. Orthogonal means: the slope on log-log axes stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np

from asyncsgd.core.dispatch import AlwaysBusy, Dispatch, Uniform
from asyncsgd.core.gather import Buffer
from asyncsgd.core.method import Method
from asyncsgd.core.work import LocalSteps
from asyncsgd.experiments.claim import Claim, Figure, Table, Verdict
from asyncsgd.experiments.fits import exponent
from asyncsgd.methods import async_sgd
from asyncsgd.report.figures import INK
from asyncsgd.simulation import durations, grid, simulate, sweep
from asyncsgd.tasks import paper_quadratic

TARGET = 1e-10
LOCAL = (0.1, 0.5, 1.0)
"""Local steps that are tried, times 1/L."""
SAME = 0.2
"""Slopes that differ by at most so much count as the same."""


@dataclass(frozen=True)
class Setting:
    """Which algorithm, with how many workers, one of them so many times slower than the others."""

    name: str
    workers: int
    slower: tuple[int, ...]
    concurrency: int | None = None
    """For Algorithm 2; without it, Algorithm 1 keeps everybody busy."""
    seeds: int = 1

    def dispatch(self, early: bool = False) -> Dispatch:
        """Who works next."""
        if self.concurrency is None:
            return AlwaysBusy(sample_early=early)
        return Uniform(self.concurrency, sample_early=early)


SETTINGS = (
    Setting("Algorithm 1, 2 workers", 2, (4, 8, 16, 32, 64, 128)),
    Setting("Algorithm 1, 8 workers", 8, (4, 8, 16, 32, 64, 128)),
    Setting("Algorithm 2, 5 jobs on 50 workers", 50, (2, 4, 8, 16, 32), concurrency=5, seeds=4),
)
PLAIN, EARLY = "one gradient, one by one", "re-sampled early"
VARIANTS = (PLAIN, "2 local steps", "5 local steps", "buffer of 2", "buffer of 5", "buffer of 10", EARLY)


def methods(setting: Setting, variant: str) -> list[Method]:
    """The method, with every local step that is tried."""
    plain = async_sgd(1.0).using(dispatch=setting.dispatch(early=variant == EARLY))
    if "buffer" in variant:
        return [plain.using(gather=Buffer(int(variant.split()[-1])))]
    if "local" in variant:
        smoothness = paper_quadratic().smoothness
        steps = int(variant.split()[0])
        return [plain.using(work=LocalSteps(steps, step / smoothness, scaled=True)) for step in LOCAL]
    return [plain]


@dataclass(frozen=True)
class Row:
    """T for every τ_max, and how it grows."""

    setting: str
    variant: str
    delays: tuple[int, ...]
    iterations: tuple[float, ...]

    @property
    def slope(self) -> float:
        """Of log T over log τ_max."""
        return exponent(self.delays, self.iterations)


def measure(setting: Setting, variant: str, steps: int = 56) -> Row:
    """Tune the step, and the local one where there is one, for every delay."""
    task, delays, best = paper_quadratic(workers=setting.workers), [], []
    jobs = setting.concurrency or setting.workers
    for times in setting.slower:
        speeds = durations.fixed([1.0] * (setting.workers - 1) + [float(times)])
        plain = methods(setting, PLAIN)[0]
        slowly = plain.using(step=async_sgd(1e-3).step)
        longest = simulate(task, slowly, speeds, iterations=60 * setting.workers * times).trace.delays.maximum
        found = []
        for method in methods(setting, variant):
            held = method.gather.size if isinstance(method.gather, Buffer) else 1
            local = method.work.steps if isinstance(method.work, LocalSteps) else 1
            scale = held / (task.smoothness * jobs * local)
            tuned = sweep(
                task,
                method,
                speeds,
                stepsizes=grid(0.02 * scale, 8.0 * scale, steps),
                seeds=range(setting.seeds),
                iterations=4_000 + 5 * longest,
                target=TARGET,
                sustained=True,
                window=3 * (longest + 1),
            )
            found.append(tuned.best_iterations)
        delays.append(longest)
        best.append(min(found))
    return Row(setting.name, variant, tuple(delays), tuple(best))


def judge(rows: Sequence[Row]) -> tuple[Verdict, str]:
    """Holds if no slope changes; with a correction if none does in Algorithm 2, of which the paper speaks."""
    plain = {row.setting: row.slope for row in rows if row.variant == PLAIN}
    changed = [row for row in rows if not abs(row.slope - plain[row.setting]) <= SAME]  # nor may it be NaN
    if not changed:
        return Verdict.HOLDS, ""
    told = "; ".join(
        f"{name}: "
        + ", ".join(f"{row.variant} {row.slope:.2f}" for row in changed if row.setting == name)
        + f" ({p:.2f})"
        for name, p in plain.items()
        if any(row.setting == name for row in changed)
    )
    why = f"Another slope than without (in brackets): {told}."
    if any(row.setting.startswith("Algorithm 2") for row in changed):
        return Verdict.FAILS, why
    return Verdict.CORRECTED, (
        f"{why} In Algorithm 2, of which the paper speaks, all slopes are within {SAME:g} of "
        f"{plain[SETTINGS[-1].name]:.2f}. In Algorithm 1, where whoever finishes gets the next job, a slow worker's "
        "gradient is applied and then the worker is sent the new point: it always computes at the very point that its "
        "own late gradient has just disturbed, and the disturbance comes back one slow cycle later. Sent out before "
        "the update, or while its gradient still waits in the buffer, the worker gets the point from before the "
        "disturbance, and there is no echo."
    )


def check(progress: Callable[[float], None]) -> Claim:
    """Every variant in every setting."""
    rows: list[Row] = []
    wanted = [(setting, variant) for setting in SETTINGS for variant in VARIANTS]
    for setting, variant in wanted:
        rows.append(measure(setting, variant))
        progress(len(rows) / len(wanted))
    verdict, why = judge(rows)

    def slopes(kind: str, algorithm: str) -> str:
        some = [row.slope for row in rows if kind in row.variant and row.setting.startswith(algorithm)]
        return f"{min(some):.2f} to {max(some):.2f}" if len(some) > 1 else f"{some[0]:.2f}"

    return Claim(
        number=10,
        title="Local steps, buffers and early re-sampling",
        paper="Local steps and buffers are orthogonal to the effect of delays; they, and sampling the next worker "
        "before the update, are straightforward extensions of Algorithm 2.",
        measured="Slope of log T over log τ_max. "
        + "; ".join(
            f"{algorithm}: {slopes(PLAIN, algorithm)} as it is, {slopes('local', algorithm)} with local steps, "
            f"{slopes('buffer', algorithm)} with buffers, {slopes(EARLY, algorithm)} when re-sampled early"
            for algorithm in ("Algorithm 1", "Algorithm 2")
        )
        + ".",
        verdict=verdict,
        why=why,
        values={"target": TARGET, "rows": [{**asdict(row), "slope": row.slope} for row in rows]},
        tables=(
            Table(
                f"Arrivals T until ‖∇f‖ stays at or below {TARGET:g}, at the best steps, by τ_max (in brackets). With "
                "K local steps, each arrival brings K gradients.",
                ("setting", "variant", "T (τ_max)", "slope"),
                tuple((row.setting, row.variant, _pairs(row), f"{row.slope:.2f}") for row in rows),
            ),
        ),
        figures=(
            Figure(
                "claim10-extensions",
                "Arrivals to the target against τ_max at the best steps; one worker slower than the others, no noise.",
                partial(draw, rows=rows),
                columns=3,
                width=9.0,
                height=3.8,
            ),
        ),
    )


def _pairs(row: Row) -> str:
    return ", ".join(f"{t:.0f} ({d})" for d, t in zip(row.delays, row.iterations, strict=True))


def draw(fig: Any, axes: Any, rows: Sequence[Row]) -> None:
    """One panel per setting."""
    for ax, setting in zip(axes, dict.fromkeys(row.setting for row in rows), strict=True):
        some = [row for row in rows if row.setting == setting]
        for row in some:
            style = "--" if "local" in row.variant else ":" if "buffer" in row.variant else "-"
            ax.loglog(row.delays, row.iterations, linestyle=style, label=row.variant)
        x = np.array(some[0].delays, float)
        root = 0.7 * min(row.iterations[0] for row in some) * np.sqrt(x / x[0])
        ax.loglog(x, root, color=INK, linestyle=(0, (1, 3)), linewidth=1, marker="", label="slope 1/2")
        ax.set(xlabel=r"longest delay $\tau_{max}$ (iterations)", title=setting.replace(", ", ",\n"))
        round_numbers = [m * 10**power for power in range(1, 4) for m in (1, 2, 5)]
        x_ticks = [tick for tick in (5, *round_numbers) if x[0] <= tick <= x[-1]]
        y_ticks = [tick for tick in round_numbers if root[0] <= tick <= max(row.iterations[-1] for row in some)]
        ax.minorticks_off()
        ax.set_xticks(x_ticks, [f"{tick}" for tick in x_ticks])
        ax.set_yticks(y_ticks, [f"{tick}" for tick in y_ticks])
    axes[0].set_ylabel("arrivals T to the target")
    fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
