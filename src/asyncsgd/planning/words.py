"""Numbers as people read them."""

from __future__ import annotations

import math

UNITS = (
    *((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s")),
    *((1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"), (1e-12, "ps")),
)


def span(seconds: float) -> str:
    """A time in the unit that fits.

    >>> span(0.0123), span(42.566), span(5400.0), span(1e7), span(2e-10)
    ('12.3 ms', '42.6 s', '90 min', '116 days', '200 ps')
    """
    for size, unit in UNITS:
        if seconds >= (2 * size if size > 1 else size) or unit == "ps":
            return f"{number(seconds / size)} {unit}"
    raise AssertionError


def number(value: float) -> str:
    """Three digits, and no powers of ten where they can be helped.

    >>> number(0.04567), number(15.0), number(1234.5), number(123456.0), number(0.0)
    ('0.0457', '15', '1,230', '123,000', '0')
    """
    if value == 0:
        return "0"
    rounded = float(f"{value:.3g}")
    if abs(rounded) >= 1e7 or abs(rounded) < 1e-4:
        return f"{value:.3g}"
    return f"{rounded:,.0f}" if abs(rounded) >= 1000 else f"{rounded:.3g}"


def short(value: float) -> str:
    """Few digits, for a narrow table.

    >>> short(9.0), short(45.12), short(999.6), short(33_149.0), short(2.5e6)
    ('9', '45', '1k', '33k', '2.5M')
    """
    for size, unit in ((1e6, "M"), (1e3, "k"), (1.0, "")):
        if round(value) >= size or size == 1:
            return f"{float(f'{value / size:.2g}') if value < 100 * size else round(value / size):g}{unit}"
    raise AssertionError


def percent(share: float) -> str:
    """A share in percent; the small are not called none, unless they are one in ten thousand.

    >>> percent(0.256), percent(0.004), percent(1e-9)
    ('26 %', '0.4 %', '0 %')
    """
    return f"{100 * share:.0f} %" if share >= 0.0095 or share < 1e-4 else f"{100 * share:.1g} %"


def shown(ratio: float) -> float:
    """A ratio as `relative` prints it. Advice decides and speaks by these, so that no table contradicts a sentence.

    >>> shown(0.18664), shown(1234.5)
    (0.187, 1230.0)
    """
    return float(f"{ratio:.3g}")


def relative(ratio: float) -> str:
    """A ratio to compare with others: three digits, zeros at the end included.

    >>> relative(1.0), relative(0.17), relative(0.00123), relative(12.345), relative(1e-9), relative(1234.5)
    ('1.00', '0.170', '0.00123', '12.3', '1e-09', '1,230')
    """
    rounded = shown(ratio)
    if not 1e-4 <= rounded < 1000:
        return number(ratio)
    return f"{rounded:.{max(0, 2 - math.floor(math.log10(rounded)))}f}"


def times(ratio: float) -> str:
    """How many times, with two digits.

    >>> times(2.8377), times(14.2), times(1.0)
    ('2.8', '14', '1.0')
    """
    return f"{ratio:.1f}" if ratio < 10 else number(float(f"{ratio:.2g}"))
