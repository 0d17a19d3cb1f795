"""Numbers as people read them: the one way to write them, for the terminal, the pages, the live view and JSON."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from numpy.typing import NDArray

NOTHING = "–"
"""The text in place of a missing number."""
LARGE = 1e7
"""Measured numbers from here on are written with a power of ten; counts never are."""
UNITS = (
    *((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s")),
    *((1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps")),
)


def number(value: float | None, digits: int = 4) -> str:
    """Return a number with this many significant digits and thousands set apart; an int, which is a count, in full.

    >>> number(0.231194), number(12345.6), number(12345), number(1.5e-7), number(15.0), number(None)
    ('0.2312', '12,350', '12,345', '1.5e-07', '15', '–')
    """
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if isinstance(value, int):
        return f"{value:,}"
    near = rounded(value, digits)
    return f"{near:,.0f}" if 1000 <= abs(near) < LARGE else f"{near:.{digits}g}"


def latest(values: Sequence[float] | NDArray[Any]) -> float:
    """Return the last of these numbers that is known: an evaluation need not measure every metric.

    >>> latest([0.5, 0.25, math.nan]), latest([])
    (0.25, nan)
    """
    return next((float(value) for value in reversed(values) if not math.isnan(value)), math.nan)


def rounded(value: float, digits: int = 3) -> float:
    """Return the value as `number` shows it. Advice decides by these, so that no table contradicts a sentence.

    >>> rounded(0.18664), rounded(1234.5)
    (0.187, 1230.0)
    """
    return float(f"{value:.{digits}g}")


def relative(ratio: float) -> str:
    """Return a ratio to compare with others: three digits, zeros at the end included.

    >>> relative(1.0), relative(0.17), relative(0.00123), relative(12.345), relative(1e-9), relative(1234.5)
    ('1.00', '0.170', '0.00123', '12.3', '1e-09', '1,230')
    """
    near = rounded(ratio)
    if not 1e-4 <= near < 1000:
        return number(ratio, 3)
    return f"{near:.{max(0, 2 - math.floor(math.log10(near)))}f}"


def times(ratio: float) -> str:
    """Return how many times, with two digits.

    >>> times(2.8377), times(14.2), times(1234.0), times(1.0)
    ('2.8', '14', '1,200', '1.0')
    """
    return f"{ratio:.1f}" if ratio < 9.95 else number(float(ratio), 2)


def short(value: float) -> str:
    """Return a number with few digits, for a narrow table.

    >>> short(9.0), short(45.12), short(999.6), short(33_149.0), short(2.5e6)
    ('9', '45', '1k', '33k', '2.5M')
    """
    for size, unit in ((1e6, "M"), (1e3, "k"), (1.0, "")):
        if round(value) >= size or size == 1:
            return f"{float(f'{value / size:.2g}') if value < 100 * size else round(value / size):g}{unit}"
    raise AssertionError


def percent(share: float) -> str:
    """Return a share in percent; a small share shows as 0% only below one in ten thousand.

    >>> percent(0.256), percent(0.004), percent(1e-9)
    ('26%', '0.4%', '0%')
    """
    return f"{share:.0%}" if share >= 0.0095 or share < 1e-4 else f"{100 * share:.1g}%"


def span(seconds: float | None) -> str:
    """Return a time in the unit that fits.

    >>> span(0.0123), span(42.566), span(5400.0), span(1e7), span(2e-10), span(None)
    ('12.3 ms', '42.6 s', '90 min', '116 days', '200 ps', '–')
    """
    if seconds is None or not math.isfinite(seconds):
        return NOTHING
    for size, unit in UNITS:
        if seconds >= (2 * size if size > 1 else size) or unit == "ps":
            return f"{number(float(seconds / size), 3)} {unit}"
    raise AssertionError


def size(count: float | None) -> str:
    """Return a number of bytes in the unit that fits, with two digits or more.

    >>> size(0), size(999), size(562_500), size(1_234_567_890), size(12_300_000), size(4e15), size(None)
    ('0 B', '999 B', '562 kB', '1.2 GB', '12 MB', '4.0 PB', '–')
    """
    if count is None:
        return NOTHING
    for power, unit in ((15, "PB"), (12, "TB"), (9, "GB"), (6, "MB"), (3, "kB")):
        value = count / 10**power
        if value >= 0.9995:  # below, three digits of the smaller unit show it
            return f"{value:.1f} {unit}" if value < 9.95 else f"{value:,.0f} {unit}"
    return f"{count:.0f} B"


def clock(seconds: float) -> str:
    """Return minutes and seconds, with hours and days where there are any.

    >>> clock(7.4), clock(75), clock(3725), clock(200_000)
    ('0:07', '1:15', '1:02:05', '2 d 7:33')
    """
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24}:{minutes:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def ago(seconds: float | None) -> str:
    """Return the time since an event.

    >>> ago(0.04), ago(3.26), ago(42), ago(75), ago(None)
    ('now', '3.3 s', '42 s', '1:15', '–')
    """
    if seconds is None:
        return NOTHING
    if seconds < 0.1:
        return "now"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 60 else clock(seconds)


def cell(value: object, digits: int = 3) -> str:
    """Return the text of a table cell.

    >>> cell(None), cell(True), cell(0.12345), cell("async_sgd"), cell(2000)
    ('–', 'yes', '0.123', 'async_sgd', '2000')
    """
    if isinstance(value, bool):
        return "yes" if value else "no"
    return number(value, digits) if value is None or isinstance(value, float) else str(value)


def ends(values: Any) -> Any:
    """Return a list as an error message shows it: whole if it is short, else only its ends.

    >>> ends([1, 2, 3]), ends(list(range(100)))
    ([1, 2, 3], [0, 1, 2, '...', 98, 99])
    """
    if not hasattr(values, "__len__") or isinstance(values, str | bytes | Mapping) or getattr(values, "ndim", 1) != 1:
        return values
    shown = values if len(values) <= 6 else [*_plain(values[:3]), "...", *_plain(values[-2:])]
    return _plain(shown)


def _plain(values: Any) -> Any:
    """Return an array as a list; anything else as it is."""
    return values.tolist() if hasattr(values, "tolist") else values


def jsonable(value: Any) -> Any:
    """Return the same for JSON, which knows neither NaN nor infinity (they become None), nor NumPy's numbers.

    >>> jsonable({"loss": float("nan"), "delays": (1, 2.5)})
    {'loss': None, 'delays': [1, 2.5]}
    """
    if isinstance(value, Mapping):
        return {name: jsonable(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [jsonable(inner) for inner in value]
    if hasattr(value, "tolist"):
        return jsonable(value.tolist())
    return None if isinstance(value, float) and not math.isfinite(value) else value
