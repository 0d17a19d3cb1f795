"""The Typer application, and the helpers that several commands share."""

from __future__ import annotations

import json as jsonlib
import traceback
from collections.abc import Sequence
from typing import Annotated, Any

import click
import typer
from typer.core import TyperGroup

from asyncsgd import __version__
from asyncsgd.core.errors import AsyncSGDError, BadConfig, BadParameter
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
        except AsyncSGDError as error:
            command = self.get_command(ctx, ctx.invoked_subcommand or "")
            raise in_options(error, [] if command is None else command.params) from error
        except KeyboardInterrupt as stopped:
            typer.echo(f"asyncsgd: {str(stopped) or 'stopped by Ctrl-C'}", err=True)
            raise typer.Exit(130) from stopped
        except EOFError as error:
            traceback.print_exc()
            raise typer.Exit(1) from error


ELSEWHERE = {"resume": "--resume", "trust": "--trust", "resources": "--resource"}
"""Arguments that errors name in commands without such an option, or that have another name there."""

ALIASES = (("path", "output"), ("path", "model"), ("runs", "directories"), ("runs", "directory"))
"""Arguments of Python functions, and the parameters of commands that stand for them."""


def in_options(error: AsyncSGDError, params: Sequence[click.Parameter]) -> AsyncSGDError:
    """Return the error with options and arguments written as on the command line: ``--iterations``, ``DIR``.

    An error about a configuration file keeps the names of its keys.

    >>> error = BadParameter("every", 0, "must be an integer of at least 1", "pass every >= 1")
    >>> print(in_options(error, [click.Option(["--every"])]))
    --every = 0 must be an integer of at least 1; pass --every >= 1
    """
    from asyncsgd.run.lookup import as_options, settable
    from asyncsgd.run.stored import GIVEN

    if isinstance(error, BadConfig):
        return error
    spelling = {**ELSEWHERE, **{param.name: _shown(param) for param in params if param.name is not None}}
    for name, param in ALIASES:
        if param in spelling:
            spelling.setdefault(name, spelling[param])
    if isinstance(error, BadParameter):
        name = spelling.get(error.name, error.name)
        if "set_" in spelling and name in settable():
            spelling[name] = name = f"--set {name}"
        return BadParameter(name, error.value, as_options(error.problem, spelling), as_options(error.fix, spelling))
    text = str(error)
    start, semicolon, fix = text.rpartition("; ")  # the rest may quote an error of the user's code
    given, equals, rest = start.partition(" = ")
    start = f"{spelling.get(given, given)}{equals}{rest}"
    fix = fix.replace(GIVEN, "name them: asyncsgd train MODULE:TASK --method NAME --resume --directory DIR")
    error.args = (f"{start}{semicolon}{as_options(fix, spelling)}", *error.args[1:])
    return error


def _shown(param: click.Parameter) -> str:
    if isinstance(param, click.Option):
        return param.opts[0]
    return str(param.metavar or param.name).strip("[]").removesuffix("...")


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
