"""How long a round takes that asks some workers and keeps the first answers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from asyncsgd.core.check import count
from asyncsgd.core.errors import BadParameter
from asyncsgd.theory.inputs import sorted_durations

Floats = NDArray[np.float64]


def over_selection_time(durations: Sequence[float] | Floats, goal: int, asked: int) -> float:
    """Expected seconds of a round that asks ``asked`` workers, drawn without replacement, and keeps the first ``goal``.

    The goal-th smallest of the durations drawn: Σ_r C(r-1, goal-1) C(n-r, asked-goal) / C(n, asked) · Δ_r over the
    sorted Δ_1 ≤ … ≤ Δ_n. Exact for fixed durations. ``asked = goal`` is a round of federated averaging, ``asked = goal
    = n`` mini-batch SGD with everybody.

    Args:
        durations: Seconds per gradient, one per worker, in any order.
        goal: Answers that end the round; the others are cancelled.
        asked: Workers asked, at most all.

    >>> round(over_selection_time([10.0] * 900 + [60.0] * 100, goal=10, asked=13), 2)
    11.66

    Reference: Bonawitz et al. (2019), Towards federated learning at scale.
    """
    count("goal", goal)
    count("asked", asked)
    tau = sorted_durations(durations)
    n = len(tau)
    if not goal <= asked <= n:
        raise BadParameter("asked", asked, f"is not between goal = {goal} and {n} workers", "ask within that range")
    # p_{r+1} / p_r = r (n-r-asked+goal) / ((r-goal+1) (n-r)): sums of logarithms, as the binomials themselves overflow.
    rank = np.arange(goal, n - asked + goal, dtype=float)
    ratio = np.log(rank) - np.log(rank - goal + 1) + np.log(n - rank - asked + goal) - np.log(n - rank)
    logs = np.concatenate([[0.0], np.cumsum(ratio)])
    chance = np.exp(logs - logs.max())
    return float(chance @ tau[goal - 1 : n - asked + goal] / chance.sum())
