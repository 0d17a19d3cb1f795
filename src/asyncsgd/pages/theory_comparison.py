"""Compare what was measured with what the theory predicts for the same workers, delays and steps."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from asyncsgd import theory
from asyncsgd.core.errors import UsageError
from asyncsgd.core.events import Outcome
from asyncsgd.core.parts import Reason, made
from asyncsgd.format import number
from asyncsgd.pages.page_data import Worker
from asyncsgd.run.view import Floats, RunView
from asyncsgd.tasks.base import BuiltIn
from asyncsgd.theory import Bound
from asyncsgd.theory.coverage import THIRD, bound, covering

BUSY, BATCH, SAMPLED = "AlwaysBusy", "Batch", ("Uniform", "Shuffled")


@dataclass(frozen=True)
class Line:
    """One quantity, measured and expected; None if a number is missing."""

    quantity: str
    measured: float | None
    expected: float | None
    source: str
    """Where the expectation comes from, and what it assumes."""


@dataclass(frozen=True)
class Expected:
    """The predictions of the formulas for the measured durations."""

    seconds: float | None
    """Seconds per update."""
    source: str
    minibatch: float
    """Seconds per update if all workers waited for the slowest."""
    per_worker: dict[int, float]
    """τ^i_avg."""
    maximum: int | None
    """τ_max, for durations that do not vary."""


def expected(subject: RunView, workers: list[Worker]) -> Expected | None:
    """Return predictions from the run's own mean computing times; None if these are missing."""
    if disturbed(subject):
        return Expected(
            None, "jobs were lost, rejected or cancelled, which the formulas do not cover", math.nan, {}, None
        )
    known = {worker.worker: worker.seconds for worker in workers if worker.seconds}
    durations = np.array(list(known.values()))
    delays = subject.trace.delays
    if len(durations) < 2 or not np.isfinite(durations).all() or len(known) < len(workers):
        return None
    slowest = float(durations.max()) / len(durations)
    if subject.dispatch == BUSY and delays.concurrency == len(durations):
        found = theory.async_delays(durations)
        seconds = 1 / float((1 / durations).sum())
        per_worker = dict(zip(known, found.per_worker.tolist(), strict=True))
        return Expected(seconds, "every worker always busy: 1 / Σ 1/Δ_i", slowest, per_worker, found.maximum)
    if subject.dispatch in SAMPLED:
        queued = theory.queues(durations, delays.concurrency).seconds / delays.concurrency
        each = theory.federated_delays(durations, delays.concurrency).per_worker
        per_worker = dict(zip(known, each.tolist(), strict=True))
        return Expected(queued, "the queues of Algorithm 2 in the long run, fixed durations", slowest, per_worker, None)
    if subject.dispatch == BATCH:
        return Expected(slowest, "all workers wait for the slowest: Δ_max / n", slowest, {}, len(durations) - 1)
    return Expected(None, "no formula for this way of handing out jobs", slowest, {}, None)


def disturbed(subject: RunView) -> bool:
    """Whether jobs ended in a way that the formulas do not know."""
    counts = subject.trace.counts
    return any(counts[outcome] for outcome in (Outcome.LOST, Outcome.REJECTED, Outcome.CANCELLED))


def lines(subject: RunView, workers: list[Worker], found: Expected | None) -> list[Line]:
    """The rows of the table; those without any expectation are left out."""
    trace, delays = subject.trace, subject.trace.delays
    rows: list[Line] = []
    per_update = subject.elapsed / trace.iterations if trace.iterations and subject.timed else None
    if found is not None and found.seconds is not None and per_update:
        rows.append(Line("seconds per update", per_update, found.seconds, found.source))
        rows.append(
            Line(
                "times as fast as waiting for all",
                found.minibatch / per_update,
                found.minibatch / found.seconds,
                "mini-batch SGD takes Δ_max / n per update",
            )
        )
    if trace.iterations and not disturbed(subject):
        constant = bool((trace.active[:-1] == delays.concurrency).all())
        source = "τ_C - 1, as the concurrency was constant" if constant else "τ̄_C - 1: delays add up to the concurrency"
        rows.append(Line("τ avg", delays.average, delays.mean_concurrency - 1, source))
    if found is not None and found.maximum is not None:
        rows.append(Line("τ max", float(delays.maximum), float(found.maximum), "durations that do not vary"))
    diagnosis = subject.diagnosis
    if diagnosis is not None and diagnosis.safe_step is not None and subject.stepsize is not None:
        rests = "".join(f"; {rest}" for rest in diagnosis.conditions)
        known = number(diagnosis.smoothness, 3)
        source = f"the largest safe step by the theorems, for L ≈ {known} and these delays{rests}"
        name = "step" if subject.schedule is None else "peak of the step"
        rows.append(Line(name, subject.stepsize, diagnosis.safe_step, source))
    return [*rows, *_bound(subject)]


def _bound(subject: RunView) -> list[Line]:
    """Return the theorem's bound on the mean squared gradient norm, if the task has its constants."""
    norms, losses = subject.metrics.get("gradient_norm"), subject.metrics.get("loss")
    step, trace = subject.stepsize, subject.trace
    if norms is None or losses is None or not len(norms) or step is None or not trace.iterations:
        return []
    largest = float(trace.step.max())
    if largest > step or ((subject.schedule is not None or _changing(subject)) and largest > 0):
        step = largest  # Theorem 2 is about the steps that were used
    smallest, assumed = _smallest(subject.known)
    try:
        found = _theorem(subject, float(losses[0]) - smallest, step)
        if found is None:
            return []
        name, measured = _mean(subject, found, np.square(norms))
        if step > found.max_step * (1 + 1e-12):
            why = f", as {found.condition}" if found.condition else ""
            limit = f"{found.theorem} does not cover a step of {number(step, 3)}: it needs at most "
            limit += f"{number(found.max_step, 3)}{why}"
            return [Line(name, measured, None, limit)]
        return [Line(name, measured, found.at(trace.iterations, step), f"at most, by {found.theorem}{assumed}")]
    except UsageError:  # constants that the theorems do not take, such as a start at the optimum
        return []


def _changing(subject: RunView) -> bool:
    """Return whether the steps of a rule without weights changed along the run, by a schedule or in its course."""
    steps = subject.trace.step
    return subject.parts.get("step", {}).get("kind") == "Constant" and bool((steps != steps[:1]).any())


def _smallest(task: Any) -> tuple[float, str]:
    """Return the smallest loss that the task can report, and a remark if it is unknown."""
    known = getattr(task, "minimum", None)
    if known is None:
        return 0.0, ", taking 0 as the smallest loss"
    return (0.0 if isinstance(task, BuiltIn) else float(known)), ""  # those report f(x) - f*


def _mean(subject: RunView, bound: Bound, squares: Floats) -> tuple[str, float]:
    """Return the mean that a theorem bounds; in Theorem 2 the weight of an iterate is the step that follows it.

    Between evaluations it is interpolated linearly.
    """
    trace, weighted = subject.trace, bound.theorem == "Theorem 2"
    name = "mean ‖∇f‖², weighted by the steps" if weighted else "mean ‖∇f‖²"
    weights = trace.step if weighted else np.ones(trace.iterations)
    passed = np.concatenate([[0.0], np.cumsum(weights)])[subject.metrics["iteration"].astype(int)]
    long = float(passed[-1] - passed[0])
    return name, float(np.trapezoid(squares, passed)) / long if long else float(squares.mean())


def _theorem(subject: RunView, gap: float, step: float) -> Bound | None:
    task: Any = subject.known
    names = ("smoothness", "noise_variance", "heterogeneity")
    if any(getattr(task, name, None) is None for name in names) or not subject.parts:
        return None
    differ = bool(getattr(task, "heterogeneous", False) or np.any(np.asarray(task.heterogeneity) > 0))
    # The trace has every step, so the schedule itself, which may hold a function, is not needed.
    parts = {**subject.parts, "step": {**subject.parts.get("step", {}), "stepsize": step}}
    covered = covering(made(parts), heterogeneous=differ, changing=_changing(subject))
    if isinstance(covered, Reason) or not covered.exact:
        return None
    if differ and covered.theorem != THIRD:
        return None  # rounds: Theorem 1 covers them, with a noise that the task does not know
    return bound(
        covered,
        subject.trace,
        heterogeneity=task.heterogeneity,
        weights=np.minimum(1.0, subject.trace.step / step),
        smoothness=task.smoothness,
        gap=gap,
        noise_variance=task.noise_variance,
    )
