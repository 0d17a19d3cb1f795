"""Merge a buffer so that a minority of wrong or hostile updates cannot move the model where it wants.

Each rule holds the K updates of a buffer (K vectors of the model's length) and merges them when it is full. The weight
of the step rule multiplies an update before it is merged, as in `asyncsgd.core.aggregation.Buffer`. Weights by reported
examples are refused: a hostile worker would claim many examples, and these rules promise that every worker counts once.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from asyncsgd.core.aggregation import Aggregation, State
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.events import Arrival
from asyncsgd.core.kernels import Kernels
from asyncsgd.core.validate import count, is_id, is_number
from asyncsgd.core.vectors import BLOCK, Vector


@dataclass(frozen=True)
class Robust(Aggregation):
    """Base of the robust rules: after ``size`` = K arrivals the model moves by what `merge` makes of them, step η."""

    size: int
    weighs: ClassVar[str | None] = None

    def __post_init__(self) -> None:
        count("size", self.size)

    def init(self, x: Vector, seed: int) -> State:
        return {"rows": {}, "held": 0}

    def vectors(self, workers: int) -> int:
        return self.size + 1  # the updates, and the merged one

    def add(
        self,
        state: State,
        g: Vector,
        stepsize: float,
        weight: float,
        arrival: Arrival,
        kernels: Kernels | None = None,
    ) -> tuple[Vector, float] | None:
        rows, held, kernels = state["rows"], state["held"], kernels or Kernels()
        if held not in rows:
            rows[held] = np.empty_like(g)
        kernels.scale(g, weight, rows[held])
        state["held"] = held + 1
        if state["held"] < self.size:
            return None
        state["held"] = 0
        merged = kernels.scratch(g)
        self.merge([rows[place] for place in range(self.size)], merged, kernels)
        return merged, stepsize

    @abstractmethod
    def merge(self, rows: Sequence[Vector], out: Vector, kernels: Kernels) -> None:
        """Write into ``out`` the direction that the updates ``rows``, in order of arrival, make together."""

    def share(self, state: State, stepsize: float, weight: float) -> float:
        return stepsize * weight / self.size


@dataclass(frozen=True)
class Median(Robust):
    """The median of the K updates in every coordinate; the mean of the two middle ones if K is even (Yin et al. 2018).

    Fewer than half of the updates, whatever they hold, cannot move a coordinate beyond the values of the others.
    """

    def merge(self, rows: Sequence[Vector], out: Vector, kernels: Kernels) -> None:
        low, high = (len(rows) - 1) // 2, len(rows) // 2
        for part, ordered in _ordered(rows):
            out[part] = ordered[low] if low == high else 0.5 * ordered[low] + 0.5 * ordered[high]


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean in every coordinate without the ⌊fraction·K⌋ smallest and as many largest values (Yin et al. 2018)."""

    fraction: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_number(self.fraction) or not 0 < self.fraction < 0.5:
            fix = "pass the share to leave out at each end, such as 0.1"
            raise BadParameter("fraction", self.fraction, "must lie between 0 and 0.5", fix)
        if self.trimmed == 0:
            fix = f"pass fraction >= {1 / self.size:.3g}" if self.size > 2 else "pass size >= 3"
            raise BadParameter("fraction", self.fraction, f"leaves out nothing of {self.size} updates", fix)

    @property
    def trimmed(self) -> int:
        """The number of values that are left out at each end."""
        return min(int(self.fraction * self.size + 1e-9), (self.size - 1) // 2)  # 0.29 · 100 is 28.999999999999996

    def merge(self, rows: Sequence[Vector], out: Vector, kernels: Kernels) -> None:
        first, end = self.trimmed, len(rows) - self.trimmed
        for part, ordered in _ordered(rows):
            total = out[part]
            total[:] = ordered[first]
            for row in ordered[first + 1 : end]:
                total += row
            total /= end - first


@dataclass(frozen=True)
class Krum(Robust):
    """The update with the least sum of squared distances to its K - f - 2 nearest others (Blanchard et al. 2017).

    ``byzantine`` is f, the number of hostile updates that a buffer may hold; the rule needs K ≥ 2f + 3. ``keep`` above
    1 takes the mean of that many best updates (Multi-Krum). Equal sums go to the update that arrived first.
    """

    byzantine: int = 1
    keep: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_id(self.byzantine) or self.byzantine < 0:
            raise BadParameter("byzantine", self.byzantine, "is not a number of updates", "pass 0 or more")
        if self.size < 2 * self.byzantine + 3:
            fix = f"pass size >= {2 * self.byzantine + 3}"
            if self.size >= 3:
                fix += f" or byzantine <= {(self.size - 3) // 2}"
            raise BadParameter("size", self.size, f"is too small for byzantine = {self.byzantine}", fix)
        count("keep", self.keep)
        most = self.size - self.byzantine - 2
        if self.keep > most:
            raise BadParameter("keep", self.keep, "would keep hostile updates too", f"pass keep <= {most}")

    def merge(self, rows: Sequence[Vector], out: Vector, kernels: Kernels) -> None:
        size = len(rows)
        squared = np.zeros((size, size))
        for i in range(size):
            for j in range(i):
                np.subtract(rows[i], rows[j], out=out)  # `out` is free until the end
                length = kernels.norm(out)
                squared[i, j] = squared[j, i] = length * length
        nearest = size - self.byzantine - 2
        scores = []
        for i in range(size):
            others = sorted(float(squared[i, j]) for j in range(size) if j != i)
            score = 0.0
            for value in others[:nearest]:
                score = score + value
            scores.append((score, i))
        best = sorted(place for _, place in sorted(scores)[: self.keep])
        out[:] = rows[best[0]]
        for place in best[1:]:
            kernels.subtract(out, -1.0, rows[place], out)
        if len(best) > 1:
            out /= len(best)


def _ordered(rows: Sequence[Vector]) -> Iterator[tuple[slice, Vector]]:
    """Yield parts of the coordinates, each with the values of all rows there, every column sorted.

    The sort is stable, so that 0.0 and -0.0, which are equal, stay in the order of arrival on every machine.
    """
    n, width = len(rows[0]), max(1024, BLOCK // len(rows))
    for start in range(0, n, width):
        part = slice(start, min(start + width, n))
        yield part, np.sort(np.stack([row[part] for row in rows]), axis=0, kind="stable")
