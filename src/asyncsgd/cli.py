"""The command line: parse, call, print."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from asyncsgd import __version__
from asyncsgd.core.errors import AsyncSGDError

app = typer.Typer(
    name="asyncsgd",
    help="Asynchronous SGD for distributed and federated learning. Nobody waits for a straggler.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback()
def _root() -> None:
    """Asynchronous SGD for distributed and federated learning. Nobody waits for a straggler."""


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(__version__)


@app.command()
def demo(
    workers: Annotated[int, typer.Option(help="How many workers.")] = 8,
    slowdown: Annotated[float, typer.Option(help="How many times slower the last one is.")] = 10.0,
    json: Annotated[bool, typer.Option("--json", help="Print numbers for a program.")] = False,
) -> None:
    """One straggler among eight workers: synchronous against asynchronous, simulated.

    Example: asyncsgd demo --workers 16 --slowdown 30
    """
    from asyncsgd.demo import show

    show(workers=workers, slowdown=slowdown, as_json=json)


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except AsyncSGDError as error:
        typer.echo(f"asyncsgd: {error}", err=True)
        sys.exit(2)
