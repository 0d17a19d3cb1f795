"""A plan: every candidate, the recommended one, its distance from the limit, and notes for the reader."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.format import number
from asyncsgd.planning.accuracy import Target
from asyncsgd.planning.advice import Advice, Row, baseline
from asyncsgd.planning.candidates import LABELS, Formulas
from asyncsgd.planning.network import Network
from asyncsgd.planning.workers import GROUPS, MeasuredWorkers

ROUGH = 4.0
"""The squared coefficient of variation from which the formula with queues is rough, see `asyncsgd.theory.queues`."""
FEW = 5
"""With fewer measured jobs than this, a worker's durations are hardly known."""


def notes(plan: Plan) -> list[str]:
    """Return what a reader should keep in mind, one sentence each; empty if there is nothing."""
    found = []
    low = plan.workers.durations.lowered
    if plan.workers.samples is not None:
        counts = np.diff(low.sample_bounds)
        few = int(((counts < FEW) & (counts > 0)).sum())
        if few:
            found.append(
                f"{few} of {plan.workers.count} workers were measured fewer than {FEW} times: how much their "
                "durations vary is not known; measure more jobs."
            )
    widest = float(plan.workers.variability.max())
    if widest > ROUGH:
        found.append(
            f"some workers' durations vary very much (variance {number(widest, 3)} times the squared mean): the time "
            "with queues is rough, trust the simulated one."
        )
    loose = [row for row in plan.rows if not row.settled]
    if loose:
        names = ", ".join(dict.fromkeys(f"{row.label} with {row.concurrency:,} in flight" for row in loose[:3]))
        more = f" and {len(loose) - 3} more" if len(loose) > 3 else ""
        found.append(
            f"marked * (not recommended): {names}{more} had not settled when the simulation ended, because queues "
            "still grew or the slowest worker had hardly answered; expect it to get slower than shown."
        )
    return found


FORMAT = 1
"""The format of a plan's dictionary. It increases when an older program would misunderstand it."""


@dataclass(frozen=True, eq=False)
class Limit:
    """The known lower limit on the time with these workers."""

    seconds: float
    """Seconds to the target, up to constants."""
    workers: int | None
    """The number of fastest workers that suffice; None if all are needed."""
    ratio: float
    """How many times longer the recommended row takes."""


@dataclass(frozen=True, eq=False)
class Plan:
    """Every candidate, the recommended one, and how far it is from the limit.

    >>> import asyncsgd as asgd
    >>> plan = asgd.plan([1.0, 1.0, 9.0])
    >>> plan.advice.row in plan.rows, "groups" in plan.to_dict()
    (True, True)

    See docs/users/planner.md for how to read a plan.
    """

    workers: MeasuredWorkers
    target: Target
    rows: tuple[Row, ...]
    formulas: Formulas
    """The speed-up lemma and related formulas, by concurrency."""
    advice: Advice
    limit: Limit
    seed: int
    network: Network | None = None
    """Local steps and compression for workers behind a network; None without one."""

    @property
    def recommended(self) -> Row:
        """The recommended row."""
        return self.advice.row

    @property
    def reason(self) -> str:
        """The advice and its reason in one sentence."""
        return self.advice.sentence

    @property
    def recipe(self) -> str:
        """The call that makes the recommended method, with its largest step for smoothness L."""
        assert self.recommended.accuracy is not None
        return self.recommended.candidate.recipe(self.recommended.accuracy.step)

    @property
    def baseline(self) -> Row:
        """Mini-batch SGD with all workers that may work at once."""
        return baseline(self.rows)

    def best(self) -> list[Row]:
        """Return the best row of each method: the recommended one, else the fastest (per gradient if biased)."""
        found = []
        for method in LABELS:
            for subset in (False, True):
                rows = [
                    row
                    for row in self.rows
                    if row.candidate.method == method and (row.candidate.workers < row.candidate.total) == subset
                ]
                if self.recommended in rows:
                    found.append(self.recommended)
                elif rows:
                    found.append(min(rows, key=lambda row: row.seconds_to_target or row.seconds))
        return found

    def at(self, method: str) -> list[Row]:
        """Return the rows of a method on all workers, by concurrency."""
        rows = [r for r in self.rows if r.candidate.method == method and r.candidate.workers == r.candidate.total]
        return sorted(rows, key=lambda row: row.concurrency)

    def notes(self) -> list[str]:
        """Return what to keep in mind, such as runs that did not settle and workers that were measured too rarely."""
        return notes(self)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and text, ready for JSON; unknown values are None."""
        means, base = self.workers.means, self.baseline.seconds_to_target
        members = np.bincount(self.workers.group, minlength=len(GROUPS))
        rows = [row.to_dict(base) for row in self.rows]
        place = self.rows.index(self.recommended)
        return {
            "format": FORMAT,
            "source": self.workers.name,
            "workers": self.workers.count,
            "samples": self.workers.samples,
            "seconds_per_job": {
                "fastest": float(means.min()),
                "median": float(np.median(means)),
                "mean": float(means.mean()),
                "slowest": float(means.max()),
            },
            "groups": {name: int(many) for name, many in zip(GROUPS, members, strict=True)},
            "target": {
                "epsilon": self.target.epsilon,
                "noise": self.target.noise,
                "heterogeneous": self.target.heterogeneous,
                "heterogeneity": self.target.heterogeneity,
            },
            "seed": self.seed,
            "rows": rows,
            "recommended": {"row": place, **{k: v for k, v in rows[place].items() if k != "groups"}},
            "reason": self.reason,
            "limit": {"seconds": self.limit.seconds, "workers": self.limit.workers, "ratio": self.limit.ratio},
            "network": None if self.network is None else self.network.to_dict(),
            "notes": self.notes(),
        }

    def write_page(self, path: str | PathLike[str]) -> Path:
        """Write a self-contained page; needs ``pip install 'asyncsgd[report]'``."""
        from asyncsgd.planning.page import write

        return write(self, Path(path))

    def __rich__(self) -> Any:
        from asyncsgd.planning.terminal import render

        return render(self)

    def __repr__(self) -> str:
        return f"<Plan for {self.workers.count} workers: {self.reason}>"
