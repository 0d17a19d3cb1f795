"""The Typer application, and the helpers that several commands share."""

from __future__ import annotations

import json as jsonlib
import re
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from asyncsgd import __version__
from asyncsgd.core.errors import BadParameter
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
"""Column headings of tables, by the key of the JSON output."""


def show(rows: list[dict[str, Any]], as_json: bool, title: str) -> None:
    """Print rows that have the same keys, as a table or as JSON."""
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


BEGIN, TRAIN, SIMULATE, DECIDE = "Start here", "Train for real", "Simulate", "Decide"
ORDER = (
    "demo",
    "train",
    "watch",
    "report",
    "replay",
    "export",
    "verify",
    "repair",
    "simulate",
    "sweep",
    "paper",
    "plan",
    "methods",
)

TRUST = "Load job.pkl of a directory that another user owns. Unsafe: a pickle can run any code."
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]


class _Commands(TyperGroup):
    """Commands in the order in which a user meets them, with errors in the words of the command line."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = super().list_commands(ctx)
        return [name for name in ORDER if name in names] + [name for name in names if name not in ORDER]

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command. Ctrl-C prints one line and exits with 130, where click would print "Aborted"."""
        try:
            return super().invoke(ctx)
        except BadParameter as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            raise in_options(error, [] if command is None else command.params) from error
        except KeyboardInterrupt as stopped:
            typer.echo(f"asyncsgd: {str(stopped) or 'stopped by Ctrl-C'}", err=True)
            raise typer.Exit(130) from stopped
        except EOFError as error:
            traceback.print_exc()
            raise typer.Exit(1) from error


def in_options(error: BadParameter, params: Sequence[click.Parameter]) -> BadParameter:
    """Return the error with options written as on the command line: ``--iterations`` for ``iterations``.

    >>> error = BadParameter("every", 0, "must be an integer of at least 1", "pass every >= 1")
    >>> print(in_options(error, [click.Option(["--every"])]))
    --every = 0 must be an integer of at least 1; pass --every >= 1
    """
    name, fix = error.name, error.fix
    for option in params:
        if isinstance(option, click.Option) and option.name is not None:
            shown = option.opts[0]
            name = shown if name == option.name else name
            value = "=True" if option.is_flag else r"=(?=[\w\"'])"
            fix = re.sub(rf"(?<![\w-]){option.name}{value}", shown if option.is_flag else f"{shown} ", fix)
            fix = re.sub(rf"(?<=pass ){option.name}\b", shown, fix)
    return BadParameter(name, error.value, error.problem, fix)


def examples(*lines: str) -> str:
    """Return the examples at the end of a command's help, one per line."""
    return "\n\n".join(("[bold]Examples[/bold]", *(f"  asyncsgd {line}" for line in lines)))


app = typer.Typer(
    name="asyncsgd",
    cls=_Commands,
    help="Asynchronous SGD for distributed and federated learning, without waiting for stragglers.",
    epilog="[bold]asyncsgd COMMAND --help[/bold] has examples. Exit codes: 0 done, 1 failed or mismatch, "
    "2 usage error, 130 Ctrl-C, 143 SIGTERM.",
    no_args_is_help=True,
    suggest_commands=False,  # click suggests commands itself
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


Version = Annotated[
    bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and exit.")
]


@app.callback()
def _root(version: Version = False) -> None:
    """Asynchronous SGD for distributed and federated learning, without waiting for stragglers."""
