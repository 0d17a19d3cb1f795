"""Measure Theorem 3's term (1/n)Σζ_i²(τ^i_avg+1): the same heterogeneity on late workers, and on others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.methods import federated_async_sgd
from asyncsgd.simulation import durations, simulate
from asyncsgd.simulation.durations import Durations
from asyncsgd.tasks import quadratic
from asyncsgd.theory.bounds import theorem3

WORKERS, LATE, STEP, ITERATIONS = 20, 4, 0.002, 60_000
"""Workers (also the concurrency), how many of them are late, and the step, which Theorem 3 allows for every pattern."""
SPECTRUM = (0.5, 1.0)


def patterns(late: Sequence[int]) -> dict[str, Durations]:
    """Return patterns in which these workers are late; the others take an exponential time of mean 1 s."""

    def each(usual: float, these: float) -> list[float]:
        return [these if worker in late else usual for worker in range(WORKERS)]

    def away(speed: float, every: float) -> Durations:
        steady = durations.exponential(each(1.0, speed))
        return steady.with_outages(every=each(1e12, every), lasting=30.0, until=2e4)

    return {
        "no worker late": durations.exponential(1.0, workers=WORKERS),
        "4× slower, fixed": durations.fixed(each(1.0, 4.0)),
        "4× slower, exponential": durations.exponential(each(1.0, 4.0)),
        "away 20 % of the time": away(1.0, 120.0),
        "away 7 %, else 10× faster": away(0.1, 400.0),
    }


@dataclass(frozen=True)
class Placement:
    """Results with all heterogeneity on a few workers, which are late or not."""

    pattern: str
    on_late: bool
    delay: float
    """τ^i_avg, mean over the workers with different data."""
    longest: int
    burstiness: float
    """Arrivals of one of them in 1/(ηλ) iterations: variance over mean. About 1 - 1/n if drawn at random."""
    error: float
    """E‖∇f‖² over the last three quarters, divided by η ζ²."""
    deviation: float
    """Standard error of ``error``."""
    mean: float
    bound: float
    """E‖∇f‖² over the whole run, and Theorem 3's bound on it."""


def measure(pattern: str, on_late: bool, *, iterations: int = ITERATIONS, seeds: Sequence[int] = range(8)) -> Placement:
    """Run Algorithm 2 on a task in which the first few workers have ζ_i² = n/few and the others 0, so ζ² = 1."""
    different = list(range(LATE))
    zeta = [float(np.sqrt(WORKERS / LATE))] * LATE + [0.0] * (WORKERS - LATE)
    task = quadratic(dim=10, eigenvalues=SPECTRUM, workers=WORKERS, heterogeneity=zeta)
    speeds = patterns(different if on_late else range(WORKERS - LATE, WORKERS))[pattern]
    method = federated_async_sgd(STEP, concurrency=WORKERS)
    runs = [simulate(task, method, speeds, iterations=iterations, seed=seed, every=20) for seed in seeds]
    squares = np.array([run.metrics["gradient_norm"] ** 2 for run in runs])
    errors = squares[:, squares.shape[1] // 4 :].mean(axis=1) / STEP
    delays = [run.trace.delays for run in runs]
    tau = np.array([[delay.per_worker.get(worker, 0.0) for worker in range(WORKERS)] for delay in delays]).mean(axis=0)
    longest = max(delay.maximum for delay in delays)
    bound = theorem3(
        (WORKERS, longest),
        smoothness=task.smoothness,
        gap=float(task.evaluate(task.initial())["loss"]),
        noise_variance=0.0,
        heterogeneity=task.heterogeneity,
        worker_delays=tau,
    )
    return Placement(
        pattern=pattern,
        on_late=on_late,
        delay=float(tau[:LATE].mean()),
        longest=longest,
        burstiness=float(np.mean([_burstiness(run.trace.worker) for run in runs])),
        error=float(errors.mean()),
        deviation=float(errors.std(ddof=1) / np.sqrt(len(errors))),
        mean=float(squares.mean()),
        bound=bound.at(iterations, STEP),
    )


def _burstiness(workers: NDArray[np.int64]) -> float:
    window = round(1 / (STEP * np.mean(SPECTRUM)))
    rows = workers[: len(workers) // window * window].reshape(-1, window)
    counts = np.array([(rows == worker).sum(axis=1) for worker in range(LATE)])
    return float((counts.var(axis=1) / counts.mean(axis=1)).mean())


def pairs(placements: Sequence[Placement]) -> dict[str, tuple[Placement, Placement]]:
    """Return, by pattern, the results with heterogeneity on late workers and on others."""
    late = {row.pattern: row for row in placements if row.on_late}
    return {row.pattern: (late[row.pattern], row) for row in placements if not row.on_late and row.pattern in late}


def draw(fig: Any, axes: Any, placements: Sequence[Placement]) -> None:
    """Draw the ratio of late to others, measured and of Theorem 3's term."""
    both = pairs(placements)
    y = np.arange(len(both))
    ratio = np.array([a.error / b.error for a, b in both.values()])
    reach = ratio * [np.hypot(a.deviation / a.error, b.deviation / b.error) for a, b in both.values()]
    axes.axvline(1.0, color="#777777", linewidth=1, marker="")
    axes.errorbar(ratio, y, xerr=reach, linestyle="", capsize=2, label="E‖∇f‖² measured")
    term = [(a.delay + 1) / (b.delay + 1) for a, b in both.values()]
    axes.plot(term, y, linestyle="", markerfacecolor="none", label=r"$\tau^i_{avg}+1$ of Theorem 3")
    bursts = [a.burstiness / b.burstiness for a, b in both.values()]
    axes.plot(bursts, y, linestyle="", markerfacecolor="none", markersize=9, label="burstiness of arrivals")
    axes.set(xscale="log", xlabel="ζ² on late workers / ζ² on others (×)")
    axes.set_xticks([0.5, 1, 2, 5, 10], ["0.5×", "1×", "2×", "5×", "10×"])
    axes.minorticks_off()
    axes.set_yticks(y, list(both))
    axes.set_ylim(len(both) - 0.5, -0.5)
    fig.legend(loc="outside upper center", ncols=3)
