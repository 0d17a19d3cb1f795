"""``asyncsgd simulate``, ``asyncsgd sweep`` and ``asyncsgd paper``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from asyncsgd.cli import application
from asyncsgd.cli.application import SIMULATE, Json, app, examples
from asyncsgd.core.errors import BadConfig, UsageError

File = Annotated[
    Path,
    typer.Argument(
        metavar="CONFIG.toml", help="TOML file with a task, durations and methods. Example: examples/straggler.toml"
    ),
]
PageFile = Annotated[
    Path | None, typer.Option("--output", metavar="PAGE.html", help="Write a page about the runs to this file.")
]


@app.command(
    rich_help_panel=SIMULATE,
    epilog=examples("simulate examples/straggler.toml", "simulate examples/straggler.toml --output straggler.html"),
)
def simulate(config: File, output: PageFile = None, json: Json = False) -> None:
    """Simulate the methods of a TOML file: loss, time and delays.

    The file names a task, durations and methods; see examples/straggler.toml.
    """
    from asyncsgd.cli import simulation_file as configs
    from asyncsgd.result import leftover
    from asyncsgd.simulation._simulate import run_simulation
    from asyncsgd.simulation.compiled_replay import Bar

    described = configs.load(config)
    iterations = described.run["iterations"]
    rows: list[dict[str, Any]] = []
    runs: dict[str, Any] = {}
    with Bar(len(described.methods) * iterations, "simulating") as advance, _naming(config):
        for name, recipe in described.methods.items():
            run = run_simulation(described.task, recipe(None), described.durations, progress=advance, **described.run)
            runs[name] = run
            delays = run.trace.delays
            last = {key: float(values[-1]) for key, values in run.metrics.items() if key not in ("iteration", "time")}
            rows.append(
                {
                    "method": name,
                    "iterations": run.trace.iterations,
                    "seconds": float(run.metrics["time"][-1]),
                    **({key: None for key in last} if run.diverged is not None else last),
                    "diverged": run.diverged,
                    "unused": run.unused or None,
                    **({"slow_because": run.slow_because} if json else {}),
                    "average_delay": delays.average,
                    "maximum_delay": delays.maximum,
                    "concurrency": delays.concurrency,
                }
            )
    application.show(rows, json, f"{config.name}: simulated")
    for name, run in runs.items():
        if not json and (rest := leftover(run.method, run.trace)) is not None:
            typer.echo(f"{name}: {rest}")
        if not json and run.slow_because:
            typer.echo(f"{name}: simulated slowly, without compiled code: {run.slow_because}")
    if output is not None:
        _page(runs, described.task, output, json)


@app.command(
    rich_help_panel=SIMULATE,
    epilog=examples("sweep examples/paper_figure.toml", "sweep examples/paper_figure.toml --output best.html"),
)
def sweep(config: File, output: PageFile = None, json: Json = False) -> None:
    """Search a grid of step sizes; report the best one for each method.

    The file is one for simulate with a table named sweep. The page shows each method with its best step size.
    """
    from asyncsgd.cli import simulation_file as configs
    from asyncsgd.simulation._compare import refuse_same
    from asyncsgd.simulation._sweep import check_grid
    from asyncsgd.simulation._sweep import sweep as run_grid
    from asyncsgd.simulation.compiled_replay import Bar

    described = configs.load(config)
    if "stepsizes" not in described.sweep:
        raise BadConfig(f"{config}: the key sweep.stepsizes is missing; add it below [sweep]")
    if "every" in described.run:
        raise BadConfig(f"{config}: the key run.every has no meaning in a sweep; remove it")
    run: dict[str, Any] = {"iterations": described.run["iterations"]}
    grid = dict(described.sweep)
    grid.setdefault("seeds", [described.run.get("seed", 0)])
    rows: list[dict[str, Any]] = []
    sweeps: dict[str, Any] = {}
    with _naming(config):
        refuse_same(described.methods, float(check_grid(grid["stepsizes"])[0]))
    lanes = len(grid["stepsizes"]) * len(grid["seeds"])
    with Bar(len(described.methods) * lanes * run["iterations"], "sweeping") as advance, _naming(config):
        for name, recipe in described.methods.items():
            found = run_grid(described.task, recipe, described.durations, progress=advance, **run, **grid)
            sweeps[name] = found
            reached = found.target is not None
            rows.append(
                {
                    "method": name,
                    "stepsize": found.best,
                    "iterations_to_target": found.best_iterations if reached else None,
                    "seconds_to_target": found.best_time if reached else None,
                    found.metric: float(found.final[found.index].mean()),
                    "diverged": int(found.diverged.sum()),
                    "runs": int(found.diverged.size),
                    "on_edge": found.on_edge,
                }
            )
    application.show(rows, json, f"{config.name}: best of the grid")
    if output is not None:
        _page(_at_their_best(described, sweeps), described.task, output, json)


@app.command(rich_help_panel=SIMULATE, epilog=examples("paper", "paper --only 3,5 --output paper"))
def paper(
    output: Annotated[Path, typer.Option(help="Folder for the page, the figures and claims.json.")] = Path("paper"),
    only: Annotated[
        str | None, typer.Option(metavar="3,5", help="Numbers of the claims to check. Default: all ten.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print claims.json instead of a table.")] = False,
    docs: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="Docs folder of a source checkout, whose page about the claims is rewritten."),
    ] = None,
) -> None:
    """Check ten claims of the paper by simulation.

    Writes a page, figures and claims.json. Takes about three minutes. Exit code 1 if a claim could not be judged.
    """
    from asyncsgd.cli.paper import show

    if not show(output, only, as_json=json, docs=docs):
        raise typer.Exit(1)


def _at_their_best(described: Any, sweeps: dict[str, Any]) -> Any:
    """Run every method with its best step size and the first seed, up to the target if there is one."""
    from asyncsgd.simulation._compare import Comparison
    from asyncsgd.simulation._simulate import simulate as run_one

    runs = {}
    for name, found in sweeps.items():
        most = described.run["iterations"]
        until = most if found.target is None else max(1, int(min(most, found.iterations[found.index, 0])))
        method = described.methods[name](found.best)
        runs[name] = run_one(described.task, method, described.durations, iterations=until, seed=found.seeds[0])
    return Comparison(runs, sweeps, found.target, found.metric)


def _page(runs: Any, task: Any, output: Path, as_json: bool) -> None:
    """Write the page and print its path; with --json, to standard error."""
    from asyncsgd.pages import report

    typer.echo(f"Page: {report(runs, output, task=task)}", err=as_json)


@contextmanager
def _naming(config: Path) -> Iterator[None]:
    """Add the name of the file to errors."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{config}: {error}") from error
    except (MemoryError, OverflowError) as error:
        raise UsageError(f"{config}: too large for this machine ({error}); use fewer iterations or runs") from error
