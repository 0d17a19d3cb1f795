"""A bar while long work goes on."""

from __future__ import annotations

from typing import Any


class Bar:
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
