"""Rows as a table for people, or as JSON for programs."""

from __future__ import annotations

import json as jsonlib
from typing import Any

import typer

from asyncsgd.format import cell, jsonable

HEADINGS = {
    "gradient_norm": "‖∇f‖",
    "distance": "‖x-x*‖",
    "average_delay": "τ avg",
    "maximum_delay": "τ max",
    "concurrency": "τ C",
    "iterations": "T",
    "iterations_to_target": "T to target",
    "seconds_to_target": "s to target",
    "on_edge": "edge",
}
"""What a table says where a program reads the key."""


def show(rows: list[dict[str, Any]], as_json: bool, title: str) -> None:
    """Print rows that have the same keys."""
    if as_json:
        typer.echo(jsonlib.dumps(jsonable(rows), indent=2, allow_nan=False))
        return
    from rich import box
    from rich.console import Console
    from rich.table import Table

    shown = [key for key in rows[0] if any(row[key] is not None for row in rows)]
    table = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for key in shown:
        heading = HEADINGS.get(key, key.replace("_", " "))
        table.add_column(heading, justify="left" if key == "method" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(cell(row[key]) for key in shown))
    Console().print(table)
