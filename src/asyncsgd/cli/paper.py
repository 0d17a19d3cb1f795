"""``asyncsgd paper``: progress bars while claims are measured, then a table of the verdicts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from asyncsgd.core.errors import BadParameter
from asyncsgd.experiments import paper_page, runner
from asyncsgd.experiments.common import Claim, Verdict
from asyncsgd.experiments.runner import Experiment

COLOURS = {"good": "green", "warn": "yellow", "bad": "red"}


def show(output: str | Path, only: str | None, as_json: bool, docs: Path | None = None) -> bool:
    """Check the claims, write the folder, print the verdicts, and return whether every claim was judged.

    With ``docs``, the docs folder of a source checkout, the page about the claims there is rewritten too.
    """
    if docs is not None:
        paper_page.check_docs(docs, only)
    chosen = runner.experiments(None if only is None else numbers(only))
    begin = time.perf_counter()
    with _bars(chosen) as progress:
        found = runner.run(chosen, output, progress=progress)
    page = paper_page.write(found, output)
    if as_json:
        print(paper_page.as_json(found))
    else:
        console = Console()
        console.print(_table(found, time.perf_counter() - begin))
        for claim in found:
            if claim.error:
                console.print(f"Claim {claim.number}: {claim.measured}", soft_wrap=True, highlight=False, markup=False)
        _refutations(console, found)
        console.print(f"Page: {page} (open it in a browser)", soft_wrap=True, highlight=False)
    judged = all(claim.verdict != Verdict.UNJUDGED for claim in found)
    if docs is not None:
        say = Console(stderr=True).print
        if judged:
            say(f"Wrote {paper_page.write_docs(found, output, docs)}.", soft_wrap=True, highlight=False)
        else:
            say(f"{docs} is unchanged, because a claim could not be judged.", soft_wrap=True, highlight=False)
    return judged


def numbers(only: str) -> list[int]:
    """Return the numbers of the claims in ``3,5``.

    >>> numbers("3, 5")
    [3, 5]
    """
    try:
        return sorted({int(word) for word in only.split(",")})
    except ValueError:
        raise BadParameter("only", only, "is not a list of claims", "pass numbers, as in --only 3,5") from None


@contextmanager
def _bars(chosen: Sequence[Experiment]) -> Iterator[runner.Progress]:
    """Show a progress bar per claim if standard error is a terminal."""
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(
        *columns, console=console, transient=True, refresh_per_second=3, disable=not console.is_terminal
    ) as bars:
        ids = {one.number: bars.add_task(f"{one.number:2} {one.name}", total=1.0, start=False) for one in chosen}
        if console.is_terminal:
            bars.print("The first run compiles for half a minute before the bars move.")

        def progress(number: int, share: float) -> None:
            bars.start_task(ids[number])
            bars.update(ids[number], completed=share)
            if share >= 1:
                bars.stop_task(ids[number])

        yield progress


def _table(found: Sequence[Claim], seconds: float) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=f"The paper, reproduced in {seconds:.0f} s")
    for heading in ("claim", "about", "verdict", "seconds"):
        table.add_column(heading, justify="right" if heading in ("claim", "seconds") else "left")
    for claim in found:
        colour = COLOURS[paper_page.kind(claim)]
        table.add_row(str(claim.number), claim.title, f"[{colour}]{claim.verdict}[/]", f"{claim.seconds:.0f}")
    return table


def _refutations(console: Console, found: Sequence[Claim]) -> None:
    """Print what would have refuted each claim."""
    table = Table(box=None, pad_edge=False, show_header=False)
    table.add_column(justify="right")
    table.add_column()
    for claim in found:
        if claim.refuted_by:
            table.add_row(str(claim.number), Text(claim.refuted_by))
    if table.row_count:
        console.print("What would refute them")
        console.print(table)
        console.print()
