"""A plot of a few lines in plain characters, both axes logarithmic."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from rich.text import Text

from asyncsgd.format import span

WIDTH, HEIGHT = 60, 13
MARGIN = 10
"""Columns for the numbers on the left."""


@dataclass(frozen=True)
class Line:
    """Points of one method, and how it is drawn."""

    label: str
    mark: str
    style: str
    points: Sequence[tuple[float, float]]


def chart(title: str, lines: Sequence[Line], below: str, width: int = WIDTH, height: int = HEIGHT) -> Text:
    """Draw the lines: later ones over earlier ones, so what lies on top is what comes last.

    >>> print(chart("seconds", [Line("a", "#", "", [(1, 8.0), (10, 1.0)])], "jobs", width=12, height=3).plain)
    seconds   # a
           8 s ┤#··
               │   ······
           1 s ┤         ··#
               └┬──────────┬
                1          10
                jobs
    """
    xs = sorted({x for line in lines for x, _ in line.points})
    ys = [y for line in lines for _, y in line.points]
    across, up = _scale(xs[0], xs[-1], width - 1), _scale(min(ys), max(ys), height - 1)
    cells: dict[tuple[int, int], tuple[str, str]] = {}
    for line in lines:
        places = [(across(x), up(y)) for x, y in line.points]
        for (x0, y0), (x1, y1) in pairwise(places):
            for step in range(1, max(1, round(x1 - x0))):
                part = step / (x1 - x0)
                cells[round(x0) + step, round(y0 + part * (y1 - y0))] = ("·", line.style)
    for line in lines:
        for x, y in line.points:
            cells[round(across(x)), round(up(y))] = (line.mark, f"bold {line.style}".strip())
    text = Text(f"{title}  ")
    for line in lines:
        text.append(f" {line.mark} {line.label}", style=line.style)
    labels = _labels(min(ys), max(ys), up, height)
    for y in reversed(range(height)):
        text.append(f"\n{labels.get(y, ''):>{MARGIN}} {'┤' if y in labels else '│'}")
        for x in range(width):
            mark, style = cells.get((x, y), (" ", ""))
            text.append(mark, style=style)
    ticks, names = _ticks(xs, across, width)
    pad = " " * (MARGIN + 1)
    text.append(f"\n{pad}└{ticks}\n{pad} {names}\n{pad} {below}")
    drawn = text.split("\n")
    for row in drawn:
        row.rstrip()
    return Text("\n").join(drawn)


def _scale(low: float, high: float, cells: int) -> Callable[[float], float]:
    """Where a number stands on a logarithmic axis of so many cells."""
    if not high > low:
        return lambda value: cells / 2
    width = math.log(high / low)
    return lambda value: cells * math.log(value / low) / width


def _labels(low: float, high: float, up: Callable[[float], float], height: int) -> Mapping[int, str]:
    wanted = 4 if height > 8 else 2
    values = [low * (high / low) ** (k / (wanted - 1)) for k in range(wanted)] if high > low else [low]
    return {round(up(value)): span(value) for value in values}


def _ticks(xs: Sequence[float], across: Callable[[float], float], width: int) -> tuple[str, str]:
    ticks, names = ["─"] * width, [" "] * (width + 8)
    free = 0
    for x in xs:
        place, name = round(across(x)), f"{x:g}"
        ticks[place] = "┬"
        if place >= free:
            names[place : place + len(name)] = name
            free = place + len(name) + 1
    return "".join(ticks), "".join(names).rstrip()
