"""Weigh updates by the examples that workers report, as federated averaging does.

One rule holds for every method. A worker whose job used n_i examples has the relative weight a_i = n_i / n̄, and n̄ is
the mean of the last reports of all workers. The relative weight multiplies the weight w_i of the step rule, so that
data and delay have separate effects:

- one by one: x ← x - η w_i a_i g_i,
- buffers under random or busy dispatch: x ← x - η (1/K) Σ w_i a_i g_i,
- memories of every worker (MIFA, calibrated FedBuff): the memory holds a_i g_i in place of g_i,
- rounds (`asyncsgd.core.dispatch.FirstOf`, `asyncsgd.core.dispatch.Batch`): n̄ is the mean of the round itself, so
  that x ← x - η Σ n_i w_i g_i / Σ n_i. This is the mean of federated averaging.

If every worker is drawn equally often, the expected step is then η Σ n_i ∇f_i / Σ n_i, up to a factor that is the same
for all workers: the method tends to the minimum of Σ n_i f_i / Σ n_i. A buffer that divided by its own Σ n_i would not:
with one arrival per buffer the weights would cancel. If all workers report the same number, every a_i is exactly 1.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from dataclasses import dataclass

from asyncsgd.core.aggregation import Buffer, State
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrival
from asyncsgd.core.validate import is_number
from asyncsgd.core.vectors import Vector


@dataclass(frozen=True)
class Weights:
    """Weigh updates by the reported examples; outside rounds a report counts as at most ``limit`` times the median.

    The limit keeps a worker that claims 10⁹ examples from taking over: n_i is replaced by min(n_i, limit · median of
    all last reports), here and in n̄. So the relative weight never exceeds 2 · ``limit``, whatever a minority of the
    workers claims. None lifts the limit. In a round the weights are shares of 1, so that no step can grow, and the
    limit does not apply: the round is the one of federated averaging.
    """

    limit: float | None = 10.0

    def __post_init__(self) -> None:
        if self.limit is not None and (not is_number(self.limit) or self.limit < 1):
            fix = "pass a number of at least 1, or None for no limit"
            raise BadParameter("limit", self.limit, "is not a multiple of the median report", fix)


@dataclass(frozen=True)
class WeightedRound(Buffer):
    """A round of federated averaging: direction Σ n_i w_i g_i / Σ n_i, where n_i is the number of examples.

    `asyncsgd.core.update.Update` puts it in the place of the `Buffer` of a method with weights that works in rounds.
    If no update of the round used any example, the direction is 0.
    """

    def init(self, x: Vector, seed: int) -> State:
        return {**super().init(x, seed), "weights": 0.0}

    def own_weight(self, arrival: Arrival) -> float | None:
        return 1.0 if arrival.examples is None else float(arrival.examples)


class Reports:
    """The last number of examples that each worker reported, and the relative weights that follow.

    All sums are of Python integers, so a weight depends on the reports alone, not on the order in which they came.
    """

    def __init__(self, limit: float | None, last: dict[int, int]) -> None:
        self._limit, self._last = limit, last
        self._ordered = sorted(last.values())
        self._total = sum(self._ordered)
        self._capped: tuple[int | None, int] | None = (
            None  # (the cap, the sum of capped reports), until a report changes
        )

    def take(self, worker: int, examples: int | None) -> tuple[int, float]:
        """Record a report; return (the examples that the update counts as in a round, its relative weight).

        A worker that reports nothing counts as an average worker. One that used no example has weight 0. Neither
        changes the mean.

        >>> reports = Reports(10.0, {})
        >>> reports.take(0, 900), reports.take(1, 100), reports.take(2, None)
        ((900, 1.0), (100, 0.2), (500, 1.0))
        >>> reports.take(0, 900)
        (900, 1.8)
        """
        if examples is None:
            known = len(self._ordered)
            return (max(1, round(self._total / known)) if known else 1), 1.0
        examples = int(examples)
        if examples == 0:
            return 0, 0.0
        self._record(worker, examples)
        cap, total = self._sum()
        counted = examples if cap is None else min(examples, cap)
        return examples, counted * len(self._ordered) / total

    @property
    def lowered(self) -> tuple[int, int, int] | None:
        """(worker, its report, what it counts as) for the largest report, if the limit lowers it; else None."""
        cap, _ = self._sum()
        if cap is None or self._ordered[-1] <= cap:
            return None
        worker = max(self._last, key=self._last.__getitem__)
        return worker, self._last[worker], cap

    def _record(self, worker: int, examples: int) -> None:
        before = self._last.get(worker)
        if before == examples:
            return
        if before is not None:
            del self._ordered[bisect_left(self._ordered, before)]
            self._total -= before
        self._last[worker] = examples
        insort(self._ordered, examples)
        self._total += examples
        self._capped = None

    def _sum(self) -> tuple[int | None, int]:
        if self._capped is None:
            cap, total, ordered = None, self._total, self._ordered
            if self._limit is not None:
                middle = ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]
                cap = int(self._limit * middle / 2)
                above = ordered[bisect_right(ordered, cap) :]
                total -= sum(above) - len(above) * cap
            self._capped = cap, total
        return self._capped
