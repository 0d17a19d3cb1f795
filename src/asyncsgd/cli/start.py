"""``asyncsgd demo``, ``asyncsgd plan`` and ``asyncsgd methods``: the commands to start with."""

from __future__ import annotations

import json as jsonlib
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from asyncsgd.cli.application import BEGIN, DECIDE, Json, app, examples
from asyncsgd.core.errors import BadParameter

if TYPE_CHECKING:
    from asyncsgd.planning.result import Plan


@app.command(rich_help_panel=BEGIN, epilog=examples("demo", "demo --workers 6 --slowdown 20"))
def demo(
    workers: Annotated[int, typer.Option(help="Number of workers.")] = 4,
    slowdown: Annotated[float, typer.Option(help="How many times slower the last worker is than the others.")] = 10.0,
    directory: Annotated[
        Path, typer.Option(help="Folder for the runs and the page. If it already holds a demo, a number is appended.")
    ] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """Compare synchronous and asynchronous training with a slow worker.

    Trains a small network on digits to 95% accuracy with each of four methods. Takes about a minute.
    """
    from asyncsgd.cli.demo import show

    show(workers=workers, slowdown=slowdown, directory=directory, as_json=json)


@app.command(
    rich_help_panel=DECIDE,
    epilog=examples("plan examples/durations.csv", "plan examples/durations.csv --heterogeneous --concurrency 4,8,12"),
)
def plan(
    durations: Annotated[
        Path,
        typer.Argument(metavar="DURATIONS", help="CSV or Parquet file with measured durations. Example: durations.csv"),
    ],
    concurrency: Annotated[
        str | None,
        typer.Option(metavar="10,100", help="Numbers of jobs in flight to try. Default: up to one per worker."),
    ] = None,
    heterogeneous: Annotated[
        bool, typer.Option("--heterogeneous", help="Each worker has data of its own, with another distribution.")
    ] = False,
    epsilon: Annotated[float, typer.Option(help="Target accuracy ε = E‖∇f‖², in units of L·(f(x₀)-f*).")] = 0.01,
    noise: Annotated[
        float | None, typer.Option(help="Gradient noise σ²/ε. Default: ten times the number of workers.")
    ] = None,
    heterogeneity: Annotated[
        float | None, typer.Option(help="Difference between the workers' data, ζ²/ε. Default: the value of --noise.")
    ] = None,
    bandwidth: Annotated[
        float | None,
        typer.Option(help="Bits per second between a worker and the server. The file then holds computing times only."),
    ] = None,
    latency: Annotated[float, typer.Option(help="Seconds that every message takes besides, with --bandwidth.")] = 0.0,
    parameters: Annotated[
        int | None, typer.Option(help="Number of parameters of the model (float32), with --bandwidth.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Random seed of the simulated runs.")] = 0,
    page: Annotated[
        Path | None, typer.Option("--page", "--output", help="File for the page. Default: plan.html")
    ] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Do not write a page.")] = False,
    json: Json = False,
) -> None:
    """Recommend a method and a step size from measured durations.

    DURATIONS is a CSV or Parquet file: one column per worker, the columns worker and duration, or the trace of a run.

    Prints the method, the concurrency, the step size, the expected speed-up and how close it is to the theoretical
    limit, and writes a page.
    """
    from asyncsgd.planning.planner import plan as make_plan
    from asyncsgd.planning.workers import measured_workers

    workers = measured_workers(durations)
    if bandwidth is not None:
        workers = replace(workers, durations=workers.durations.with_network(bandwidth, latency=latency))
    else:
        for name, value in (("latency", latency or None), ("parameters", parameters)):
            if value is not None:
                raise BadParameter(name, value, "has no effect without --bandwidth", "pass --bandwidth too")
    tried = None if concurrency is None else _whole_numbers(concurrency)
    found = make_plan(
        workers,
        concurrency=tried,
        heterogeneous=heterogeneous,
        epsilon=epsilon,
        noise=noise,
        heterogeneity=heterogeneity,
        parameters=parameters,
        seed=seed,
        progress=True,
    )
    _show_plan(found, None if no_page else page or (None if json else Path("plan.html")), as_json=json)


def _whole_numbers(text: str) -> list[int]:
    try:
        return [int(word) for word in text.split(",")]
    except ValueError:
        fix = "pass whole numbers separated by commas, such as 10,100"
        raise BadParameter("concurrency", text, "is not a list of numbers", fix) from None


def _show_plan(found: Plan, page: Path | None, *, as_json: bool) -> None:
    """Print the plan and write its page, or say that matplotlib is missing for the page."""
    from rich.console import Console

    from asyncsgd.planning.page import missing

    if as_json:
        typer.echo(jsonlib.dumps(found.to_dict(), indent=2, allow_nan=False))
    else:
        Console().print(found)
    if page is None:
        return
    lacking = missing()
    console = Console(stderr=True) if as_json else Console()
    line = f"No page: {lacking}" if lacking else f"Page: {found.write_page(page)}"
    console.print(line, markup=False, highlight=False, soft_wrap=True)


@app.command(rich_help_panel=DECIDE, epilog=examples("methods", "methods --json"))
def methods(json: Json = False) -> None:
    """List the methods with their options.

    Options in brackets have a default. Pass an option to train as --NAME if train lists it, else as --set NAME=VALUE.

    In a TOML file for simulate or sweep, an option is a key of the method's table.
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
    for name, about in recipes.COMMON.items():
        typer.echo(f"  {name:<15} {about}")
