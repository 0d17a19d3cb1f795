"""Small pictures made of characters."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
WIDE = 20.0
"""Values that differ by more than this factor are drawn on a logarithmic scale."""


def is_log(values: Sequence[float]) -> bool:
    """Whether a sparkline of these is logarithmic."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > WIDE


def sparkline(values: Sequence[float], width: int) -> str:
    """Values as one line of blocks; of several in one column the last one counts.

    >>> sparkline([4, 3, 2, 1, 1], 5)
    '█▆▃▁▁'
    >>> sparkline([1, 2, 3, 4, 5, 6], 3), sparkline([1.0, float("nan"), 2.0], 9), sparkline([1000, 1, 100], 9)
    ('▁▅█', '▁ █', '█▁▆')
    """
    columns = min(width, len(values))
    shown = [values[(place + 1) * len(values) // columns - 1] for place in range(columns)]
    if is_log(values):
        shown = [math.log(value) for value in shown]
    finite = [value for value in shown if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((value - low) * scale)] if math.isfinite(value) else " " for value in shown)


def bar(share: float, width: int) -> str:
    """A bar that fills this share of the width, to an eighth of a character; what is not nothing is seen.

    >>> bar(0.5, 4), bar(0.3, 4), bar(1e-9, 4), bar(0.0, 4)
    ('██', '█▎', '▏', '')
    """
    eighths = min(8 * width, max(round(8 * width * share), 1 if share > 0 else 0))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def bins(histogram: Sequence[tuple[int, int]], most: int) -> list[tuple[str, int]]:
    """Delays in at most so many bars: one each while they are few, then 0, 1, 2–3, 4–7, ... or coarser.

    >>> bins([(0, 5), (2, 1)], 4)
    [('0', 5), ('1', 0), ('2', 1)]
    >>> bins([(0, 5), (3, 1), (9, 2)], 6)
    [('0', 5), ('1', 0), ('2–3', 1), ('4–7', 0), ('8–15', 2)]
    """
    top = max((delay for delay, _ in histogram), default=-1)
    if top < most:
        counts = dict(histogram)
        return [(str(delay), counts.get(delay, 0)) for delay in range(top + 1)]
    factor = 2
    while len(edges := _edges(top, factor)) - 1 > most:
        factor *= 2
    found = []
    for low, after in pairwise(edges):
        inside = sum(count for delay, count in histogram if low <= delay < after)
        found.append((str(low) if after == low + 1 else f"{low}–{after - 1}", inside))
    return found


def _edges(top: int, factor: int) -> list[int]:
    edges = [0, 1]
    while edges[-1] <= top:
        edges.append(edges[-1] * factor)
    return edges
