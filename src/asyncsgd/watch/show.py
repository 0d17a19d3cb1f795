"""What ``asyncsgd watch`` does: look, draw, wait, until the run is over."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path

from rich.console import Console
from rich.live import Live

from asyncsgd.core.check import positive
from asyncsgd.core.errors import BadParameter
from asyncsgd.format import clock, number
from asyncsgd.run.directory import in_use
from asyncsgd.run.reading import check_complete
from asyncsgd.watch.frame import Frame
from asyncsgd.watch.view import view
from asyncsgd.watch.watcher import Watcher

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
