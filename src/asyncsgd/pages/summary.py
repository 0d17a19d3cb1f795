"""The title, the lead sentence and the counts at the top of a page."""

from __future__ import annotations

from collections.abc import Sequence

from asyncsgd.core.events import Outcome
from asyncsgd.format import span
from asyncsgd.run.view import RunView, word


def wasted(subject: RunView) -> dict[str, int]:
    """Return the number of jobs that were not used, by outcome."""
    counts = subject.trace.counts
    return {word(kind): counts[kind] for kind in Outcome if kind > Outcome.APPLIED and counts[kind]}


def lead(subjects: Sequence[RunView]) -> str:
    """Return the sentence under the title."""
    if len(subjects) > 1:
        return "The same axes, colours and clock for all; every number comes from the runs’ own records."
    numbers = subjects[0].headline()
    team = f"{numbers['workers']:,} worker{'s' if numbers['workers'] != 1 else ''}"
    during = f" in {span(numbers['seconds'])}" if numbers["seconds"] is not None else ""
    return f"{numbers['iterations']:,} updates by {team}{during}."


def title(subjects: Sequence[RunView]) -> str:
    """Return the default title of the page."""
    if len(subjects) > 1:
        return f"{len(subjects)} runs side by side"
    subject = subjects[0]
    name = subject.method or subject.name
    return f"{name} on {subject.task}" if subject.task else name
