"""The command line: parse, call, print."""

from __future__ import annotations

import json as jsonlib
import math
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from asyncsgd import __version__
from asyncsgd.core.errors import AsyncSGDError, UsageError

app = typer.Typer(
    name="asyncsgd",
    help="Asynchronous SGD for distributed and federated learning. Nobody waits for a straggler.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)

File = Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="What to simulate.")]
Json = Annotated[bool, typer.Option("--json", help="Print numbers for a program instead of a table.")]

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


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print it.")]


@app.callback()
def _root(version: Version = False) -> None:
    """Asynchronous SGD for distributed and federated learning. Nobody waits for a straggler."""


@app.command()
def demo(
    workers: Annotated[int, typer.Option(help="How many workers.")] = 4,
    slowdown: Annotated[float, typer.Option(help="How many times slower the last one is.")] = 10.0,
    directory: Annotated[Path, typer.Option(help="Where the runs and the page go.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """Train on digits with one straggler among four worker processes, waiting for it and not. About a minute.

    Example: asyncsgd demo --workers 6 --slowdown 20
    """
    from asyncsgd.demo import show

    show(workers=workers, slowdown=slowdown, directory=directory, as_json=json)


@app.command()
def simulate(config: File, json: Json = False) -> None:
    """Simulate the method(s) of a file and print loss, times and delays.

    Example: asyncsgd simulate examples/straggler.toml
    """
    from asyncsgd.simulation import config as configs
    from asyncsgd.simulation.single import simulate as run_one

    described = configs.load(config)
    iterations = described.run["iterations"]
    rows: list[dict[str, Any]] = []
    with _progress(len(described.methods) * iterations, "simulating") as advance, _naming(config):
        for name, recipe in described.methods.items():
            run = run_one(described.task, recipe(None), described.durations, progress=advance, **{**described.run})
            delays = run.trace.delays
            last = {key: float(values[-1]) for key, values in run.metrics.items() if key not in ("iteration", "time")}
            rows.append(
                {
                    "method": name,
                    "iterations": run.trace.iterations,
                    "seconds": float(run.metrics["time"][-1]),
                    **({key: None for key in last} if run.diverged is not None else last),
                    "diverged": run.diverged,
                    "average_delay": delays.average,
                    "maximum_delay": delays.maximum,
                    "concurrency": delays.concurrency,
                }
            )
    _show(rows, json, f"{config.name}: simulated")


@app.command()
def sweep(config: File, json: Json = False) -> None:
    """Run a whole grid of step sizes for the method(s) of a file and print the best.

    Example: asyncsgd sweep examples/paper_figure.toml --json
    """
    from asyncsgd.simulation import config as configs
    from asyncsgd.simulation.sweep import sweep as run_grid

    described = configs.load(config)
    if "stepsizes" not in described.sweep:
        raise configs.BadConfig(f"{config}: the key sweep.stepsizes is missing; add it below [sweep]")
    if "every" in described.run:
        raise configs.BadConfig(f"{config}: the key run.every has no meaning in a sweep; remove it")
    run: dict[str, Any] = {"iterations": described.run["iterations"]}
    grid = dict(described.sweep)
    grid.setdefault("seeds", [described.run.get("seed", 0)])
    rows: list[dict[str, Any]] = []
    lanes = len(grid["stepsizes"]) * len(grid["seeds"])
    with _progress(len(described.methods) * lanes * run["iterations"], "sweeping") as advance, _naming(config):
        for name, recipe in described.methods.items():
            found = run_grid(described.task, recipe, described.durations, progress=advance, **run, **grid)
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
    _show(rows, json, f"{config.name}: best of the grid")


@app.command()
def paper(
    output: Annotated[Path, typer.Option(help="Folder for the page, the figures and claims.json.")] = Path("paper"),
    only: Annotated[str | None, typer.Option(metavar="3,5", help="Check only the claims with these numbers.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print claims.json instead of a table.")] = False,
) -> None:
    """Measure every claim of the paper: a page, figures and verdicts in one folder. Takes a minute or two.

    Exit code 1 if some claim could not be judged. Example: asyncsgd paper --only 3,5 --output paper
    """
    from asyncsgd.experiments.terminal import show

    if not show(output, only, as_json=json):
        raise typer.Exit(1)


@app.command()
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
    page: Annotated[Path | None, typer.Option(help="Where to write the page; plan.html if left out.")] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Write no page.")] = False,
    json: Json = False,
) -> None:
    """Would asynchronous SGD help? Measured durations in; method, concurrency, step and a page out.

    DURATIONS is CSV or Parquet: one column per worker, rows under worker,duration, or the trace of a run.

    Example: asyncsgd plan examples/durations.csv --concurrency 4,8,12
    """
    from asyncsgd.planning import cli

    options = {"heterogeneous": heterogeneous, "epsilon": epsilon, "noise": noise, "heterogeneity": heterogeneity}
    with _progress(cli.WHOLE, "simulating") as advance:
        found = cli.plan(durations, concurrency, seed=seed, progress=advance, **options)
    cli.show(found, None if no_page else page or (None if json else Path("plan.html")), as_json=json)


@app.command()
def train(
    task: Annotated[
        str | None, typer.Argument(metavar="MODULE:TASK", help="A task, or a function that returns one.")
    ] = None,
    workers: Annotated[int, typer.Option(help="How many worker processes.")] = 4,
    iterations: Annotated[int | None, typer.Option(help="How many updates are to arrive.")] = None,
    method: Annotated[str, typer.Option(help="A recipe, or module:name of your own.")] = "delay_adaptive",
    stepsize: Annotated[float | None, typer.Option(help="The step of the recipe.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="More of its options.")] = None,
    until: Annotated[str | None, typer.Option(metavar='"accuracy >= 0.95"', help="Stop when this is so.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Where the run is kept; runs/NAME-1 and so on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --directory.")] = False,
    seed: Annotated[int, typer.Option(help="Of every random choice.")] = 0,
    every: Annotated[int | None, typer.Option(help="Iterations between evaluations.")] = None,
    slowdown: Annotated[str | None, typer.Option(metavar="1,1,1,10", help="Pretend that workers are slower.")] = None,
    seconds: Annotated[str | None, typer.Option(metavar=".1,.1,1", help="Pretend that jobs take this long.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of each worker.")] = None,
    job_timeout: Annotated[float | None, typer.Option(help="Seconds after which a job is given up.")] = None,
    json: Json = False,
) -> None:
    """Train with worker processes on this machine. Ctrl-C saves and stops; --resume goes on.

    Example: asyncsgd train examples.digits:task --workers 4 --stepsize 0.05 --iterations 2000

    Example: asyncsgd train --resume --directory runs/task-1
    """
    from asyncsgd.run import cli

    run = cli.train(
        task,
        cli.Wishes(
            method=method,
            stepsize=stepsize,
            settings=set_ or [],
            iterations=iterations,
            until=until,
            directory=directory,
            resume=resume,
            seed=seed,
            every=every,
            workers=workers,
            slowdown=slowdown,
            seconds=seconds,
            threads=threads,
            job_timeout=job_timeout,
        ),
    )
    cli.show(run, as_json=json)
    if run.diverged is not None:
        raise typer.Exit(1)


@app.command()
def replay(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that you trained in.")],
    stop: Annotated[int | None, typer.Option(help="Look at the update of this iteration.")] = None,
    json: Json = False,
) -> None:
    """Compute a run again in one process, and say whether it ends with the same model, bit for bit.

    Exit code 1 if it differs. Example: asyncsgd replay runs/task-1 --stop 120
    """
    from asyncsgd.run import cli

    if not cli.replay(directory, stop, as_json=json):
        raise typer.Exit(1)


@contextmanager
def _naming(config: Path) -> Iterator[None]:
    """Say which file a mistake is in."""
    try:
        yield
    except UsageError as error:
        raise UsageError(f"{config}: {error}") from error
    except (MemoryError, OverflowError) as error:
        raise UsageError(f"{config}: too large for this machine ({error}); ask for fewer iterations or runs") from error


class _progress:
    """A bar on the terminal while long work goes on; nothing where nobody looks."""

    def __init__(self, total: int, what: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        console = Console(stderr=True)
        self._bar = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._what = what
        self._task = self._bar.add_task(f"{what} (the first run ever compiles for half a minute)", total=total)

    def __enter__(self) -> Any:
        self._bar.start()
        return lambda done: self._bar.update(self._task, advance=done, description=self._what)

    def __exit__(self, *_: object) -> None:
        self._bar.stop()


def _show(rows: list[dict[str, Any]], as_json: bool, title: str) -> None:
    if as_json:
        finite = [{key: value if _is_plain(value) else None for key, value in row.items()} for row in rows]
        typer.echo(jsonlib.dumps(finite, indent=2, allow_nan=False))
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
        table.add_row(*(_cell(row[key]) for key in shown))
    Console().print(table)


def _is_plain(value: Any) -> bool:
    """JSON knows neither NaN nor infinity."""
    return not isinstance(value, float) or math.isfinite(value)


def _cell(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.3g}"
    return str(value)


def main() -> None:
    """Run the command line. Exit codes: 0 done, 1 it could not be done, 2 a mistake in the call, 130 Ctrl-C."""
    warnings.showwarning = lambda message, *_, **__: typer.echo(f"asyncsgd: warning: {message}", err=True)
    try:
        app()
    except AsyncSGDError as error:
        typer.echo(f"asyncsgd: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
