"""Columns of a trace inside a page: little-endian binary in base64, each in the narrowest type that holds it."""

from __future__ import annotations

import base64
import json
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from asyncsgd.report.measures import Ints
from asyncsgd.run.view import Floats, RunView
from asyncsgd.trace.spans import Spans

MOST = 400_000
"""Jobs of a run that its timeline holds; of longer runs it shows the end, and says so."""
FEW = 4096
"""So many different values are listed, and every row holds its value's place in the list."""

Column = dict[str, Any]


def whole(values: NDArray[Any]) -> Column:
    """Numbers 0, 1, 2, ...: all the same, or differences where they rise, or as they are.

    >>> whole(np.array([7, 7, 7]))
    {'same': 7}
    >>> whole(np.array([1000, 1001, 3]))
    {'type': 'u2', 'data': '6APpAwMA'}
    >>> whole(np.array([10**6, 10**6, 10**6 + 2]))
    {'type': 'u1', 'data': 'AAAC', 'rises': 1000000}
    """
    if len(values) and (values == values[0]).all():
        return {"same": int(values[0])}
    plain = _packed(values)
    steps = np.diff(values, prepend=values[:1])
    if len(values) and (steps >= 0).all() and _width(steps) < _width(values):
        even = len(values) > 1 and (steps[1:] == steps[1]).all()
        differences = {"same": int(steps[1])} if even else _packed(steps)
        return {**differences, "rises": int(values[0])}
    return plain


def number(values: Floats) -> Column:
    """Any numbers: exactly where they are few, else to seven digits. NaN becomes null.

    >>> number(np.array([0.1, 0.1, 0.05]))
    {'type': 'u1', 'data': 'AQEA', 'of': [0.05, 0.1]}
    """
    different, place = np.unique(values, return_inverse=True)
    if len(different) == 1:
        return {"same": plain(float(different[0]))}
    if len(different) <= FEW:
        return {**_packed(place), "of": [plain(float(value)) for value in different]}
    return {"type": "f4", "data": _base64(values.astype("<f4"))}


def plain(value: float | None) -> float | None:
    """JSON knows neither NaN nor infinity."""
    return value if value is not None and math.isfinite(value) else None


def numbers(values: Any) -> list[float | None]:
    """A list for JSON, of what may hold NaN."""
    return [plain(float(value)) for value in values]


def as_script(data: Any) -> str:
    """JSON that can stand inside a script element: no text in it can end that element."""
    return json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _width(values: NDArray[Any]) -> int:
    top = int(values.max(initial=0))
    return 1 if top < 1 << 8 else 2 if top < 1 << 16 else 4 if top < 1 << 32 else 8


def _packed(values: NDArray[Any]) -> Column:
    width = _width(values)
    kind = "f8" if width == 8 else f"u{width}"  # JavaScript's numbers are exact up to 2^53
    return {"type": kind, "data": _base64(values.astype(f"<{kind}"))}


def _base64(values: NDArray[Any]) -> str:
    return base64.b64encode(values.tobytes()).decode("ascii")


# ---------------------------------------------------------------------------------------------- the jobs of a run


def tick(length: float) -> float:
    """The power of ten that cuts so many seconds into at least 2^28 and less than 2^32 ticks.

    >>> tick(9.0), tick(0.0)
    (1e-08, 1.0)
    """
    return float(f"1e{math.ceil(math.log10(length / 2**31.6))}") if length > 0 else 1.0


def shown(subject: RunView, times: Spans, most: int = MOST) -> tuple[Ints, float]:
    """Which jobs the timeline holds: all, or the last ones and whatever was under way beside them; and since when."""
    size = len(subject.trace)
    if size <= most:
        return np.arange(size), float(times.assigned.min(initial=times.horizon))
    since = float(times.assigned[size - most])
    return np.flatnonzero((np.arange(size) >= size - most) | (times.end > since)), since


def jobs(subject: RunView, times: Spans, most: int = MOST) -> dict[str, Any]:
    """The columns of the timeline. Times count ticks from ``start``; workers are places in ``workers``."""
    rows = subject.trace.jobs
    chosen, since = shown(subject, times, most)
    names, rank = np.unique(rows.worker[chosen], return_inverse=True)
    start = float(times.assigned[chosen].min(initial=times.horizon))
    unit = tick(times.horizon - start)
    assigned, begin, end = (
        np.round((column[chosen] - start) / unit).astype(np.int64)
        for column in (times.assigned, times.begin, times.end)
    )
    ended = np.where(rows.in_flight, subject.trace.iterations, rows.ended_iteration)[chosen]
    version = rows.assigned_version[chosen]
    until = np.where(rows.in_flight, rows.assigned_version, rows.ended_version)[chosen]
    delay, staleness = ended - rows.assigned_iteration[chosen], until - version
    return {
        "count": len(chosen),
        "total": len(rows),
        "workers": [str(name) for name in names.tolist()],
        "start": start,
        "since": since,
        "tick": unit,
        "horizon": times.horizon,
        "clock": subject.timed,
        "iterations": subject.trace.iterations,
        "columns": {
            "job": whole(rows.job[chosen]),
            "worker": whole(rank),
            "outcome": whole(rows.outcome[chosen]),
            "assigned": whole(assigned),
            "waited": whole(begin - assigned),
            "computed": whole(end - begin),
            "read": whole(rows.assigned_iteration[chosen]),
            "version": whole(version),
            "delay": whole(delay),
            "staleness": "delay" if np.array_equal(delay, staleness) else whole(staleness),
            "step": number(rows.step[chosen]),
        },
    }
