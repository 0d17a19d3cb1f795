"""``asyncsgd report``, ``watch``, ``export``, ``verify`` and ``repair``: look at a run directory."""

from __future__ import annotations

import json as jsonlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from asyncsgd.cli.application import TRAIN, TRUST, Json, app, examples
from asyncsgd.core.errors import BadParameter, BadRunDirectory, Damage, UsageError
from asyncsgd.core.validate import positive

if TYPE_CHECKING:
    from rich.console import Console

    from asyncsgd.run.live import Frame, Watcher


# --------------------------------------------------------------------------------------------------------------
# ``asyncsgd verify`` and ``asyncsgd repair``: check a run directory, and repair a damaged one.


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


Pause = Callable[[float], None]


@app.command(rich_help_panel=TRAIN, epilog=examples("report runs/task-1", "report runs/a runs/b --output both.html"))
def report(
    directories: Annotated[
        list[Path],
        typer.Argument(
            metavar="DIR...", help="Run directories, folders of them, traces, or a folder that asyncsgd paper wrote."
        ),
    ],
    output: Annotated[
        Path | None,
        typer.Option(help="File for the page. Default: DIR/report.html, or ./report.html for several runs."),
    ] = None,
    title: Annotated[str, typer.Option(help="Title of the page.")] = "",
    json: Json = False,
) -> None:
    """Write one page about one run or several; the page works offline.

    It shows the timeline of the workers, metrics, delays, faults, and the theory's bounds.

    A run that is still training, or that was killed, gets a page about its data so far.
    """
    _report(directories, output, title, as_json=json)


@app.command(rich_help_panel=TRAIN, epilog=examples("watch runs/task-1", "watch runs/task-1 --once --json"))
def watch(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Run directory. Example: runs/task-1")],
    once: Annotated[bool, typer.Option("--once", help="Show the current state once, and exit.")] = False,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for a run that has not started yet, or that may be resumed.")
    ] = False,
    seconds: Annotated[float, typer.Option(help="Seconds between refreshes.")] = 1.0,
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object per refresh.")] = False,
) -> None:
    """Follow a run in the terminal while it trains.

    Shows workers, delays, metrics, speed, time left and faults. Ctrl-C exits with code 0; the run continues.

    Only reads the directory, so it works from another terminal, and after a crash.

    Exit code 1 if the run crashed, was stopped by failing workers, or diverged.
    """
    if not watch_run(directory, once=once, as_json=json, wait=wait, seconds=seconds):
        raise typer.Exit(1)


@app.command(
    rich_help_panel=TRAIN,
    epilog=examples(
        "export runs/task-1 model.safetensors",
        "export runs/task-1 best.pt --best",
        "export runs/task-1 --chrome task-1.json",
    ),
)
def export(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIR", help="Run directory (for --chrome also a trace file). Example: runs/task-1"),
    ],
    model: Annotated[
        Path | None,
        typer.Argument(
            metavar="[MODEL]", help="File for the model: a name that ends in .safetensors, or in .pt for a state_dict."
        ),
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="Write the best model (of --save-best) in place of the last one.")
    ] = False,
    trust: Annotated[bool, typer.Option("--trust", help=TRUST)] = False,
    chrome: Annotated[
        Path | None,
        typer.Option(
            metavar="OUT.json",
            help="File for the timeline as Chrome trace events. A name that ends in .json.gz is compressed.",
        ),
    ] = None,
    arrows: Annotated[
        bool, typer.Option(help="Draw arrows from the version that a job read to the one that its update made.")
    ] = True,
    json: Json = False,
) -> None:
    """Write the model of a run, or its timeline for ui.perfetto.dev.

    The model is that of the last checkpoint. It has the names of the PyTorch module; the model of any other task is one
    vector, x.

    The timeline (--chrome) holds the jobs of the workers, model versions, delays and metrics.
    """
    if (model is None) == (chrome is None):
        problem = "is missing" if model is None else "and --chrome were both given"
        fix = "pass a file for the model, such as model.safetensors, or --chrome OUT.json for the timeline"
        raise BadParameter("MODEL", None if model is None else str(model), problem, fix)
    if model is not None:
        row, sentence = _export_model(directory, model, best=best, trust=trust)
    else:
        assert chrome is not None
        row, sentence = _export_timeline(directory, chrome, arrows=arrows)
    typer.echo(jsonlib.dumps(row, indent=2) if json else sentence)


def _export_model(directory: Path, model: Path, *, best: bool, trust: bool) -> tuple[dict[str, Any], str]:
    from asyncsgd.run.checksums import BEST
    from asyncsgd.run.lookup import look_here
    from asyncsgd.run.read import read_config
    from asyncsgd.run.results import TrainingRun
    from asyncsgd.tasks import model_file

    model_file.check_path(model)
    if not best:
        look_here()
        run = TrainingRun.read(directory, trust=trust)
        path = run.write_model(model)
        iteration = run.trace.iterations if run.x_iteration is None else run.x_iteration
        row = {"path": str(path), "iteration": iteration, "parameters": int(run.x.size)}
        return row, f"{path}: the model of iteration {iteration:,}, with {run.x.size:,} parameters"
    read_config(directory)
    if not (directory / BEST).exists():
        fix = 'train with --save-best METRIC, or in Python with callbacks=[asgd.callbacks.SaveBest("loss")]'
        raise BadParameter("--best", True, f"needs {directory / BEST}, which does not exist", fix)
    try:
        facts = model_file.read_facts(directory / BEST)
    except Damage as error:
        raise BadRunDirectory(f"{directory / BEST} {error}; restore it from a backup") from error
    path = model_file.convert(directory / BEST, model)
    row = {"path": str(path), "iteration": int(facts["iteration"]), facts["metric"]: float(facts["value"])}
    return row, f"{path}: the model of iteration {row['iteration']:,}, with {facts['metric']} {facts['value']}"


def _export_timeline(directory: Path, chrome: Path, *, arrows: bool) -> tuple[dict[str, Any], str]:
    from asyncsgd.pages.sources import gather
    from asyncsgd.trace import timeline as events

    runs = gather(directory)
    if len(runs) > 1:
        raise UsageError(f"{directory} holds {len(runs)} runs; pass one of them, such as {runs[0].name}")
    trace = runs[0].trace
    try:
        path = events.write(trace, chrome, runs[0].metrics, flows=arrows, label=runs[0].label)
    except BadParameter as error:
        raise BadParameter("chrome", error.value, error.problem, error.fix) from error
    row = {"path": str(path), "jobs": len(trace), "iterations": trace.iterations}
    return row, f"{path}: {len(trace):,} jobs; open it in https://ui.perfetto.dev (the file stays on this machine)"


def _report(paths: Sequence[Path], output: Path | None, title: str, *, as_json: bool) -> None:
    """Write the page of these runs and print its path, or print their numbers as JSON.

    A folder of ``asyncsgd paper`` already has a page; copy it to ``output``, or give it another title.
    """
    from rich.console import Console

    from asyncsgd.pages import run_page
    from asyncsgd.pages.sources import gather

    if len(paths) == 1 and (paths[0] / "claims.json").exists() and (paths[0] / "index.html").exists():
        made = _of_paper(paths[0] / "index.html", output, title)
        typer.echo(jsonlib.dumps({"page": str(made), "runs": []}, indent=2) if as_json else f"Page: {made}")
        return
    subjects = gather(list(paths))
    inside = paths[0] if len(paths) == 1 and paths[0].is_dir() else Path()
    page = run_page.write(subjects, output or inside / "report.html", title)
    if as_json:
        found = {"page": str(page), "runs": [subject.headline() for subject in subjects]}
        typer.echo(jsonlib.dumps(found, indent=2, allow_nan=False))
        return
    console = Console(highlight=False)
    for subject in subjects:
        problems = len(subject.diagnosis.problems) if subject.diagnosis else 0
        more = f", {problems} problem{'s' if problems > 1 else ''}" if problems else ""
        sentence = f"{subject.name}: {subject.trace.iterations:,} updates, {subject.state}{more}"
        console.print(sentence, markup=False, soft_wrap=True)
    console.print(f"Page: {page}", markup=False, soft_wrap=True)


def _of_paper(page: Path, output: Path | None, title: str) -> Path:
    from asyncsgd.pages import run_page
    from asyncsgd.pages.page import retitled

    if output is None and not title:
        return page
    html = page.read_text("utf-8")
    return run_page.save(retitled(html, title) if title else html, output or page)


def watch_run(
    directory: Path,
    *,
    once: bool = False,
    as_json: bool = False,
    wait: bool = False,
    seconds: float = 1.0,
    console: Console | None = None,
    pause: Pause = time.sleep,
) -> bool:
    """Show a run until it ends or Ctrl-C; return False if it crashed, was stopped by an error, or diverged.

    Args:
        directory: The run directory, as passed to `asyncsgd.train`.
        once: Show the current state once, and return.
        as_json: Print one JSON object per refresh.
        wait: Wait for a run that has not started yet, or that may be resumed after a crash.
        seconds: Seconds between refreshes.
        console: Where to draw; None: the terminal.
        pause: Function that waits for a number of seconds.
    """
    from rich.console import Console

    from asyncsgd.cli.watch_view import view
    from asyncsgd.run.live import Watcher

    positive("seconds", seconds)
    console = Console(highlight=False) if console is None else console
    frame = None
    try:
        _await(directory, wait, seconds, pause)
        with Watcher(directory) as watcher:
            if once:
                frame = watcher.look()
            elif as_json:
                frame = _stream(watcher, wait, seconds, pause, console)
            elif console.is_terminal:
                frame = _live(watcher, wait, seconds, pause, console)
            else:
                frame = _lines(watcher, wait, seconds, pause, console)
    except KeyboardInterrupt:  # Ctrl-C ends this command; the run itself continues
        return True
    if once and as_json:
        console.out(jsonlib.dumps(frame.headline(), indent=2, allow_nan=False), highlight=False)
    elif not as_json:
        console.print(view(frame, console.width))
    return not frame.ending.bad


def _await(directory: Path, wait: bool, seconds: float, pause: Pause) -> None:
    """Return once there is a run. Raise at once if no process is about to start one, unless ``wait``."""
    from rich.console import Console

    from asyncsgd.run.directory import in_use
    from asyncsgd.run.read import check_complete

    announced = False
    while not (directory / "run.json").exists():
        if not wait and not (directory.exists() and in_use(directory)):
            check_complete(directory)
            problem = "holds no run (no run.json)" if directory.exists() else "does not exist"
            fix = "pass a run directory, such as runs/task-1, or --wait for a run that starts later"
            raise BadParameter("directory", str(directory), problem, fix)
        if not announced:
            Console(stderr=True, highlight=False).print(f"waiting for a run in {directory}", markup=False)
            announced = True
        pause(seconds)


def _over(frame: Frame, wait: bool) -> bool:
    return not frame.running and not (wait and frame.ending.resumable)


def _stream(watcher: Watcher, wait: bool, seconds: float, pause: Pause, console: Console) -> Frame:
    while True:
        frame = watcher.look()
        console.out(jsonlib.dumps(frame.headline(), allow_nan=False), highlight=False)
        if _over(frame, wait):
            return frame
        pause(seconds)


def _live(watcher: Watcher, wait: bool, seconds: float, pause: Pause, console: Console) -> Frame:
    """Draw on the terminal's second screen. After Ctrl-C, print the last frame on the first one."""
    from rich.live import Live

    from asyncsgd.cli.watch_view import view

    frame = watcher.look()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(view(frame, console.width, console.height), refresh=True)
                if _over(frame, wait):
                    return frame
                pause(seconds)
                frame = watcher.look()
    except KeyboardInterrupt:
        console.print(view(frame, console.width))
        raise


def _lines(watcher: Watcher, wait: bool, seconds: float, pause: Pause, console: Console) -> Frame:
    """Print a line whenever something changes, for output that cannot be redrawn."""
    shown = None
    while True:
        frame = watcher.look()
        if _over(frame, wait):
            return frame
        if (frame.iterations, frame.ending.kind) != shown:
            shown = frame.iterations, frame.ending.kind
            console.print(line(frame), markup=False, soft_wrap=True)
        pause(seconds)


def line(frame: Frame) -> str:
    """Return a frame as one line."""
    from asyncsgd.format import clock, latest, number
    from asyncsgd.trace.columns import WHEN

    names = [name for name in frame.metrics if name not in WHEN][:3]
    return "  ".join(
        [
            clock(frame.seconds),
            str(frame.ending.kind),
            f"{frame.iterations:,}/{frame.ending.wanted:,}",
            *([f"epoch {frame.epoch:.2f}"] if frame.epoch is not None else []),
            *([f"{number(frame.updates_per_second)}/s"] if frame.updates_per_second else []),
            *(f"{name} {number(latest(frame.metrics[name]))}" for name in names),
            f"τ avg {number(frame.average_delay)} max {frame.maximum_delay}",
            f"{frame.alive} workers",
        ]
    )
