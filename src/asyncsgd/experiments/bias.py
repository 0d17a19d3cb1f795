"""The point to which methods converge if the data of workers differ: its distance from x*, measured and predicted.

If worker i gets steps w_i in total, the limit for small steps is the point with Σ w_i ∇f_i(x) = 0, which is x* if all
w_i are equal. The server gives jobs to a fifth of the workers at a time, as in practice. If every round asked all
workers, over-selection would discard the same slowest ones every time, and the comparison would be unfair to it.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd.core.errors import BiasWarning
from asyncsgd.core.method import Method
from asyncsgd.core.steps import DelayAdaptive, DropAbove
from asyncsgd.methods import async_sgd, fedavg, federated_async_sgd, minibatch_sgd
from asyncsgd.simulation import durations, simulate
from asyncsgd.simulation.durations import Durations
from asyncsgd.tasks import quadratic

WORKERS, ASKED, GOAL, DIM = 50, 10, 8, 20
"""Workers, jobs in flight (or asked in a round), answers that over-selection waits for, and parameters."""
STEPS = (2e-2, 6e-3, 2e-3, 6e-4, 2e-4)
ADAPTIVE, OVER, FAIR = "Algorithm 2, delay-adaptive", "over-selection, first 80 %", "Algorithm 2, constant step"
BUSY, DROP = "Algorithm 1, constant step", "Algorithm 2, drop above 2τ_C"
SAME = "1 s each, exponential"

METHODS: dict[str, Callable[[float], Method]] = {
    FAIR: lambda step: federated_async_sgd(step, concurrency=ASKED),
    ADAPTIVE: lambda step: federated_async_sgd(step, concurrency=ASKED).using(step=DelayAdaptive(step)),
    DROP: lambda step: federated_async_sgd(step, concurrency=ASKED).using(step=DropAbove(step)),
    OVER: lambda step: fedavg(GOAL * step, clients=GOAL, ask=ASKED),
    BUSY: lambda step: async_sgd(step),
    "mini-batch": lambda step: minibatch_sgd(step),
}


def patterns() -> dict[str, Durations]:
    """Return patterns in which workers differ in speed, and one in which all are equally fast."""
    means = np.geomspace(1.0, 8.0, WORKERS)
    return {
        "1 to 8 s, exponential": durations.exponential(means),
        "1 to 8 s, log-normal": durations.lognormal(means, 0.5),
        "1 to 8 s, fixed": durations.fixed(means),
        "half 4× slower, exponential": durations.exponential([1.0] * (WORKERS // 2) + [4.0] * (WORKERS - WORKERS // 2)),
        SAME: durations.exponential(1.0, workers=WORKERS),
    }


@dataclass(frozen=True)
class Bias:
    """The distance of a method from x*, for smaller and smaller steps."""

    pattern: str
    method: str
    steps: tuple[float, ...]
    distances: tuple[float, ...]
    """‖mean x_T - x*‖ over the seeds, one per step."""
    noise: float
    """How far that mean lies from its limit by chance at the smallest step: the root of its variance."""
    predicted: float
    """Distance from x* of the point with Σ w_i ∇f_i(x) = 0, w_i the steps that worker i got in the traces."""
    imbalance: float
    """√(n Σ(w_i - 1/n)²) with Σ w_i = 1: 0 if every worker counts the same, whatever the data."""


def measure(pattern: str, method: str, steps: Sequence[float] = STEPS, seeds: Sequence[int] = range(6)) -> Bias:
    """Run the method with every step and seed, long enough to forget the start."""
    task = quadratic(dim=DIM, eigenvalues=(0.5, 1.0), workers=WORKERS, heterogeneity=1.0)
    speeds, distances, noise, weights = patterns()[pattern], [], 0.0, np.zeros(WORKERS)
    for step in steps:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BiasWarning)  # bias is what this experiment measures
            runs = [simulate(task, METHODS[method](step), speeds, iterations=int(20 / step), seed=s) for s in seeds]
        ends = np.array([run.x for run in runs])
        distances.append(float(np.linalg.norm(ends.mean(axis=0) - task.optimum)))
        noise = float(np.sqrt(ends.var(axis=0, ddof=1).sum() / len(ends))) if len(ends) > 1 else 0.0
        weights = np.sum([np.bincount(r.trace.worker, weights=r.trace.step, minlength=WORKERS) for r in runs], axis=0)
    share = weights / weights.sum()
    limit = np.linalg.solve(task.hessian, share @ task.offsets)
    return Bias(
        pattern=pattern,
        method=method,
        steps=tuple(steps),
        distances=tuple(distances),
        noise=noise,
        predicted=float(np.linalg.norm(limit - task.optimum)),
        imbalance=float(np.sqrt(WORKERS * ((share - 1 / WORKERS) ** 2).sum())),
    )


def draw(fig: Any, axes: Any, biases: Sequence[Bias], main: str) -> None:
    """Draw the distance against the step, and the distance by pattern."""
    left, right = axes
    names = list(dict.fromkeys(row.pattern for row in biases))
    for place, method in enumerate(METHODS):
        label = method.replace("τ_C", r"$\tau_C$")
        some, look = [row for row in biases if row.method == method], {"color": f"C{place}", "marker": "os^DvP"[place]}
        first = next(row for row in some if row.pattern == main)
        if first.predicted < 1e-9:  # mini-batch: nothing to see on a logarithmic axis
            continue
        left.loglog(first.steps, first.distances, **look)
        if method != FAIR:
            left.axhline(first.predicted, color=f"C{place}", linestyle=":", linewidth=1, marker="")
        y = np.array([names.index(row.pattern) for row in some]) + 0.12 * (place - 2)
        right.plot([row.distances[-1] for row in some], y, linestyle="", label=label, **look)
        right.plot([row.predicted for row in some], y, linestyle="", color=f"C{place}", marker="|", markersize=11)
    left.invert_xaxis()
    left.set(xlabel="step η (smaller to the right)", ylabel="distance of the limit from x*", title=main)
    right.set(xlabel="distance of the limit from x*", title="at the smallest step")
    right.set_yticks(range(len(names)), [name.replace(", ", ",\n") for name in names])
    right.invert_yaxis()
    handles, labels = right.get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=3)
