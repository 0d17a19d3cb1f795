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

import click
import typer
from typer.core import TyperGroup

from asyncsgd import __version__
from asyncsgd.core.errors import AsyncSGDError, UsageError

BEGIN, TRAIN, SIMULATE, DECIDE = "Begin", "Train for real", "Simulate", "Decide"
ORDER = ("demo", "train", "watch", "report", "replay", "export", "simulate", "sweep", "paper", "plan")


class _InOrder(TyperGroup):
    """Commands in the order in which a user meets them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        names = super().list_commands(ctx)
        return [name for name in ORDER if name in names] + [name for name in names if name not in ORDER]


def _examples(*lines: str) -> str:
    """The end of a command's help: a line each, not filled like prose."""
    return "\n\n".join(("[bold]Examples[/bold]", *(f"  asyncsgd {line}" for line in lines)))


app = typer.Typer(
    name="asyncsgd",
    cls=_InOrder,
    help="Asynchronous SGD for distributed and federated learning. Nobody waits for a straggler.",
    epilog="[bold]asyncsgd COMMAND --help[/bold] has examples. Exit codes: 0 done, 1 it could not be done or differs, "
    "2 a mistake in the call, 130 Ctrl-C, 143 SIGTERM.",
    no_args_is_help=True,
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


Version = Annotated[bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")]


@app.callback()
def _root(version: Version = False) -> None:
    """Asynchronous SGD for distributed and federated learning. Nobody waits for a straggler."""


@app.command(rich_help_panel=BEGIN, epilog=_examples("demo", "demo --workers 6 --slowdown 20"))
def demo(
    workers: Annotated[int, typer.Option(help="How many workers.")] = 4,
    slowdown: Annotated[float, typer.Option(help="How many times slower the last one is.")] = 10.0,
    directory: Annotated[Path, typer.Option(help="Where the runs and the page go.")] = Path("runs/demo"),
    json: Json = False,
) -> None:
    """See a straggler among four workers, waited for and not.

    Trains a small network on digits with worker processes, to the same accuracy by four methods. About a minute.
    """
    from asyncsgd.demo import show

    show(workers=workers, slowdown=slowdown, directory=directory, as_json=json)


@app.command(rich_help_panel=SIMULATE, epilog=_examples("simulate examples/straggler.toml"))
def simulate(config: File, json: Json = False) -> None:
    """Simulate the method(s) of a file: loss, times, delays.

    The file names a task, durations and methods; examples/straggler.toml is one.
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


@app.command(
    rich_help_panel=SIMULATE,
    epilog=_examples("sweep examples/paper_figure.toml", "sweep examples/paper_figure.toml --json"),
)
def sweep(config: File, json: Json = False) -> None:
    """Run a grid of step sizes for the method(s) of a file; the best.

    The file is one for simulate, with a section named sweep.
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


@app.command(rich_help_panel=SIMULATE, epilog=_examples("paper", "paper --only 3,5 --output paper"))
def paper(
    output: Annotated[Path, typer.Option(help="Folder for the page, the figures and claims.json.")] = Path("paper"),
    only: Annotated[str | None, typer.Option(metavar="3,5", help="Check only the claims with these numbers.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print claims.json instead of a table.")] = False,
) -> None:
    """Measure ten claims of the paper: page, figures, verdicts.

    Takes about three minutes. Exit code 1 if some claim could not be judged.
    """
    from asyncsgd.experiments.terminal import show

    if not show(output, only, as_json=json):
        raise typer.Exit(1)


@app.command(
    rich_help_panel=DECIDE,
    epilog=_examples("plan examples/durations.csv", "plan examples/durations.csv --heterogeneous --concurrency 4,8,12"),
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
    page: Annotated[Path | None, typer.Option(help="Where to write the page; plan.html if left out.")] = None,
    no_page: Annotated[bool, typer.Option("--no-page", help="Write no page.")] = False,
    json: Json = False,
) -> None:
    """Would asynchrony help? Measured durations in, advice out.

    DURATIONS is CSV or Parquet: one column per worker, rows under worker,duration, or the trace of a run.

    Out come the method, the concurrency, the step, the speed-up, the distance from the limit, and a page.
    """
    from asyncsgd.planning import cli

    options = {"heterogeneous": heterogeneous, "epsilon": epsilon, "noise": noise, "heterogeneity": heterogeneity}
    with _progress(cli.WHOLE, "simulating") as advance:
        found = cli.plan(durations, concurrency, seed=seed, progress=advance, **options)
    cli.show(found, None if no_page else page or (None if json else Path("plan.html")), as_json=json)


@app.command(
    rich_help_panel=TRAIN,
    epilog=_examples(
        "train examples.digits:task --workers 4 --stepsize 0.05 --iterations 2000",
        "train --resume --directory runs/task-1",
    ),
)
def train(
    task: Annotated[
        str | None, typer.Argument(metavar="MODULE:TASK", help="A task, or a function that returns one.")
    ] = None,
    workers: Annotated[int | None, typer.Option(help="How many worker processes.", show_default="4")] = None,
    iterations: Annotated[int | None, typer.Option(help="How many updates are to arrive.")] = None,
    method: Annotated[
        str | None, typer.Option(help="A recipe, or module:name of your own.", show_default="delay_adaptive")
    ] = None,
    stepsize: Annotated[float | None, typer.Option(help="The step of the recipe.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="More of its options.")] = None,
    until: Annotated[str | None, typer.Option(metavar='"accuracy >= 0.95"', help="Stop when this is so.")] = None,
    directory: Annotated[Path | None, typer.Option(help="Where the run is kept; runs/NAME-1 and so on.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --directory.")] = False,
    seed: Annotated[int | None, typer.Option(help="Of every random choice.", show_default="0")] = None,
    every: Annotated[int | None, typer.Option(help="Iterations between evaluations.")] = None,
    checkpoint_seconds: Annotated[float, typer.Option(help="Seconds between checkpoints.")] = 30.0,
    max_failures: Annotated[int, typer.Option(help="Failures of a worker in a row that are too many.")] = 3,
    slowdown: Annotated[str | None, typer.Option(metavar="1,1,1,10", help="Pretend that workers are slower.")] = None,
    seconds: Annotated[str | None, typer.Option(metavar=".1,.1,1", help="Pretend that jobs take this long.")] = None,
    threads: Annotated[int | None, typer.Option(help="Of each worker.")] = None,
    job_timeout: Annotated[float | None, typer.Option(help="Seconds after which a job is given up.")] = None,
    start_timeout: Annotated[
        float | None, typer.Option(help="Seconds that loading the task may take.", show_default="120")
    ] = None,
    json: Json = False,
) -> None:
    """Train with worker processes on this machine.

    MODULE:TASK names a task, or a function that returns one, as uvicorn names an app.

    Ctrl-C and SIGTERM save and stop; --resume goes on, also after a kill.
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
            checkpoint_seconds=checkpoint_seconds,
            max_failures=max_failures,
            workers=workers,
            slowdown=slowdown,
            seconds=seconds,
            threads=threads,
            job_timeout=job_timeout,
            start_timeout=start_timeout,
        ),
    )
    cli.show(run, as_json=json)
    if run.diverged is not None:
        raise typer.Exit(1)


@app.command(rich_help_panel=TRAIN, epilog=_examples("replay runs/task-1", "replay runs/task-1 --stop 120"))
def replay(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that you trained in.")],
    stop: Annotated[int | None, typer.Option(help="Look at the update of this iteration.")] = None,
    json: Json = False,
) -> None:
    """Compute a run again in one process: is it the same, bit for bit?

    Exit code 1 if it differs.
    """
    from asyncsgd.run import cli

    if not cli.replay(directory, stop, as_json=json):
        raise typer.Exit(1)


@app.command(rich_help_panel=TRAIN, epilog=_examples("report runs/task-1", "report runs/a runs/b --output both.html"))
def report(
    directories: Annotated[
        list[Path], typer.Argument(metavar="DIR...", help="Directories of runs, folders of them, or traces.")
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
    from asyncsgd.report import cli

    cli.report(directories, output, title, as_json=json)


@app.command(rich_help_panel=TRAIN, epilog=_examples("watch runs/task-1", "watch runs/task-1 --once --json"))
def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="A directory that somebody trains in.")],
    once: Annotated[bool, typer.Option("--once", help="Show how it stands now, and leave.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for a run that begins later, or is resumed.")] = False,
    every: Annotated[float, typer.Option(help="Seconds between looks.")] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print one object per look and line, for a program.")] = False,
) -> None:
    """Show a run that is going on, in the terminal.

    Workers, delays, metrics, speed, time left, what went wrong. Ctrl-C leaves.

    Reads the directory only, so it works from another terminal, and after a crash.

    Exit code 1 if the run has crashed, was stopped by failing workers, or has diverged.
    """
    from asyncsgd.watch.show import watch as watch_run

    if not watch_run(directory, once=once, as_json=json, wait=wait, every=every):
        raise typer.Exit(1)


@app.command(rich_help_panel=TRAIN, epilog=_examples("export runs/task-1 --chrome task-1.json"))
def export(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="The directory of a run, or the file of a trace.")],
    chrome: Annotated[Path, typer.Option(metavar="OUT.json", help="Where it goes; OUT.json.gz is compressed.")],
    arrows: Annotated[bool, typer.Option(help="Which version a job read, and which one its update made.")] = True,
    json: Json = False,
) -> None:
    """Write a run as Chrome's trace events, for ui.perfetto.dev.

    Who worked when, versions, delays, metrics.
    """
    from asyncsgd.report.sources import gather
    from asyncsgd.trace import chrome as events

    runs = gather(directory)
    if len(runs) > 1:
        raise UsageError(f"{directory} holds {len(runs)} runs; pass the directory of one, such as {runs[0].name}")
    trace = runs[0].trace
    path = events.write(trace, chrome, runs[0].metrics, flows=arrows)
    row = {"path": str(path), "jobs": len(trace), "iterations": trace.iterations}
    words = f"{path}: {len(trace):,} jobs; open it in https://ui.perfetto.dev (nothing is sent anywhere)"
    typer.echo(jsonlib.dumps(row, indent=2) if json else words)


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
    """Run the command line.

    Exit codes: 0 done, 1 it could not be done or differs, 2 a mistake in the call, 130 Ctrl-C, 143 SIGTERM.
    """
    warnings.showwarning = lambda message, *_, **__: typer.echo(f"asyncsgd: warning: {message}", err=True)
    try:
        app()
    except AsyncSGDError as error:
        typer.echo(f"asyncsgd: {error}", err=True)
        sys.exit(2 if isinstance(error, UsageError) else 1)
