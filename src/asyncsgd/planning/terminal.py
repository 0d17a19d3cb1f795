"""A plan on the terminal: the plot, the tables, and the advice last, where the eye ends up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from asyncsgd.planning.candidates import ALGORITHM2, ASYNC, MINIBATCH, OVER
from asyncsgd.planning.chart import Line, chart
from asyncsgd.planning.tables import HEADINGS_BEST, HEADINGS_QUEUES, assumptions, best, groups, limit, queues, title

if TYPE_CHECKING:
    from asyncsgd.planning.result import Plan

DRAWN = {
    MINIBATCH: ("mini-batch", "■", "yellow"),
    OVER: ("over-selection", "◆", "magenta"),
    ALGORITHM2: ("Algorithm 2", "▲", "cyan"),
    ASYNC: ("asynchronous", "●", "green"),
}
"""In the order in which they are drawn: later ones lie on top."""


def render(plan: Plan) -> RenderableType:
    """All of it."""
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
    many = len(plan.baseline.rehearsal.groups)
    if many > 1:
        name = "Whose gradients, and how late: share, average τ ≤ longest τ"
        parts += _table(name, *groups(plan, narrow=many > 2))
    parts += [
        "",
        Text(plan.reason, style="bold"),
        Text(f"  {plan.recipe}", style="green"),
        Text(limit(plan)),
        Text(assumptions(plan), style="dim"),
        *(Text(f"Note: {note}", style="yellow") for note in plan.notes()),
    ]
    return Group(*parts)


def _table(
    name: str, headings: Sequence[str], rows: list[list[str]], chosen: int | None = None
) -> list[RenderableType]:
    """A heading and a table; the recommended row has an arrow, for those who see no colours."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0))
    for place, heading in enumerate(headings):
        table.add_column(heading, justify="right" if place else "left", no_wrap=place > 0)
    for place, (first, *others) in enumerate(rows):
        if chosen is not None:
            first = f"{'→' if place == chosen else ' '} {first}"
        table.add_row(first, *others, style="bold green" if place == chosen else None)
    return ["", Text(name, style="italic"), table]
