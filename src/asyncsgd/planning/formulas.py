"""Seconds per gradient by formula, to stand beside the simulated ones."""

from __future__ import annotations

from dataclasses import dataclass

from asyncsgd.planning.candidates import ALGORITHM2, MINIBATCH, OVER, Candidate
from asyncsgd.planning.fleet import Fleet
from asyncsgd.theory import Speedup, over_selection_time


@dataclass(frozen=True)
class Formula:
    """Seconds per gradient by formula; None where there is none."""

    lemma: float | None = None
    """For fixed durations, without queues: the speed-up lemma for Algorithm 2 and for batches that are drawn, the
    slowest worker for a batch of everybody, the goal-th answer for over-selection, 1/Σ(1/Δ_i) if all are busy."""
    queued: float | None = None
    """Algorithm 2 with its queues, for durations that vary as measured."""
    least: float | None = None
    """The same with variability cut at 1 (exponential): never much too long, as ``queued`` can be beyond that."""
    floor: float | None = None
    """Algorithm 2: what the slowest worker allows at most, as it gets as many jobs as everybody."""


@dataclass(frozen=True)
class Formulas:
    """What the theory says, by concurrency: seconds for as many gradients as are in flight."""

    speedups: dict[int, Speedup]
    queued: dict[int, float]
    least: dict[int, float]

    def of(self, candidate: Candidate, workers: Fleet) -> Formula:
        """What it says of a candidate on these workers."""
        c = candidate.concurrency
        everybody = c == candidate.workers
        if candidate.method == ALGORITHM2:
            known = self.speedups[c]
            return Formula(known.asynchronous / c, self.queued[c] / c, self.least[c] / c, known.floor / c)
        if candidate.method == OVER:
            return Formula(over_selection_time(workers.means, candidate.batch, c) / candidate.batch)
        if candidate.method == MINIBATCH:
            return Formula((float(workers.means.max()) if everybody else self.speedups[c].minibatch) / c)
        return Formula(1 / float((1 / workers.means).sum())) if everybody else Formula()
