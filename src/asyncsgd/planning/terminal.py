"""A plan on the terminal: the plot, the tables, and the advice last, where the reader looks first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncsgd.format import number, percent, relative, short, span, times
from asyncsgd.planning.candidates import ALGORITHM2, ASYNC, LABELS, MINIBATCH, OVER
from asyncsgd.planning.workers import BORDERS, GAP

if TYPE_CHECKING:
    from asyncsgd.planning.advice import Row
    from asyncsgd.planning.candidates import WorkerGroup
    from asyncsgd.planning.network import Network
    from asyncsgd.planning.result import Plan


# ------------------------------------------------------------------- tables and sentences, shared with the page


HEADINGS_BEST = ("method", "jobs", "per\ngradient", "τ avg", "τ max", "step\n× L", "time\nto ε")
HEADINGS_QUEUES = ("jobs", "lemma", "with\nqueues", "simulated", "floor", "mini-batch\nlemma", "mini-batch\nsimulated")
NONE = "–"


def title(plan: Plan) -> str:
    """Return what was measured, in one line."""
    means, count = plan.workers.means, plan.workers.samples
    jobs = "" if count is None else f", {count:,} jobs measured"
    return (
        f"{plan.workers.name}: {plan.workers.count:,} workers{jobs}, {span(float(means.min()))} to "
        f"{span(float(means.max()))} (median {span(plan.workers.median)})"
    )


def best(plan: Plan) -> list[list[str]]:
    """Return the table of each method at its best concurrency."""
    return [cells(plan, row) for row in plan.best()]


def cells(plan: Plan, row: Row) -> list[str]:
    """Return a row of the comparison, in the order of ``HEADINGS_BEST``."""
    base, time, delays = plan.baseline.seconds_to_target, row.seconds_to_target, row.simulated.delays
    unknown = "biased" if row.biased else "unproven"
    return [
        row.label,
        f"{row.concurrency:,}",
        span(row.seconds) + ("" if row.settled else " *"),
        number(delays.average, 3),
        f"{delays.maximum:,}",
        NONE if row.accuracy is None else number(row.accuracy.step, 2),
        unknown if time is None or base is None else f"{relative(time / base)} ×",
    ]


def queues(plan: Plan) -> list[list[str]]:
    """Return the table of Algorithm 2 by lemma, with queues and simulated, beside mini-batch SGD of the same size."""
    batches = {row.concurrency: row for row in plan.at(MINIBATCH)}
    rows = []
    for row in plan.at(ALGORITHM2):
        c = row.concurrency
        known, batch = plan.formulas.speedups[c], batches.get(c)
        rows.append(
            [
                f"{c:,}",
                number(known.asynchronous),
                number(plan.formulas.queued[c]),
                number(row.seconds * c) + ("" if row.settled else " *"),
                number(known.floor),
                number(known.minibatch),
                NONE if batch is None else number(batch.seconds * c),
            ]
        )
    return rows


def groups(plan: Plan, *, narrow: bool = False) -> tuple[list[str], list[list[str]]]:
    """Return, per method and group of workers, the share of all gradients and the average and longest delay."""
    found = [row for row in plan.best() if row.candidate.workers == row.candidate.total]
    names = [f"{group.name} ({group.workers:,})" for group in found[0].simulated.groups]
    rows = []
    for row in found:
        first = [LABELS[row.candidate.method]] if narrow else [row.label, f"{row.concurrency:,}"]
        rows.append([*first, *(_group_cell(group, narrow) for group in row.simulated.groups)])
    return (["method"] if narrow else ["method", "jobs"]) + names, rows


def _group_cell(group: WorkerGroup, narrow: bool) -> str:
    share = percent(group.share)
    if group.average_delay is None or group.maximum_delay is None:
        return share
    if narrow:
        return f"{share}\nτ {short(group.average_delay)} ≤ {short(group.maximum_delay)}"
    return f"{share}, τ {number(group.average_delay, 3)} ≤ {group.maximum_delay:,}"


def limit(plan: Plan) -> str:
    """Return how far the recommended row is from the known limit, as a sentence."""
    ratio, most, n = plan.limit.ratio, plan.limit.workers, plan.workers.count
    jobs = max(row.concurrency for row in plan.rows)
    if plan.target.heterogeneous:
        whose = "any method that uses all workers" + ("" if jobs >= n else f", if all {n:,} could work at once")
    else:
        whose = "any method with these workers" if jobs >= n else f"any method with {jobs:,} of these workers"
    if ratio < 0.95:
        why = "it allows data to differ without bound" if plan.target.heterogeneous else "it assumes fixed durations"
        return f"That is {times(1 / ratio)} times faster than the known limit for {whose}: {why}."
    how = "at the limit" if ratio < 1.05 else f"{times(ratio)} times the limit"
    enough = ""
    if most is not None and most < min(n, jobs):
        enough = f", for which the {most:,} fastest are enough" if most > 1 else ", for which the fastest is enough"
    return f"That is {how} for {whose}, up to constants{enough}."


NETWORK = "Time per mini-batch over the network, relative to sending every gradient as it is"


def marked(network: Network) -> list[list[str]]:
    """Return the table of local steps and codes with a mark at the chosen cell."""
    _, rows, (row, cell) = network.table()
    rows[row][cell] = f"[{rows[row][cell]}]"
    return rows


def assumptions(plan: Plan) -> str:
    """Return what the times to accuracy assume, and the options that change it."""
    target, jobs = plan.target, plan.baseline.concurrency
    text = f"Time to ε is relative to mini-batch SGD with {jobs:,} worker{'s' if jobs > 1 else ''}, up to constants, "
    text += f"for ε = {target.epsilon:g} L(f(x₀)-f*), σ² = {number(target.noise, 3)} ε and "
    if target.heterogeneity is None:
        return f"{text}data that are alike on all workers (options --epsilon, --noise, --heterogeneous)."
    return f"{text}ζ² = {number(target.heterogeneity, 3)} ε (options --epsilon, --noise, --heterogeneity)."


def groups_explained() -> str:
    """Return what the names of the groups mean."""
    fast, slow, straggling = BORDERS
    return (
        f"Groups of workers are divided at gaps, where the next slower worker takes {GAP:g} times as long or more. The "
        f"middle worker of a fast group takes less than {percent(fast)} of the median worker's time, of a slow group "
        f"more than {slow:g} times, of a straggling group more than {straggling:g} times as long."
    )


# ------------------------------------------------------------------- a plot in plain characters, both axes logarithmic


WIDTH, HEIGHT = 60, 13
MARGIN = 10
"""The width in columns of the numbers on the left."""


@dataclass(frozen=True)
class Line:
    """Points of one method, and how it is drawn."""

    label: str
    mark: str
    style: str
    points: Sequence[tuple[float, float]]


def chart(title: str, lines: Sequence[Line], below: str, width: int = WIDTH, height: int = HEIGHT) -> Text:
    """Draw the lines, later ones over earlier ones.

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
    """Return a function from a number to its place on a logarithmic axis with this many cells."""
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


DRAWN = {
    MINIBATCH: ("mini-batch", "■", "yellow"),
    OVER: ("over-selection", "◆", "magenta"),
    ALGORITHM2: ("Algorithm 2", "▲", "cyan"),
    ASYNC: ("asynchronous", "●", "green"),
}
"""Name, mark and colour of each method, in the order in which they are drawn."""


def render(plan: Plan) -> RenderableType:
    """Return everything that the terminal shows."""
    lines = []
    for method, (label, mark, style) in DRAWN.items():
        points = [(float(row.concurrency), row.seconds) for row in plan.at(method)]
        lines.append(Line(label, mark, style, points))
    parts: list[RenderableType] = [
        Text(title(plan), style="bold"),
        "",
        chart("time per gradient", [line for line in lines if line.points], "jobs in flight"),
        *_table("Each method at its best", HEADINGS_BEST, best(plan), plan.best().index(plan.recommended)),
        *_table("Algorithm 2 three ways: seconds for as many gradients as jobs", HEADINGS_QUEUES, queues(plan)),
    ]
    many = len(plan.baseline.simulated.groups)
    if many > 1:
        name = "Whose gradients, and how late: share, average τ ≤ longest τ"
        parts += _table(name, *groups(plan, narrow=many > 2))
    if plan.network is not None:
        headings, _, (row, _) = plan.network.table()
        parts += _table(NETWORK, headings, marked(plan.network), row)
    parts += [
        "",
        Text(plan.reason, style="bold"),
        Text(f"  {plan.recipe}", style="green"),
        Text(limit(plan)),
        *([] if plan.network is None else [Text(plan.network.sentence, style="bold")]),
        *([] if plan.network is None else [Text(f"  method{plan.network.chosen.recipe}", style="green")]),
        Text(assumptions(plan), style="dim"),
        *(Text(f"Note: {note}", style="yellow") for note in plan.notes()),
    ]
    return Group(*parts)


def _table(
    name: str, headings: Sequence[str], rows: list[list[str]], chosen: int | None = None
) -> list[RenderableType]:
    """Return a heading and a table; an arrow marks the recommended row, also without colours."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=place > 0)
    for place, (first, *others) in enumerate(rows):
        if chosen is not None:
            first = f"{'→' if place == chosen else ' '} {first}"
        table.add_row(first, *others, style="bold green" if place == chosen else None)
    return ["", Text(name, style="italic"), table]
