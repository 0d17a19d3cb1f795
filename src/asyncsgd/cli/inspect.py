"""``asyncsgd report``, ``asyncsgd watch`` and ``asyncsgd export``: look at a run."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from asyncsgd.cli.application import TRAIN, Json, app, examples
from asyncsgd.core.errors import UsageError


@app.command(rich_help_panel=TRAIN, epilog=examples("report runs/task-1", "report runs/a runs/b --output both.html"))
def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Directories of runs, folders of them, traces, or one of asyncsgd paper."
        ),
    ],
    output: Annotated[
        Path | None, typer.Option(help="Where the page goes; by default into DIR, or here if there are several.")
    ] = None,
    title: Annotated[str, typer.Option(help="Its heading.")] = "",
    json: Json = False,
) -> None:
    """Show runs on one page that opens offline.

    Who worked when, loss, delays, workers, theory.

    A run that is still going on, or was killed, gets a page of what there is so far.
    """
    from asyncsgd.cli import showing

    showing.report(directories, output, title, as_json=json)


@app.command(rich_help_panel=TRAIN, epilog=examples("watch runs/task-1", "watch runs/task-1 --once --json"))
def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that somebody trains in.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands now, and leave.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a run that begins later, or is resumed.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between looks.")] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print one object per look and line, for a program.")] = False,
) -> None:
    """Show a run that is going on, in the terminal.

    Workers, delays, metrics, speed, time left, what went wrong. Ctrl-C leaves, with exit code 0.

    Reads the directory only, so it works from another terminal, and after a crash.

    Exit code 1 if the run has crashed, was stopped by failing workers, or has diverged.
    """
    from asyncsgd.cli.showing import watch as watch_run

    if not watch_run(directory, once=once, as_json=json, wait=wait, every=every):
        raise typer.Exit(1)


@app.command(rich_help_panel=TRAIN, epilog=examples("export runs/task-1 --chrome task-1.json"))
def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run, or the file of a trace.")],
    chrome: Annotated[Path, typer.Option(metavar="OUT.json", help="Where it goes; OUT.json.gz is compressed.")],
    arrows: Annotated[bool, typer.Option(help="Which version a job read, and which one its update made.")] = True,
    json: Json = False,
) -> None:
    """Write a run as Chrome's trace events, for ui.perfetto.dev.

    Who worked when, versions, delays, metrics.
    """
    from asyncsgd.pages.sources import gather
    from asyncsgd.trace import timeline as events

    runs = gather(directory)
    if len(runs) > 1:
        raise UsageError(f"{directory} holds {len(runs)} runs; pass the directory of one, such as {runs[0].name}")
    trace = runs[0].trace
    path = events.write(trace, chrome, runs[0].metrics, flows=arrows)
    row = {"path": str(path), "jobs": len(trace), "iterations": trace.iterations}
    words = f"{path}: {len(trace):,} jobs; open it in https://ui.perfetto.dev (nothing is sent anywhere)"
    typer.echo(jsonlib.dumps(row, indent=2) if json else words)
