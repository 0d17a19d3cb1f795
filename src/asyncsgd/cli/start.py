"""``asyncsgd demo``, ``asyncsgd plan`` and ``asyncsgd methods``: what to do first."""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated

import typer

from asyncsgd.cli.application import BEGIN, DECIDE, Bar, Json, app, examples


@app.command(rich_help_panel=BEGIN, epilog=examples("demo", "demo --workers 6 --slowdown 20"))
def demo(
    workers: Annotated[int, typer.Option(help="How many workers.")] = 4,
    slowdown: Annotated[float, typer.Option(help="How many times slower the last one is.")] = 10.0,
    directory: Annotated[
        Path, typer.Option(help="Folder for the runs and the page; DIR-2 if DIR holds a demo.")
    ] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """See a straggler among four workers, waited for and not.

    Trains a small network on digits with worker processes, to the same accuracy by four methods. About a minute.
    """
    from asyncsgd.cli.demo import show

    show(workers=workers, slowdown=slowdown, directory=directory, as_json=json)


@app.command(
    rich_help_panel=DECIDE,
    epilog=examples("plan examples/durations.csv", "plan examples/durations.csv --heterogeneous --concurrency 4,8,12"),
)
def plan(
    durations: Annotated[
        Path, typer.Argument(metavar="DURATIONS", help="CSV or Parquet: a column per worker, worker,duration, a trace.")
    ],
    concurrency: Annotated[
        str | None, typer.Option(metavar="10,100", help="Jobs in flight to try; by default up to one per worker.")
    ] = None,
    heterogeneous: Annotated[bool, typer.Option("--heterogeneous", help="Data differ between workers.")] = False,
    epsilon: Annotated[float, typer.Option(help="Accuracy ε = E‖∇f‖², in units of L·(f(x₀)-f*).")] = 0.01,
    noise: Annotated[float | None, typer.Option(help="Gradient noise σ²/ε; ten times the workers if left out.")] = None,
    heterogeneity: Annotated[float | None, typer.Option(help="ζ²/ε; as large as the noise if left out.")] = None,
    seed: Annotated[int, typer.Option(help="Of the simulated runs.")] = 0,
    page: Annotated[
        Path | None, typer.Option("--page", "--output", help="Where to write the page; plan.html if left out.")
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Write no page.")] = False,
    json: Json = False,
) -> None:
    """Would asynchrony help? Measured durations in, advice out.

    DURATIONS is CSV or Parquet: one column per worker, rows under worker,duration, or the trace of a run.

    Out come the method, the concurrency, the step, the speed-up, the distance from the limit, and a page.
    """
    from asyncsgd.cli import planning

    options = {"heterogeneous": heterogeneous, "epsilon": epsilon, "noise": noise, "heterogeneity": heterogeneity}
    with Bar(planning.WHOLE, "simulating") as advance:
        found = planning.plan(durations, concurrency, seed=seed, progress=advance, **options)
    planning.show(found, None if no_page else page or (None if json else Path("plan.html")), as_json=json)


@app.command(rich_help_panel=DECIDE, epilog=examples("methods", "methods --json"))
def methods(json: Json = False) -> None:
    """List the methods with their options.

    Options in brackets have a default. An option is --NAME of train where there is one, else --set NAME=VALUE.

    In a TOML file of simulate or sweep it is a key of [method].
    """
    from asyncsgd import recipes
    from asyncsgd.methods import table

    rows = table()
    if json:
        typer.echo(jsonlib.dumps({"methods": rows, "every method takes": recipes.COMMON}, indent=2, ensure_ascii=False))
        return
    for row in rows:
        takes = [name if default is None else f"{name}={default}" for name, default in row["takes"].items()]
        typer.echo(
            f"{typer.style(row['method'], bold=True)}  {' '.join([*row['needs'], *(f'[{it}]' for it in takes)])}"
        )
        typer.echo(f"    {row['about']}")
        for name, call in row["variants"].items():
            typer.echo(f"    {name}: {call}")
    typer.echo("\nEvery method also takes:")
    for name, words in recipes.COMMON.items():
        typer.echo(f"  {name:<15} {words}")
