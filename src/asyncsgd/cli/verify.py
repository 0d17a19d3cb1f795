"""``asyncsgd verify`` and ``asyncsgd repair``: check a run directory, and repair a damaged one."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from asyncsgd.cli.application import TRAIN, app, examples

Directory = Annotated[Path, typer.Argument(metavar="DIR", help="Run directory. Example: runs/task-1")]


@app.command(rich_help_panel=TRAIN, epilog=examples("verify runs/task-1", "verify runs/task-1 --json"))
def verify(
    directory: Directory,
    json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check every file of a run directory against its checksum.

    Finds flipped bits, truncated files and missing files. Changes nothing, loads no pickle, and does not need the task.

    Exit code 0 if all files are as the run wrote them, 1 if a file is damaged.
    """
    from asyncsgd.run.verify import verify as verify_run

    found = verify_run(directory)
    damaged = any(finding.damage for finding in found)
    if json:
        rows = [{"file": one.file, "problem": one.problem, "damage": one.damage} for one in found]
        typer.echo(jsonlib.dumps({"sound": not damaged, "findings": rows}, indent=2))
    else:
        for finding in found:
            typer.echo(f"{'damaged' if finding.damage else 'note'}: {finding}")
        typer.echo("run `asyncsgd repair DIR` to rebuild what can be rebuilt" if damaged else f"{directory} is sound")
    if damaged:
        raise typer.Exit(1)


@app.command(rich_help_panel=TRAIN, epilog=examples("repair runs/task-1"))
def repair(directory: Directory) -> None:
    """Rebuild what can be rebuilt of a damaged run directory.

    Rebuilds trace.parquet from trace.log or the other way round, drops damaged lines, sets damaged checkpoints aside,
    and rewrites checksums.json. Deletes nothing: originals of changed and damaged files move to DIR/damaged-1.

    Exit code 0 if the directory is sound afterwards, 1 if files remain missing or damaged.
    """
    from asyncsgd.run.repair import repair as repair_run
    from asyncsgd.run.verify import verify as verify_run

    done = repair_run(directory)
    for sentence in done:
        typer.echo(sentence)
    left = [finding for finding in verify_run(directory) if finding.damage]
    for finding in left:
        typer.echo(f"still damaged: {finding}")
    if not done:
        typer.echo(f"{directory} is sound; there is nothing to repair")
    if left:
        raise typer.Exit(1)
