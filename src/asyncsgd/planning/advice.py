"""The rows of a plan, the recommended one, and the reason in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from asyncsgd.core.errors import UsageError
from asyncsgd.core.method import Method
from asyncsgd.core.validate import positive
from asyncsgd.format import percent, rounded, span, times
from asyncsgd.planning.accuracy import Accuracy, favours_fast
from asyncsgd.planning.candidates import (
    ADAPTIVE,
    ALGORITHM2,
    ASYNC,
    MINIBATCH,
    SIMPLEST_FIRST,
    Candidate,
    Formula,
    SimulatedRun,
)
from asyncsgd.planning.workers import MeasuredWorkers

FILLED = 0.9
"""If a run takes less than this share of the formula's long-run time, its queues are not full yet."""
FAIR = 0.95
"""A group with less than this fraction of its fair share is neglected."""


@dataclass(frozen=True, eq=False)
class Row:
    """One row of a plan: a candidate with its simulated run, formulas and theorem.

    See docs/users/planner.md for how to read the table.
    """

    candidate: Candidate
    simulated: SimulatedRun
    formula: Formula
    accuracy: Accuracy | None
    """None if no theorem covers the candidate, because the data differ and the rule favours fast workers."""

    @property
    def label(self) -> str:
        """The candidate's name in a table."""
        return self.candidate.label

    @property
    def concurrency(self) -> int:
        """Jobs in flight."""
        return self.candidate.concurrency

    @property
    def seconds(self) -> float:
        """Simulated seconds per gradient that reaches the model."""
        return self.simulated.seconds

    @property
    def settled(self) -> bool:
        """Whether the simulated run shows the long run: queues on slow workers may take very long to fill."""
        least = self.formula.least
        return self.simulated.settled and (least is None or self.seconds >= FILLED * least)

    @property
    def seconds_to_target(self) -> float | None:
        """Seconds to the target, up to the constants of the proofs: good for comparing, not a forecast."""
        return None if self.accuracy is None else self.seconds * self.accuracy.gradients

    @property
    def guaranteed_seconds(self) -> float | None:
        """Seconds after which the theorem guarantees the target, every constant included."""
        return None if self.accuracy is None else self.seconds * self.accuracy.guaranteed

    @property
    def biased(self) -> bool:
        """Whether the candidate favours fast workers by its rule, and did so in the simulated run.

        With few jobs in flight, workers that take turns contribute equally although the rule does not ensure it.
        """
        seen, candidate = self.simulated, self.candidate
        if candidate.workers < candidate.total:
            return True
        balanced = all(group.share >= FAIR * group.workers / candidate.total for group in seen.groups)
        weighed = candidate.method == ADAPTIVE and seen.delays.maximum > seen.delays.concurrency
        return favours_fast(candidate) and (weighed or not balanced)

    def method(self, smoothness: float) -> Method:
        """Return the method with the largest step that its theorem allows for this L; raise if no theorem covers it."""
        positive("smoothness", smoothness)
        if self.accuracy is None:
            raise UsageError(
                f"no theorem covers {self.label} if the data differ between workers, because it favours fast "
                "workers; choose a step yourself and pass it to row.candidate.build(stepsize)"
            )
        return self.candidate.build(self.accuracy.step / smoothness)

    def to_dict(self, baseline: float | None) -> dict[str, Any]:
        """Return plain numbers and text; ``baseline`` is the time to the target that ``relative`` refers to."""
        candidate, seen, proven = self.candidate, self.simulated, self.accuracy
        time = self.seconds_to_target
        return {
            "method": candidate.method,
            "label": self.label,
            "concurrency": candidate.concurrency,
            "workers": candidate.workers,
            "goal": candidate.goal,
            "seconds_per_gradient": seen.seconds,
            "standard_error": seen.error,
            "settled": self.settled,
            "simulated_gradients": seen.iterations,
            "lemma": self.formula.lemma,
            "queued": self.formula.queued,
            "floor": self.formula.floor,
            "average_delay": seen.delays.average,
            "maximum_delay": seen.delays.maximum,
            "groups": [vars(group) for group in seen.groups],
            "biased": self.biased,
            "theorem": None if proven is None else proven.theorem,
            "step": None if proven is None else proven.step,
            "seconds_to_target": time,
            "relative": None if time is None or baseline is None else time / baseline,
            "guaranteed_seconds": self.guaranteed_seconds,
            "recipe": None if proven is None else candidate.recipe(proven.step),
        }


WORTH = 0.1
"""A method has to save this share of the time before it is preferred to a simpler one, or to fewer jobs in flight."""


@dataclass(frozen=True)
class Advice:
    """What to do and why."""

    row: Row
    headline: str
    reason: str

    @property
    def sentence(self) -> str:
        """The advice and its reason as one sentence."""
        return f"{self.headline}: {self.reason}."


def recommend(rows: Sequence[Row]) -> Row:
    """Return the simplest method, with most workers and fewest jobs, within 10 % of the shortest time to the target.

    Rows whose simulation did not settle count only if there are no others: they would get slower still. Times are
    compared as the table shows them.
    """
    base, sure = baseline(rows), _sure(rows)
    best = min(_time(row, base) for row in sure)
    near = [row for row in sure if _time(row, base) * (1 - WORTH) <= best * (1 + 1e-9)]
    return min(
        near,
        key=lambda row: (SIMPLEST_FIRST.index(row.candidate.method), -row.candidate.workers, row.concurrency),
    )


def baseline(rows: Sequence[Row]) -> Row:
    """Return the row that others are compared with: mini-batch SGD on all workers, or as many as may work at once."""
    whole = [row for row in rows if row.candidate.method == MINIBATCH and row.candidate.workers == row.candidate.total]
    return max(whole, key=lambda row: row.concurrency)


def advise(rows: Sequence[Row], workers: MeasuredWorkers, *, heterogeneous: bool) -> Advice:
    """Return the recommended row with its reason."""
    row = recommend(rows)
    reason = _reason_heterogeneous(row, rows) if heterogeneous else _reason(row, rows, workers)
    return Advice(row, headline(row), reason)


def headline(row: Row) -> str:
    """Return the advice as an imperative."""
    candidate = row.candidate
    m, n, jobs = candidate.workers, candidate.total, candidate.concurrency
    if m == 1:
        return "Use SGD on the fastest worker alone"
    whom = f"on all {n:,} workers" if m == n else f"on the {m:,} fastest workers only"
    if candidate.goal is not None:
        return f"Use over-selection: ask {jobs:,} workers per round and keep the first {_answers(candidate.goal)}"
    if candidate.method == MINIBATCH:
        if jobs == m:
            return f"Use mini-batch SGD {whom}"
        if jobs == 1:
            return "Use plain SGD, one gradient at a time, on a worker drawn for each"
        return f"Use mini-batch SGD, {jobs:,} workers drawn for each batch"
    if candidate.method == ALGORITHM2:
        return f"Use Algorithm 2 with {_jobs(jobs)} in flight and a constant step, workers drawn at random"
    steps = " with delay-adaptive steps" if candidate.method == ADAPTIVE else ""
    if jobs == m:
        return f"Use asynchronous SGD{steps} {whom}, all busy"
    return f"Use asynchronous SGD{steps} with {_jobs(jobs)} in flight"


def _reason(row: Row, rows: Sequence[Row], workers: MeasuredWorkers) -> str:
    candidate, base = row.candidate, baseline(rows)
    left_out = candidate.total - candidate.workers
    sooner = times(1 / _time(row, base))
    if candidate.workers == 1:
        return _alone(rows, workers)
    if candidate.method == MINIBATCH:
        if left_out:
            was, now = span(base.seconds * base.concurrency), span(row.seconds * row.concurrency)
            others = "no other method" + (" whose simulation settled" if _loose_saves(row, rows) else "")
            return (
                f"a batch takes {now} without the {_many(left_out, 'slowest')} and {was} with, and {others} would save "
                f"more than {percent(WORTH)} of the time"
            )
        return _no_gain(row, rows, workers)
    gain = f"it reaches the same accuracy {sooner} times sooner than {_with(base)}"
    if candidate.goal is not None:
        return f"{gain}, which waits for the slowest, and no simpler method comes within {percent(WORTH)}"
    delays = row.simulated.delays
    pace = f"a gradient comes every {span(row.seconds)} instead of every {span(base.seconds)}"
    if row.seconds >= base.seconds or span(row.seconds) == span(base.seconds):
        pace = "its delays stay short"
    text = f"{gain}, because {pace}"
    if candidate.method == ADAPTIVE:
        text += f", and smaller steps for late gradients make up for delays of up to {delays.maximum:,} iterations"
    else:
        text += f", at delays of {delays.average:,.0f} iterations on average and {delays.maximum:,} at most"
    if left_out:
        text += f"; the {_many(left_out, 'slowest')} would lengthen the delays more than it is worth"
    return text


def _alone(rows: Sequence[Row], workers: MeasuredWorkers) -> str:
    """Return why other workers do not help: only one job may be in flight, they are far slower, or noise is small."""
    if max(row.concurrency for row in rows) == 1:
        return "only one job may be in flight, and no other worker is faster"
    rate = 1 / workers.means
    others = 1 - float(rate.max() / rate.sum())
    if others < WORTH:
        return f"all others together would give only {percent(others)} of the gradients"
    return "at this noise, gradients of other workers add less than their delays cost"


def _no_gain(row: Row, rows: Sequence[Row], workers: MeasuredWorkers) -> str:
    base = baseline(rows)
    others = _sure([other for other in rows if other.candidate.method != MINIBATCH])
    best = min(others, key=lambda other: _time(other, base))
    saved = 1 - _time(best, base) / _time(row, base)
    waiting = max(0.0, 1 - float(workers.means.mean()) / (row.seconds * row.concurrency))
    text = (
        f"asynchrony would not pay here, as workers wait only {percent(waiting)} of the time for the slowest of a batch"
    )
    if waiting > 0.25:
        text = f"asynchrony would not pay here, although workers wait {percent(waiting)} of the time for the slowest"
    if saved <= 0:
        return f"{text} and no other method reaches the same accuracy sooner"
    return f"{text} and the best alternative ({best.label}) would save {percent(saved)} of the time"


def _reason_heterogeneous(row: Row, rows: Sequence[Row]) -> str:
    base = baseline(rows)
    text = "data differ between workers, and methods that favour fast ones would neglect the data of the others"
    busy = [r for r in rows if r.candidate.method == ASYNC and r.candidate.workers == r.candidate.total]
    last = min(busy, key=lambda r: r.seconds).simulated.groups[-1]  # the row that the table of groups shows
    members = last.workers / row.candidate.total
    if last.share < 0.8 * members and percent(last.share) != percent(members):
        text += (
            f" (under asynchronous SGD, the {percent(members)} {last.name} ones would give {percent(last.share)} "
            "of the gradients)"
        )
    fair = "among the methods that weigh all workers equally"
    rivals = {MINIBATCH: ALGORITHM2, ALGORITHM2: MINIBATCH}[row.candidate.method]
    best = min(_time(r, base) for r in _sure([r for r in rows if r.candidate.method == rivals]))
    ratio = best / _time(row, base)
    if row.candidate.method == ALGORITHM2:
        return f"{text}; {fair}, it is {times(1 / _time(row, base))} times faster than {_with(base)}"
    if ratio >= 1.05:
        return f"{text}; {fair}, it is {times(ratio)} times faster than Algorithm 2 at its best"
    if ratio >= 1:
        return f"{text}; {fair}, Algorithm 2 at its best is not faster"
    return f"{text}; {fair}, Algorithm 2 would save only {percent(1 - ratio)} of the time"


def _with(base: Row) -> str:
    jobs, m = base.concurrency, base.candidate.workers
    return "mini-batch SGD" if jobs == m else f"mini-batch SGD with {jobs:,} workers per batch"


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count:,} jobs"


def _answers(count: int) -> str:
    return "answer" if count == 1 else f"{count:,} answers"


def _many(count: int, kind: str) -> str:
    return f"{kind} worker" if count == 1 else f"{count:,} {kind} workers"


def _sure(rows: Sequence[Row]) -> list[Row]:
    """Return the rows that a theorem covers and whose simulation settled; if none settled, all covered rows."""
    covered = [row for row in rows if row.seconds_to_target is not None]
    return [row for row in covered if row.settled] or covered


def _loose_saves(row: Row, rows: Sequence[Row]) -> bool:
    """Return whether a simulation that had not settled shows a time that would be worth it."""
    base = baseline(rows)
    loose = [other for other in rows if not other.settled and other.seconds_to_target is not None]
    return any(_time(other, base) < (1 - WORTH) * _time(row, base) for other in loose)


def _time(row: Row, base: Row) -> float:
    """Return the time to the target relative to the baseline, as the table shows it."""
    assert row.seconds_to_target is not None
    assert base.seconds_to_target is not None
    return rounded(row.seconds_to_target / base.seconds_to_target)
