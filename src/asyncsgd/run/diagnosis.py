"""Explain why a run does not learn: facts about the run, and its problems, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_DOWN, Context
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.dispatch import Shuffled, Uniform
from asyncsgd.core.events import Outcome
from asyncsgd.core.method import Method
from asyncsgd.core.steps import Constant, DelayAdaptive
from asyncsgd.core.vectors import Vector
from asyncsgd.format import number, size, times
from asyncsgd.result import leftover
from asyncsgd.run.evaluator import blown_up
from asyncsgd.run.journal import Faults
from asyncsgd.tasks.base import Task, is_heterogeneous
from asyncsgd.theory.coverage import BUDGET, conditions, covering, estimate_smoothness, safe_step, takes_long
from asyncsgd.trace import Delays, Trace
from asyncsgd.trace.labels import PLAIN

MUCH = 3.0
"""A step above this multiple of the safe one is reported if the loss does not fall."""

MEMORY = 1 << 30
"""Bytes that estimating L may take: it must not need more memory than the training."""

BY_CHANCE = 4.0
"""Standard deviations by which the counts of uniform draws may differ."""


@dataclass(frozen=True)
class Diagnosis:
    """Facts about a run, and its problems."""

    facts: tuple[str, ...] = ()
    problems: tuple[str, ...] = ()
    smoothness: float | None = None
    """L along the steepest direction found, at the start and at the end: a lower estimate."""
    safe_step: float | None = None
    """The largest step that the theorems allow for this L and these delays."""
    conditions: tuple[str, ...] = ()
    """What the safe step assumes beyond L and the delays."""


class Steps(NamedTuple):
    """The factors by which callbacks multiplied the step size of a run's updates."""

    smallest: float = 1.0
    mean: float = 1.0
    largest: float = 1.0
    used: float = 1.0
    """The largest step of the run over its largest without callbacks; a schedule may be low where a factor is high."""

    @classmethod
    def of(cls, method: Method, iterations: int, changes: Sequence[tuple[int, float]]) -> Steps:
        """Return the factors of this many updates; each change multiplies all updates from its iteration on."""
        factors, shares = np.ones(iterations), method.step.shares(iterations)
        for iteration, factor in changes:
            factors[iteration:] *= factor
        used = (factors * shares).max() / shares.max() if shares.max() else 1.0
        return cls(float(factors.min()), float(factors.mean()), float(factors.max()), float(used))

    @property
    def scaled(self) -> bool:
        """Whether any update had another step than that of the method."""
        return (self.smallest, self.largest) != (1.0, 1.0)


def stored(row: Mapping[str, Any]) -> Diagnosis:
    """Return the diagnosis that a run wrote when it ended: the line "diagnosed" of its journal."""
    listed = {name: row.get(name) for name in ("facts", "problems", "conditions")}
    sentences = {name: tuple(map(str, lines)) if isinstance(lines, list) else () for name, lines in listed.items()}
    numbers = {name: row.get(name) for name in ("smoothness", "safe_step")}
    return Diagnosis(
        facts=sentences["facts"],
        problems=sentences["problems"],
        conditions=sentences["conditions"],
        **{name: float(value) for name, value in numbers.items() if isinstance(value, int | float)},
    )


@dataclass(frozen=True, eq=False)
class Observed:
    """What a diagnosis is made from. Without a method or a task, it uses the trace and the metrics alone."""

    trace: Trace
    metrics: Mapping[str, NDArray[Any]]
    faults: Faults = field(default_factory=Faults)
    method: Method | None = None
    task: Task | None = None
    x: Vector | None = None
    """The model of the last metrics."""
    diverged: bool = False
    """Whether the metrics are no longer finite; the last ones given are from before."""
    known: float | None = None
    """An L that was found earlier; the larger one counts."""
    step_changes: Sequence[tuple[int, float]] = ()
    """The iterations at which callbacks multiplied the step, and the factors."""
    label: Callable[[int], str] = PLAIN
    """The label of a worker for sentences."""


def diagnose(run: Observed, *, apart: str | None = None) -> Diagnosis:
    """Diagnose a run, finished or not.

    L is estimated at the start and, unless the loss has blown up, at x. The curvature at a model that has blown up does
    not show which step would have prevented that. ``apart`` is the reason not to compute gradients of this task here.
    """
    trace, metrics, method, task = run.trace, _with_loss(run.metrics), run.method, run.task
    if trace.iterations == 0:
        return Diagnosis(problems=("no update has arrived; check how the jobs ended",))
    delays = trace.delays
    learns = False if run.diverged else _learns(metrics)
    facts = [
        f"delays: {number(delays.average, 3)} on average and {delays.maximum} at most, in updates, with up to "
        f"{delays.concurrency} jobs in flight"
    ]
    smoothness = None
    if method is not None and hasattr(task, "update"):  # else remote clients compute the updates
        assert task is not None
        assert run.x is not None
        place = task.initial() if blown_up(metrics.get("loss", ())) else run.x
        smoothness = _smoothness(method, task, place, sorted(delays.per_worker), apart, run.known, facts)
    safe: float | None = None
    rests: tuple[str, ...] = ()
    differ = None if task is None or not hasattr(task, "heterogeneous") else is_heterogeneous(task)
    if smoothness is not None and method is not None:
        safe = safe_step(method, delays, smoothness)
        rests = conditions(method, delays, heterogeneous=bool(differ))
    problems: list[str] = []
    _about_learning(metrics, learns, run.diverged, problems)
    if method is not None:
        limit = Diagnosis(smoothness=smoothness, safe_step=safe, conditions=rests)
        steps = Steps.of(method, trace.iterations, run.step_changes)
        _about_step(method, delays, limit, steps, learns, differ, facts, problems)
        _about_stragglers(delays, method, differ, run.label, problems)
        _about_schedule(trace, method, problems)
    rest = None if method is None else leftover(method, trace)
    facts.extend([] if rest is None else [rest])
    _about_waste(trace, delays, facts, problems)
    _about_workers(run, facts, problems)
    _about_faults(run.faults, run.label, facts)
    return Diagnosis(tuple(facts), tuple(problems), smoothness, safe, rests)


def judge(run: Observed, *, interrupted: bool, hung: bool) -> Diagnosis:
    """Diagnose a run in its own process, of which task and method are known.

    ``interrupted``: a signal stopped the run, so compute no gradients. ``hung``: an evaluation was abandoned, and its
    thread may still use the task.
    """
    assert run.x is not None
    apart = _apart(run.trace, run.faults.deaths, interrupted, len(run.x))
    return diagnose(run, apart="an evaluation hung, and a gradient here might too" if hung else apart)


def _apart(trace: Trace, deaths: int, interrupted: bool, dimension: int) -> str | None:
    """Return the reason not to compute gradients in the server's process: it might die too, or take long or much."""
    if interrupted:
        return "the run was interrupted, and estimating L would delay its end"
    if deaths:
        who = "a worker" if deaths == 1 else f"{deaths} workers"
        return f"{who} died or hung, and computing a gradient here might do the same to the server"
    needed = 8 * dimension * (6 * min(4, len(trace.delays.per_worker)) + 8)  # vectors of float64: draws, and directions
    if needed > MEMORY:
        return f"the model is large, and estimating L would take {size(needed)} of memory"
    took = trace.duration
    if len(took) and takes_long(float(took.min()), len(trace.delays.per_worker)):
        return f"gradients take {number(took.min(), 2)} s or more, too long to estimate L after the run"
    return None


# ---------------------------------------------------------------------------------------------- topics


def _smoothness(
    method: Method,
    task: Task,
    x: Vector,
    workers: list[int],
    apart: str | None,
    known: float | None,
    facts: list[str],
) -> float | None:
    """Return L if the step can be judged; else add the reason to the facts."""
    covered = covering(method, heterogeneous=False)
    why = apart if covered else str(covered)
    if why is None:
        try:
            found = estimate_smoothness(task, x, workers)
        except Exception as error:  # an error in the user's code must not lose a trained model
            why = f"a gradient in the server's own process raised {error!r}"
        else:
            if found:
                return max(found, known or 0.0)
            why = "no curvature was found: gradients are the same everywhere"
            if found is None:
                why = f"gradients take too long here to estimate L in {BUDGET:g} s"
    if known is not None:
        return known
    facts.append(f"the step cannot be judged: {why}")
    return None


def _with_loss(metrics: Mapping[str, NDArray[Any]]) -> Mapping[str, NDArray[Any]]:
    """Return the rows of the evaluations that measured the loss; all rows if none did."""
    if "loss" not in metrics:
        return metrics
    known = ~np.isnan(metrics["loss"])
    return {name: values[known] for name, values in metrics.items()}


def _learns(metrics: Mapping[str, NDArray[Any]]) -> bool | None:
    """Return whether the loss went down; None if that is unknown."""
    losses = metrics.get("loss")
    if losses is None or len(losses) < 2:
        return None
    return bool(np.isfinite(losses[-1]) and losses[-1] < losses[0] - 0.02 * abs(losses[0]))


def _about_learning(
    metrics: Mapping[str, NDArray[Any]], learns: bool | None, diverged: bool, problems: list[str]
) -> None:
    losses = metrics.get("loss")
    if diverged:
        known = "" if losses is None or not len(losses) else f"; its last value before that was {number(losses[-1])}"
        problems.append(f"the loss is not finite any more{known}")
    elif learns is False and losses is not None:
        grown = losses[-1] > losses[0] + 0.02 * abs(losses[0]) or not np.isfinite(losses[-1])
        problems.append(
            f"the loss {'grew' if grown else 'hardly changed'}: from {number(losses[0])} to {number(losses[-1])} in "
            f"{metrics['iteration'][-1]} iterations"
        )


def _about_step(
    method: Method,
    delays: Delays,
    limit: Diagnosis,
    steps: Steps,
    learns: bool | None,
    differ: bool | None,
    facts: list[str],
    problems: list[str],
) -> None:
    safe, smoothness, rests = limit.safe_step, limit.smoothness, limit.conditions
    if safe is None or smoothness is None:
        return
    used, schedule = method.step.peak * steps.used, method.step.schedule
    ratio = used / safe
    fine = ". The loss still went down, so no change is needed" if learns and ratio > 1 else ""
    what = number(used, 3) if schedule is None else f"{schedule!r} with the peak {number(used, 3)}"
    if steps.scaled:
        low, high = number(steps.smallest, 3), number(steps.largest, 3)
        what += f" (the largest: callbacks multiplied steps by {low} to {high})"
    facts.append(
        f"step size: {what} is {_times(ratio)} the worst-case safe limit ({number(safe, 2)} for L ≈ "
        f"{number(smoothness, 3)} and these delays{''.join(f'; {rest}' for rest in rests)}){fine}"
    )
    option, scaled = "stepsize" if schedule is None else "peak", safe / steps.used
    if learns is False and ratio > MUCH:
        # If data differ between workers, smaller steps for late updates neglect the slow workers' data.
        adapted = method.using(step=DelayAdaptive(method.step.stepsize))
        allows_more = not differ and safe_step(adapted, delays, smoothness) > safe
        adaptive = f", or delay_adaptive(...), which allows more{_if_alike(differ)}" if allows_more else ""
        problems.append(f"the step is too large: try {option}={_down(scaled)} to {MUCH * scaled:.1g}{adaptive}")
    elif learns is False and method.step.peak * steps.mean / safe < 1 / (10 * MUCH):
        also = f", or scale it less: its mean factor was {number(steps.mean, 2)}" if steps.mean < steps.largest else ""
        problems.append(f"the step is smaller than necessary: try {option}={_down(scaled)}{also}")


def _about_schedule(trace: Trace, method: Method, problems: list[str]) -> None:
    """Report updates that could not move the model, because the schedule had ended at 0."""
    schedule = method.step.schedule
    ended = getattr(schedule, "total", None)
    if schedule is not None and isinstance(ended, int) and ended < trace.iterations and schedule.value(ended) == 0:
        problems.append(
            f"{schedule!r} ended at iteration {ended}, so the {trace.iterations - ended} updates after it had a step "
            "of 0; a new run with a larger total, or with final above 0, uses them"
        )


def _if_alike(differ: bool | None) -> str:
    """Return the condition under which late updates may get less weight, if the task leaves that open."""
    return ", if the data of all workers are alike" if differ is None else ""


def _about_stragglers(
    delays: Delays, method: Method, differ: bool | None, label: Callable[[int], str], problems: list[str]
) -> None:
    if isinstance(method.step, Constant) and delays.maximum > 10 * delays.concurrency:
        slowest = max(delays.per_worker, key=lambda worker: delays.per_worker[worker])
        behind, scheduled = delays.maximum / delays.concurrency, method.step.schedule is not None
        # By Theorem 1 for a constant step, and by Theorem 2 for the peak of a schedule.
        loss, what = (behind, "the peak of the step") if scheduled else (np.sqrt(behind), "a constant step")
        remedy = f"delay_adaptive(...) does not{_if_alike(differ)}"
        if differ and isinstance(method.dispatch, Uniform | Shuffled):
            remedy = "fewer jobs in flight make delays shorter, and all workers keep the same weight"
        elif differ:
            remedy = (
                "federated_async_sgd(...) with few jobs in flight keeps delays short and gives every worker's data "
                "the same weight"
            )
        problems.append(
            f"{label(slowest)} is far behind (mean delay {number(delays.per_worker[slowest], 3)}), so {what} has to "
            f"be {number(loss, 2)} times smaller than without it; {remedy}"
        )


def _about_waste(trace: Trace, delays: Delays, facts: list[str], problems: list[str]) -> None:
    counts = trace.counts
    ended = max(1, sum(n for outcome, n in counts.items() if outcome is not Outcome.IN_FLIGHT))
    parts = {name: counts[Outcome[name.upper()]] / ended for name in ("dropped", "rejected", "lost", "cancelled")}
    wasted = [f"{'under 0.1%' if share < 0.0005 else f'{share:.1%}'} {name}" for name, share in parts.items() if share]
    if wasted:
        facts.append(f"of all jobs that ended: {', '.join(wasted)}")
    if parts["dropped"] > 0.3:
        problems.append(
            f"{parts['dropped']:.0%} of the updates were dropped: a threshold of at least twice the concurrency "
            f"({2 * delays.concurrency}) keeps at least half"
        )
    if parts["rejected"] > 0.01:
        first = int(np.flatnonzero(trace.jobs.outcome == Outcome.REJECTED)[0])
        problems.append(
            f"{parts['rejected']:.0%} of the updates were NaN or infinite: look at the first one with "
            f"asgd.replay(directory, job={first}), try a smaller step or clipping"
        )


def _about_workers(run: Observed, facts: list[str], problems: list[str]) -> None:
    trace, task, method = run.trace, run.task, run.method
    workers, index = np.unique(trace.worker, return_inverse=True)
    totals = np.bincount(index, weights=trace.step)
    if len(workers) < 2 or not totals.sum():
        return
    shares = totals / totals.sum()
    top, low = int(np.argmax(shares)), int(np.argmin(shares))
    most, least = run.label(int(workers[top])), run.label(int(workers[low]))
    if shares[top] < 1.01 * shares[low]:
        facts.append(f"each of the {len(workers)} workers gave the same share of the total step")
    else:
        facts.append(
            f"{most} gave {shares[top]:.0%} of the total step, {least} {shares[low]:.0%} ({len(workers)} workers)"
        )
    if task is None or method is None or not is_heterogeneous(task):
        return
    if isinstance(method.dispatch, Uniform | Shuffled):
        _about_bound(method.dispatch, least, np.bincount(index), shares, problems)
    elif shares[top] > 1.5 * shares.mean() and method.bias:
        problems.append(
            f"{most} dominates and the data differ from worker to worker, so the model fits its data "
            "best; federated_async_sgd(...) gives every worker the same weight"
        )


def _about_bound(
    dispatch: Uniform | Shuffled, slowest: str, counts: NDArray[Any], shares: NDArray[Any], problems: list[str]
) -> None:
    """Report a worker whose share is too small because few jobs may wait for one worker."""
    behind = counts.mean() - counts.min()
    if dispatch.favours_fast and shares.min() < shares.mean() / 1.5 and behind > BY_CHANCE * np.sqrt(counts.mean()):
        problems.append(
            f"{slowest} gave {shares.min():.0%} of the total step where {shares.mean():.0%} are fair, as "
            f"{dispatch.favours_fast}, and the data differ from worker to worker; a longer queue takes that away"
        )


def _about_faults(faults: Faults, label: Callable[[int], str], facts: list[str]) -> None:
    if faults.deaths or faults.exceptions or faults.retired:
        retired = f", without {', '.join(map(label, faults.retired))} at the end" if faults.retired else ""
        replaced = "1 worker" if faults.deaths == 1 else f"{faults.deaths} workers"
        facts.append(f"faults: {replaced} replaced, {faults.exceptions} exceptions in your code{retired}")
    if faults.evaluations:
        failed = "1 evaluation" if faults.evaluations == 1 else f"{faults.evaluations} evaluations"
        facts.append(f"{failed} failed: see evaluation_failed in the journal")


def _times(ratio: float) -> str:
    if ratio >= 0.995:
        return f"{times(ratio)} times"
    return f"{ratio:.0%} of" if ratio >= 0.0995 else f"{times(1 / ratio)} times smaller than"


def _down(value: float) -> str:
    """Return one digit, rounded down, so that the number shown is not above the safe step."""
    return f"{float(Context(prec=1, rounding=ROUND_DOWN).create_decimal(value)):g}"
