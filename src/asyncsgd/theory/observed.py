"""The constants that the theorems ask for, from gradients that were computed anyway during a run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from asyncsgd.core.check import fraction, nonnegative
from asyncsgd.core.errors import BadParameter
from asyncsgd.theory.estimate import Estimates, gap_between
from asyncsgd.theory.inputs import numbers
from asyncsgd.theory.statistics import Figure, mean_squared_norm, normal_quantile, variance

Floats = NDArray[np.float64]
POINTS = 300
"""So many points, spread over all, are compared pair by pair."""


def estimate_from_gradients(
    points: ArrayLike,
    gradients: ArrayLike,
    *,
    workers: Sequence[int] | NDArray[Any] | None = None,
    losses: Sequence[float] | Floats | None = None,
    noise_variance: float | None = None,
    lowest: float | None = None,
    confidence: float = 0.95,
) -> Estimates:
    """What gradients seen during a run tell about L, σ², ζ_i², G and r0.

    - σ² needs repeats: two gradients or more of one worker at one point, whose scatter is pooled. Else pass it.
    - ζ_i² needs points where every worker has three gradients or more.
    - L ≥ √(‖g_a - g_b‖² - noise) / ‖x_a - x_b‖ for all pairs of points, with means of repeats; the pair with the
      largest lower end is taken, its interval made wide enough for all pairs looked at. Needs σ². Points of one run
      depend on the noise of earlier gradients, which this leaves out of account: take points many steps apart.
    - G is at least √(‖g‖² - noise), in the same way.
    - r0 is at least the first loss less the lowest.

    Args:
        points: x, one row per gradient.
        gradients: What ``update`` returned there.
        workers: Who computed it; without it, all count as one.
        losses: f(x), one per row.
        noise_variance: σ² if it is known, 0 for exact gradients.
        lowest: A known lower bound on the loss.
        confidence: Of the intervals.

    >>> x = np.array([[0.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    >>> found = estimate_from_gradients(x, x * [1.0, 3.0], losses=[5.0, 5.5, 11.0], noise_variance=0.0)
    >>> found.smoothness.value, found.gradient_bound.value, found.heterogeneity
    (3.0, 6.0, None)
    """
    x, g = _table("points", points), _table("gradients", gradients)
    if x.shape != g.shape:
        raise BadParameter("gradients", g.shape, f"do not fit points {x.shape}", "give one gradient per point")
    who = np.zeros(len(x), np.int64) if workers is None else np.asarray(workers)
    if who.shape != (len(x),) or who.dtype.kind not in "iu":
        raise BadParameter(
            "workers", workers, f"are not one number for each of {len(x)} gradients", "name who computed"
        )
    fraction("confidence", confidence)
    if noise_variance is not None:
        nonnegative("noise_variance", noise_variance)
    given = np.asarray(gradients).dtype
    precision = float(np.finfo(given if given.kind == "f" else np.float64).eps)
    names = tuple(np.unique(who).tolist())
    places = _places(x, g, who)
    repeats = [rows for place in places for rows in place.by_worker.values() if len(rows) > 1]
    noise = variance(repeats, confidence) if repeats else None
    if noise_variance is not None:
        noise = Figure(noise_variance, noise_variance, noise_variance)
    apart = _heterogeneity(places, names, confidence)
    return Estimates(
        smoothness=None if noise is None or len(places) < 2 else _smoothness(places, noise, confidence, precision),
        noise_variance=noise,
        heterogeneity=None if apart is None else apart[0],
        mean_heterogeneity=None if apart is None else apart[1],
        gradient_bound=None if noise is None else _largest(places, noise, confidence),
        gap=_gap(losses, len(x), lowest),
        workers=names,
        confidence=confidence,
    )


@dataclass(frozen=True)
class _Place:
    """One point, and the gradients computed there, by worker."""

    point: Floats
    by_worker: dict[int, Floats]

    @property
    def mean(self) -> Floats:
        """Of each worker's mean."""
        return np.asarray(np.mean([rows.mean(axis=0) for rows in self.by_worker.values()], axis=0))

    @property
    def share(self) -> float:
        """Of σ², what is left in the mean."""
        return sum(1 / len(rows) for rows in self.by_worker.values()) / len(self.by_worker) ** 2


def _places(x: Floats, g: Floats, who: NDArray[Any]) -> list[_Place]:
    rows: dict[bytes, dict[int, list[int]]] = {}
    for row, (point, worker) in enumerate(zip(x, who.tolist(), strict=True)):
        rows.setdefault((point + 0.0).tobytes(), {}).setdefault(worker, []).append(row)  # + 0.0: -0.0 is 0.0
    return [
        _Place(x[next(iter(there.values()))[0]], {worker: g[index] for worker, index in there.items()})
        for there in rows.values()
    ]


def _heterogeneity(
    places: list[_Place], names: tuple[int, ...], confidence: float
) -> tuple[tuple[Figure, ...], Figure] | None:
    """ζ_i² and ζ², the mean over the points where everybody was often enough."""
    full = [place for place in places if len(place.by_worker) == len(names) > 1]
    copies = []
    for place in full:
        often = min(len(rows) for rows in place.by_worker.values())
        if often > 2:
            equal = np.array([place.by_worker[worker][:often] for worker in names])
            copies.append(equal - equal.mean(axis=0))  # by worker, copy and coordinate; copies are independent
    if not copies:
        return None
    each = tuple(mean_squared_norm([[spread[i]] for spread in copies], confidence) for i in range(len(names)))
    return each, mean_squared_norm([list(spread) for spread in copies], confidence)


def _smoothness(places: list[_Place], noise: Figure, confidence: float, precision: float) -> Figure:
    """The largest secant, less noise."""
    chosen = [places[i] for i in np.unique(np.linspace(0, len(places) - 1, POINTS).astype(int))]
    x, g = np.array([place.point for place in chosen]), np.array([place.mean for place in chosen])
    share = np.array([place.share for place in chosen])
    a, b = np.triu_indices(len(chosen), 1)
    distance, change = _squares(x)[a, b], _squares(g)[a, b]
    rounding = (4 * precision) ** 2 * float((g**2).sum(axis=1).max())
    value, low = _less_noise(change, share[a] + share[b], noise, rounding, confidence)
    best = int(np.argmax(low / distance))
    if not low[best] > 0:  # no pair stands out of the noise: the one that would if there were any
        best = int(np.argmax(value / distance))
    return Figure(math.sqrt(value[best] / distance[best]), math.sqrt(low[best] / distance[best]), math.inf)


def _largest(places: list[_Place], noise: Figure, confidence: float) -> Figure:
    """The largest gradient of one worker, less noise."""
    means = [(rows.mean(axis=0), 1 / len(rows)) for place in places for rows in place.by_worker.values()]
    squares = np.array([float(mean @ mean) for mean, _ in means])
    value, low = _less_noise(squares, np.array([share for _, share in means]), noise, 0.0, confidence)
    best = int(np.argmax(low)) if low.any() else int(np.argmax(value))
    return Figure(math.sqrt(value[best]), math.sqrt(low[best]), math.inf)


def _less_noise(
    squares: Floats, share: Floats, noise: Figure, rounding: float, confidence: float
) -> tuple[Floats, Floats]:
    """(‖E d‖² without what noise adds to it, its lower end), for all at once.

    ‖d‖² has at most the variance 4 ‖E d‖² v + 2 v² if d is Gaussian with E‖d - E d‖² = v. All lower ends hold together
    (Bonferroni).
    """
    value = np.maximum(squares - share * noise.value - rounding, 0.0)
    most = share * noise.high
    sure = np.maximum(squares - most - rounding, 0.0)
    reach = normal_quantile((1 - confidence) / len(squares)) * np.sqrt(4 * sure * most + 2 * most**2)
    return value, np.maximum(sure - reach, 0.0)


def _squares(rows: Floats) -> Floats:
    """‖r_a - r_b‖² for all pairs of rows."""
    return np.array([((rows - row) ** 2).sum(axis=1) for row in rows])


def _gap(losses: Sequence[float] | Floats | None, rows: int, lowest: float | None) -> Figure | None:
    if losses is None:
        return None
    values = numbers("losses", losses)
    if values.shape != (rows,) or not np.isfinite(values).all():
        raise BadParameter("losses", losses, f"are not {rows} finite numbers", "give f(x) for every point")
    return gap_between(float(values[0]), float(values.min()), lowest)


def _table(name: str, values: ArrayLike) -> Floats:
    table = numbers(name, values)
    if table.ndim != 2 or not table.size:
        raise BadParameter(name, f"shape {table.shape}", "is no table", "give one row per gradient")
    if not np.isfinite(table).all():
        row = int(np.argmin(np.isfinite(table).all(axis=1)))
        raise BadParameter(name, f"row {row}", "holds NaN or infinity", "leave that row out")
    return table
