"""The command line: parse, call, print. A file per group of commands."""

from __future__ import annotations

import io
import sys
import warnings

import typer

from asyncsgd.cli import inspect, simulate, start, train  # noqa: F401, because each adds its commands
from asyncsgd.cli.application import app
from asyncsgd.core.errors import AsyncSGDError, UsageError


def main() -> None:
    """Run the command line.

    Exit codes: 0 done, 1 failed or mismatch, 2 usage error, 130 Ctrl-C, 143 SIGTERM.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows "?" for τ instead of raising
    warnings.showwarning = lambda message, *_, **__: typer.echo(f"asyncsgd: warning: {message}", err=True)
    try:
        app()
    except AsyncSGDError as error:
        typer.echo(f"asyncsgd: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
