"""What the paper claims and what we found: the form that every experiment fills in."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class Verdict(StrEnum):
    """Whether a claim holds as the paper writes it."""

    HOLDS = "holds"
    CORRECTED = "holds with a correction"
    FAILS = "does not hold as written"


@dataclass(frozen=True)
class Figure:
    """A drawing: ``draw(fig, axes)`` fills a matplotlib figure of ``columns`` × ``rows`` panels."""

    name: str
    """File name without ending, for instance ``claim03-pile-up``."""
    caption: str
    draw: Callable[[Any, Any], None]
    columns: int = 1
    rows: int = 1
    width: float = 7.2
    height: float = 3.4


@dataclass(frozen=True)
class Table:
    """Headings and rows."""

    caption: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Claim:
    """One claim, judged. The verdict follows from the numbers measured in this run; nothing in it is written down."""

    number: int
    title: str
    paper: str
    """What the paper says, in one or two sentences."""
    measured: str
    """What we measured, with the numbers of this run."""
    verdict: Verdict
    summary: str
    """What we measured and what to make of it, in one line of the documentation's table."""
    refuted_by: str
    """Which result of this experiment would make the verdict "does not hold as written"."""
    why: str = ""
    """Where it does not hold as written: why, and what we build instead."""
    values: dict[str, Any] = field(default_factory=dict)
    """Numbers for claims.json: plain ints, floats, strings, lists and dicts."""
    tables: tuple[Table, ...] = ()
    figures: tuple[Figure, ...] = ()
