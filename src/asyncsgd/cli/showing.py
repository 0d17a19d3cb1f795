"""What ``asyncsgd watch`` does: look, draw, wait, until the run is over."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live

from asyncsgd.cli.watch_view import view
from asyncsgd.core.errors import BadParameter
from asyncsgd.core.validate import positive
from asyncsgd.format import clock, number
from asyncsgd.pages import run_page
from asyncsgd.pages.page import retitled
from asyncsgd.pages.sources import gather
from asyncsgd.run.directory import in_use
from asyncsgd.run.live import Frame, Watcher
from asyncsgd.run.read import check_complete

# --------------------------------------------------------------------------------------------------------------
# What ``asyncsgd report`` does.


def report(paths: Sequence[Path], output: Path | None, title: str, *, as_json: bool) -> None:
    """Write the page of these runs and say where it is, or print their numbers for a program.

    A folder of ``asyncsgd paper`` has its page already; it may be wanted elsewhere, or under another heading.
    """
    if len(paths) == 1 and (paths[0] / "claims.json").exists() and (paths[0] / "index.html").exists():
        made = _of_paper(paths[0] / "index.html", output, title)
        sys.stdout.write(json.dumps({"page": str(made), "runs": []}, indent=2) + "\n" if as_json else f"Page: {made}\n")
        return
    subjects = gather(list(paths))
    inside = paths[0] if len(paths) == 1 and paths[0].is_dir() else Path()
    page = run_page.write(subjects, output or inside / "report.html", title)
    if as_json:
        found = {"page": str(page), "runs": [subject.headline() for subject in subjects]}
        json.dump(found, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        return
    console = Console(highlight=False)
    for subject in subjects:
        problems = len(subject.diagnosis.problems) if subject.diagnosis else 0
        more = f", {problems} problem{'s' if problems > 1 else ''}" if problems else ""
        words = f"{subject.name}: {subject.trace.iterations:,} updates, {subject.state}{more}"
        console.print(words, markup=False, soft_wrap=True)
    console.print(f"Page: {page}", markup=False, soft_wrap=True)


def _of_paper(page: Path, output: Path | None, title: str) -> Path:
    if output is None and not title:
        return page
    html = page.read_text("utf-8")
    return run_page.save(retitled(html, title) if title else html, output or page)


Pause = Callable[[float], None]


def watch(
    directory: Path,
    *,
    once: bool = False,
    as_json: bool = False,
    wait: bool = False,
    every: float = 1.0,
    console: Console | None = None,
    pause: Pause = time.sleep,
) -> bool:
    """Show a run until it is over or Ctrl-C; whether it stands as it should (not crashed, stopped or diverged).

    Args:
        directory: Given to `asyncsgd.train`.
        once: Show how it stands now, and leave.
        as_json: Print an object per look, one per line, for a program.
        wait: Wait for a run that begins later, or that goes on after a crash.
        every: Seconds between looks.
        console: Where to draw; the terminal if left out.
        pause: Waits for so many seconds.
    """
    positive("every", every)
    console = Console(highlight=False) if console is None else console
    frame = None
    try:
        _await(directory, wait, every, pause)
        with Watcher(directory) as watcher:
            if once:
                frame = watcher.look()
            elif as_json:
                frame = _stream(watcher, wait, every, pause, console)
            elif console.is_terminal:
                frame = _live(watcher, wait, every, pause, console)
            else:
                frame = _lines(watcher, wait, every, pause, console)
    except KeyboardInterrupt:  # how one leaves; the run itself goes on
        return True
    if once and as_json:
        console.out(json.dumps(frame.headline(), indent=2, allow_nan=False), highlight=False)
    elif not as_json:
        console.print(view(frame, console.width))
    return not frame.ending.bad


def _await(directory: Path, wait: bool, every: float, pause: Pause) -> None:
    """Until there is a run; at once an error if nobody is about to begin one."""
    told = False
    while not (directory / "run.json").exists():
        if not wait and not (directory.exists() and in_use(directory)):
            check_complete(directory)
            problem = "holds no run (no run.json)" if directory.exists() else "does not exist"
            fix = "pass the directory given to asgd.train, or --wait for a run that is still to begin"
            raise BadParameter("directory", str(directory), problem, fix)
        if not told:
            Console(stderr=True, highlight=False).print(f"waiting for a run in {directory}", markup=False)
            told = True
        pause(every)


def _over(frame: Frame, wait: bool) -> bool:
    return not frame.running and not (wait and frame.ending.resumable)


def _stream(watcher: Watcher, wait: bool, every: float, pause: Pause, console: Console) -> Frame:
    while True:
        frame = watcher.look()
        console.out(json.dumps(frame.headline(), allow_nan=False), highlight=False)
        if _over(frame, wait):
            return frame
        pause(every)


def _live(watcher: Watcher, wait: bool, every: float, pause: Pause, console: Console) -> Frame:
    """On a screen of its own; what it showed last is printed when that is gone."""
    frame = watcher.look()
    try:
        with Live(console=console, screen=True, auto_refresh=False) as live:
            while True:
                live.update(view(frame, console.width, console.height), refresh=True)
                if _over(frame, wait):
                    return frame
                pause(every)
                frame = watcher.look()
    except KeyboardInterrupt:
        console.print(view(frame, console.width))
        raise


def _lines(watcher: Watcher, wait: bool, every: float, pause: Pause, console: Console) -> Frame:
    """Where nothing can be redrawn: a line whenever there is something new."""
    shown = None
    while True:
        frame = watcher.look()
        if _over(frame, wait):
            return frame
        if (frame.iterations, frame.ending.kind) != shown:
            shown = frame.iterations, frame.ending.kind
            console.print(line(frame), markup=False, soft_wrap=True)
        pause(every)


def line(frame: Frame) -> str:
    """A frame in one line."""
    names = [name for name in frame.metrics if name not in ("iteration", "time")][:3]
    return "  ".join(
        [
            clock(frame.seconds),
            str(frame.ending.kind),
            f"{frame.iterations:,}/{frame.ending.wanted:,}",
            *([f"{number(frame.updates_per_second)}/s"] if frame.updates_per_second else []),
            *(f"{name} {number(frame.metrics[name][-1])}" for name in names),
            f"τ avg {number(frame.average_delay)} max {frame.maximum_delay}",
            f"{frame.alive} workers",
        ]
    )
