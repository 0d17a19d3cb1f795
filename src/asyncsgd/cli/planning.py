"""What `asyncsgd plan` does with its words: read them, plan, print."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

from asyncsgd.core.errors import BadParameter
from asyncsgd.planning import planner
from asyncsgd.planning.page import missing
from asyncsgd.planning.planner import WHOLE
from asyncsgd.planning.result import Plan

__all__ = ["WHOLE", "plan", "show"]


def plan(path: Path, concurrency: str | None, **options: Any) -> Plan:
    """The plan for a file; ``concurrency`` is a list such as 10,100."""
    return planner.plan(path, concurrency=None if concurrency is None else _numbers(concurrency), **options)


def _numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        fix = "pass whole numbers separated by commas, such as 10,100"
        raise BadParameter("concurrency", text, "is no list of numbers", fix) from None


def show(found: Plan, page: Path | None, *, as_json: bool) -> None:
    """Print the plan and write its page; where matplotlib is missing, say so and go on."""
    if as_json:
        json.dump(found.to_dict(), sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
    else:
        Console().print(found)
    if page is None:
        return
    lacking = missing()
    console = Console(stderr=True) if as_json else Console()
    said = f"No page: {lacking}" if lacking else f"Page: {found.page(page)}"
    console.print(said, markup=False, highlight=False, soft_wrap=True)
