"""What a reader of a plan should keep in mind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from asyncsgd.format import number

if TYPE_CHECKING:
    from asyncsgd.planning.result import Plan

ROUGH = 4.0
"""The squared coefficient of variation from which the formula with queues is rough, see `asyncsgd.theory.queues`."""
FEW = 5
"""Jobs of a worker below which its durations are hardly known."""


def notes(plan: Plan) -> list[str]:
    """One sentence each; none if all is well."""
    found = []
    low = plan.fleet.durations.lowered
    if plan.fleet.samples is not None:
        counts = np.diff(low.sample_bounds)
        few = int(((counts < FEW) & (counts > 0)).sum())
        if few:
            found.append(
                f"{few} of {plan.fleet.workers} workers were measured fewer than {FEW} times: how much their "
                "durations vary is not known; measure more jobs."
            )
    widest = float(plan.fleet.variability.max())
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
