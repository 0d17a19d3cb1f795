"""The tables and sentences that the terminal and the page share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from asyncsgd.format import number, percent, relative, short, span, times
from asyncsgd.planning.candidates import ALGORITHM2, LABELS, MINIBATCH
from asyncsgd.planning.fleet import BORDERS, GAP

if TYPE_CHECKING:
    from asyncsgd.planning.rehearsal import Group
    from asyncsgd.planning.result import Plan
    from asyncsgd.planning.row import Row

HEADINGS_BEST = ("method", "jobs", "per\ngradient", "τ avg", "τ max", "step\n× L", "time\nto ε")
HEADINGS_QUEUES = ("jobs", "lemma", "with\nqueues", "simulated", "floor", "mini-batch\nlemma", "mini-batch\nsimulated")
NONE = "–"


def title(plan: Plan) -> str:
    """What was measured, in one line."""
    means, count = plan.fleet.means, plan.fleet.samples
    jobs = "" if count is None else f", {count:,} jobs measured"
    return (
        f"{plan.fleet.name}: {plan.fleet.workers:,} workers{jobs}, {span(float(means.min()))} to "
        f"{span(float(means.max()))} (median {span(plan.fleet.median)})"
    )


def best(plan: Plan) -> list[list[str]]:
    """Each method at its best concurrency."""
    return [cells(plan, row) for row in plan.best()]


def cells(plan: Plan, row: Row) -> list[str]:
    """A row of the comparison, in the order of ``HEADINGS_BEST``."""
    base, time, delays = plan.baseline.seconds_to_target, row.seconds_to_target, row.rehearsal.delays
    unknown = "biased" if row.biased else "unproven"
    return [
        row.label,
        f"{row.concurrency:,}",
        span(row.seconds) + ("" if row.settled else " *"),
        number(delays.average, 3),
        f"{delays.maximum:,}",
        NONE if row.accuracy is None else f"{row.accuracy.step:.2g}",
        unknown if time is None or base is None else f"{relative(time / base)} ×",
    ]


def queues(plan: Plan) -> list[list[str]]:
    """Algorithm 2 by lemma, with queues and simulated; mini-batch SGD of the same size beside it."""
    batches = {row.concurrency: row for row in plan.at(MINIBATCH)}
    rows = []
    for row in plan.at(ALGORITHM2):
        c = row.concurrency
        known, batch = plan.formulas.speedups[c], batches.get(c)
        rows.append(
            [
                f"{c:,}",
                f"{known.asynchronous:.4g}",
                f"{plan.formulas.queued[c]:.4g}",
                f"{row.seconds * c:.4g}" + ("" if row.settled else " *"),
                f"{known.floor:.4g}",
                f"{known.minibatch:.4g}",
                NONE if batch is None else f"{batch.seconds * c:.4g}",
            ]
        )
    return rows


def groups(plan: Plan, *, narrow: bool = False) -> tuple[list[str], list[list[str]]]:
    """Per method and group of workers: the share of all gradients, and the delay on average and at most."""
    found = [row for row in plan.best() if row.candidate.workers == row.candidate.total]
    names = [f"{group.name} ({group.workers:,})" for group in found[0].rehearsal.groups]
    rows = []
    for row in found:
        first = [LABELS[row.candidate.method]] if narrow else [row.label, f"{row.concurrency:,}"]
        rows.append([*first, *(_heard(group, narrow) for group in row.rehearsal.groups)])
    return (["method"] if narrow else ["method", "jobs"]) + names, rows


def _heard(group: Group, narrow: bool) -> str:
    share = percent(group.share)
    if group.average_delay is None or group.maximum_delay is None:
        return share
    if narrow:
        return f"{share}\nτ {short(group.average_delay)} ≤ {short(group.maximum_delay)}"
    return f"{share}, τ {number(group.average_delay, 3)} ≤ {group.maximum_delay:,}"


def limit(plan: Plan) -> str:
    """How far the advice is from what is possible."""
    ratio, most, n = plan.limit.ratio, plan.limit.workers, plan.fleet.workers
    jobs = max(row.concurrency for row in plan.rows)
    if plan.target.heterogeneous:
        whose = "any method that hears everybody" + ("" if jobs >= n else f", if all {n:,} could work at once")
    else:
        whose = "any method with these workers" if jobs >= n else f"any method with {jobs:,} of these workers"
    if ratio < 0.95:
        why = "it allows data to differ without bound" if plan.target.heterogeneous else "it takes durations as fixed"
        return f"That is {times(1 / ratio)} times faster than the known limit for {whose}: {why}."
    how = "at the limit" if ratio < 1.05 else f"{times(ratio)} times the limit"
    enough = ""
    if most is not None and most < min(n, jobs):
        enough = f", for which the {most:,} fastest are enough" if most > 1 else ", for which the fastest is enough"
    return f"That is {how} for {whose}, up to constants{enough}."


def assumptions(plan: Plan) -> str:
    """What the times to accuracy assume, and how to say otherwise."""
    target, jobs = plan.target, plan.baseline.concurrency
    text = f"Time to ε is relative to mini-batch SGD with {jobs:,} worker{'s' if jobs > 1 else ''}, up to constants, "
    text += f"for ε = {target.epsilon:g} L(f(x₀)-f*), σ² = {number(target.noise, 3)} ε and "
    if target.heterogeneity is None:
        return f"{text}data that are alike on all workers (options --epsilon, --noise, --heterogeneous)."
    return f"{text}ζ² = {number(target.heterogeneity, 3)} ε (options --epsilon, --noise, --heterogeneity)."


def groups_explained() -> str:
    """What the names of the groups mean."""
    fast, slow, straggling = BORDERS
    return (
        f"Groups of workers are divided at gaps, where the next slower worker takes {GAP:g} times as long or more. The "
        f"middle worker of a fast group takes less than {percent(fast)} of the median worker's time, of a slow group "
        f"more than {slow:g} times, of a straggling group more than {straggling:g} times as long."
    )
