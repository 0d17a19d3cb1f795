"""Draw a frame of ``asyncsgd watch`` that fits into the width and height of the terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from rich import box
from rich.console import Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from asyncsgd.format import ago, clock, number
from asyncsgd.run.live import Frame, WorkerSeen
from asyncsgd.trace.columns import WHEN

LEVELS = "▁▂▃▄▅▆▇█"
EIGHTHS = " ▏▎▍▌▋▊▉█"
SPREAD = 20.0
"""Values that differ by more than this factor are drawn on a logarithmic scale."""


def is_log(values: Sequence[float]) -> bool:
    """Return whether a sparkline of these values is logarithmic."""
    finite = [value for value in values if math.isfinite(value)]
    return bool(finite) and min(finite) > 0 and max(finite) / min(finite) > SPREAD


def sparkline(values: Sequence[float], width: int) -> str:
    """Return values as one line of block characters; a column shows the last of its values.

    >>> sparkline([4, 3, 2, 1, 1], 5)
    '█▆▃▁▁'
    >>> sparkline([1, 2, 3, 4, 5, 6], 3), sparkline([1.0, float("nan"), 2.0], 9), sparkline([1000, 1, 100], 9)
    ('▁▅█', '▁ █', '█▁▆')
    """
    columns = min(width, len(values))
    shown = [values[(place + 1) * len(values) // columns - 1] for place in range(columns)]
    if is_log(values):
        shown = [math.log(value) for value in shown]
    finite = [value for value in shown if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=0.0)
    scale = (len(LEVELS) - 1) / (high - low) if high > low else 0.0
    return "".join(LEVELS[round((value - low) * scale)] if math.isfinite(value) else " " for value in shown)


def bar(share: float, width: int) -> str:
    """Return a bar that fills this share of the width, to an eighth of a character; any positive share is visible.

    >>> bar(0.5, 4), bar(0.3, 4), bar(1e-9, 4), bar(0.0, 4)
    ('██', '█▎', '▏', '')
    """
    eighths = min(8 * width, max(round(8 * width * share), 1 if share > 0 else 0))
    return "█" * (eighths // 8) + EIGHTHS[eighths % 8].strip()


def bins(histogram: Sequence[tuple[int, int]], most: int) -> list[tuple[str, int]]:
    """Return delays in at most ``most`` bars: one per delay if they are few, else 0, 1, 2–3, 4–7, ... or coarser.

    >>> bins([(0, 5), (2, 1)], 4)
    [('0', 5), ('1', 0), ('2', 1)]
    >>> bins([(0, 5), (3, 1), (9, 2)], 6)
    [('0', 5), ('1', 0), ('2–3', 1), ('4–7', 0), ('8–15', 2)]
    """
    top = max((delay for delay, _ in histogram), default=-1)
    if top < most:
        counts = dict(histogram)
        return [(str(delay), counts.get(delay, 0)) for delay in range(top + 1)]
    factor = 2
    while len(edges := _edges(top, factor)) - 1 > most:
        factor *= 2
    found = []
    for low, after in pairwise(edges):
        inside = sum(count for delay, count in histogram if low <= delay < after)
        found.append((str(low) if after == low + 1 else f"{low}–{after - 1}", inside))
    return found


def _edges(top: int, factor: int) -> list[int]:
    edges = [0, 1]
    while edges[-1] <= top:
        edges.append(edges[-1] * factor)
    return edges


MARKS = {"good": "✓", "warn": "‖", "bad": "✗"}
STYLES = {"good": "green", "warn": "yellow", "bad": "red"}
SILENT = 10.0
"""A run that has written nothing for this many seconds is shown as silent."""
NARROW, WIDE = 80, 110
"""Widths in columns: below NARROW some columns are left out; from WIDE on, metrics and delays are side by side."""
METRICS, ROWS = 5, 40
"""Maximum number of metrics, and of workers if the height is unlimited."""
SIZES = ((8, 5), (6, 4), (5, 3), (4, 2), (3, 1))
"""Numbers of delay bars and notes, from tall to small terminals."""


def view(frame: Frame, width: int, height: int | None = None) -> Group:
    """Draw a frame for this width and height; workers that do not fit are summed up in one line."""
    head = [_title(frame), *_remark(frame, width), _progress(frame, width), Text()]
    for bars, notes in SIZES:
        body, tall = _body(frame, width, bars)
        foot = _notes(frame, notes)
        # The blank line, the heading with its rule, and of the notes a blank line and a heading.
        taken = _lines(head, width) + tall + 3 + (min(notes, len(frame.notes)) + 2 if foot else 0)
        room = ROWS if height is None else height - taken
        if room >= min(len(frame.workers), 5):
            break
    return Group(*head, *body, Text(), *_workers(frame, width, max(2, room)), *foot)


def _lines(parts: list[RenderableType], width: int) -> int:
    return sum(max(1, -(-part.cell_len // width)) if isinstance(part, Text) else 1 for part in parts)


def _mark(frame: Frame) -> str:
    return "●" if frame.running else MARKS[frame.ending.colour]


def _style(frame: Frame) -> str:
    return "green" if frame.running else STYLES[frame.ending.colour]


def _title(frame: Frame) -> Table:
    line = Table.grid(expand=True, padding=(0, 2, 0, 0))
    line.add_column(no_wrap=True, overflow="ellipsis", ratio=1)
    line.add_column(justify="right", no_wrap=True)
    about = Text(frame.directory, style="bold")
    about.append(f"   {frame.method} on {frame.task}", style="not bold dim")
    line.add_row(about, Text(f"{_mark(frame)} {frame.ending.kind}", style=f"bold {_style(frame)}"))
    return line


def _remark(frame: Frame, width: int) -> list[RenderableType]:
    """Return the line below the title: how the run ended, its target, or that it is silent."""
    if not frame.running:
        sentence = frame.sentence
        return [Text(sentence, _style(frame), overflow="fold")] if sentence != frame.ending.kind else []
    shown = [f"until {frame.ending.until}"] if frame.ending.until else []
    text = Text("   ".join(shown), no_wrap=True, overflow="ellipsis")
    if frame.silent > SILENT:
        text.append(f"{'   ' if shown else ''}nothing new for {ago(frame.silent)}", style="yellow")
    return [text] if text.plain else []


def _progress(frame: Frame, width: int) -> Table:
    shown = [f"{frame.iterations:,} of {frame.ending.wanted:,}"]
    if frame.epoch is not None:
        shown.append(f"epoch {frame.epoch:.2f}" + ("" if frame.epochs is None else f" of {frame.epochs}"))
    if frame.updates_per_second:
        shown.append(f"{number(frame.updates_per_second)} updates/s")
    shown.append(clock(frame.seconds))
    if frame.left is not None:
        shown.append(f"{'at most ' if frame.ending.until else ''}{clock(frame.left)} left")
    text = Text("   ".join(shown), no_wrap=True, overflow="ellipsis")
    line = Table.grid(padding=(0, 2, 0, 0))
    room = min(40, width - text.cell_len - 4)
    if room < 8:
        line.add_row(text)
        return line
    line.add_column(width=room)
    style, done = _style(frame), min(1.0, frame.iterations / max(1, frame.ending.wanted))
    line.add_row(ProgressBar(total=1.0, completed=done, complete_style=style, finished_style=style), text)
    return line


def _body(frame: Frame, width: int, bars: int) -> tuple[list[RenderableType], int]:
    """Return metrics and delays, and the number of lines that they take."""
    if width < WIDE:
        metrics, delays = _metrics(frame, width), _delays(frame, bars)
        return [metrics, Text(), delays], metrics.row_count + 1 + delays.row_count
    left = width - 52
    metrics, delays = _metrics(frame, left), _delays(frame, bars)
    pair = Table.grid()
    pair.add_column(width=left)
    pair.add_column(width=52)
    pair.add_row(metrics, delays)
    return [pair], max(metrics.row_count, delays.row_count)


def _metrics(frame: Frame, width: int) -> Table:
    """Return one line per metric: first value, sparkline, last value."""
    table = Table.grid(padding=(0, 2, 0, 0))
    names = [name for name in frame.metrics if name not in WHEN]
    if not names:
        table.add_row(Text("no evaluation yet", style="dim"))
        return table
    table.add_column(style="bold", no_wrap=True, overflow="ellipsis", max_width=16)
    table.add_column(style="dim", justify="right", no_wrap=True)
    table.add_column(style="cyan", no_wrap=True)
    table.add_column(style="bold", justify="right", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    taken = max(min(16, len(name)) for name in names[:METRICS]) + 32
    for name in names[:METRICS]:
        values = [value for value in frame.metrics[name] if not math.isnan(value)] or [math.nan]
        line = sparkline(values, max(8, min(50, width - taken)))
        table.add_row(name, number(values[0]), line, number(values[-1]), "log" if is_log(values) else "")
    if len(names) > METRICS:
        table.add_row(Text(f"{len(names) - METRICS} more", style="not bold dim"))
    return table


def _delays(frame: Frame, bars: int) -> Table:
    """Return the delay statistics and a histogram."""
    table = Table.grid()
    table.add_column(no_wrap=True, overflow="ellipsis")
    head = Text("delays", style="bold")
    head.append(f"  τ avg {number(frame.average_delay)}, max {frame.maximum_delay:,}", style="not bold")
    head.append(f", {frame.in_flight:,} in flight{'' if frame.running else ' at the end'}", style="not bold")
    table.add_row(head)
    rows = bins(frame.histogram, bars)
    total = sum(count for _, count in rows)
    largest = max((count for _, count in rows), default=0)
    label = max((len(name) for name, _ in rows), default=0)
    for name, count in rows:
        line = Text()
        line.append(f"{name:>{label}} ", style="dim")
        line.append(f"{bar(count / largest if largest else 0.0, 24):<24}", style="magenta")
        share = count / total if total else 0.0
        line.append("  <1%" if 0 < share < 0.01 else f" {share:4.0%}", style="dim")
        table.add_row(line)
    return table


def _workers(frame: Frame, width: int, room: int) -> list[RenderableType]:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    running = frame.running
    clients = any(row.label.startswith("client ") for row in frame.workers)
    for heading in ("client" if clients else "worker", *(("",) if running else ())):
        table.add_column(heading, no_wrap=True)
    table.add_column("updates", justify="right", no_wrap=True)
    if width >= NARROW:
        table.add_column("", no_wrap=True)
    left = ("in flight" if running else "left at end",) if width >= NARROW else ()
    for heading in ("mean delay", *left, "last update"):
        table.add_column(heading, justify="right", no_wrap=True)
    if width >= WIDE:
        table.add_column("lost", justify="right", no_wrap=True)  # or rejected
        table.add_column("deaths", justify="right", no_wrap=True)
    shown, hidden = (list(frame.workers), []) if len(frame.workers) <= room else _pick(frame.workers, room - 1)
    most = max((row.jobs for row in frame.workers), default=0)
    for row in shown:
        style = {"working": "green", "retired": "red", "gone": "red"}.get(row.state, "")
        seen = ago(row.last_seen) if running or row.last_seen is None else f"at {clock(frame.seconds - row.last_seen)}"
        name = row.label.partition(" ")[2]  # without the word that is the heading
        cells: list[RenderableType] = [name, *((Text(row.state, style=style),) if running else ())]
        if width >= NARROW:
            share = Text(f"{bar(row.jobs / most if most else 0.0, 10):<10}", style="blue")
            cells += [f"{row.jobs:,}", share, number(row.mean_delay), str(row.in_flight), seen]
        else:
            cells += [f"{row.jobs:,}", number(row.mean_delay), seen]
        if width >= WIDE:
            counts = (row.faults, row.deaths)
            cells += [Text(str(count) if count else "–", style="red" if count else "dim") for count in counts]
        table.add_row(*cells)
    if not hidden:
        return [table]
    jobs, flying = sum(row.jobs for row in hidden), sum(row.in_flight for row in hidden)
    rest = f"and {len(hidden):,} more, with {jobs:,} updates and {flying:,} in flight{'' if running else ' at the end'}"
    return [table, Text(rest, style="dim", no_wrap=True, overflow="ellipsis")]


def _pick(rows: tuple[WorkerSeen, ...], room: int) -> tuple[list[WorkerSeen], list[WorkerSeen]]:
    """Return the workers to show (those with faults, then those with the longest delays) and the others."""

    def interest(row: WorkerSeen) -> tuple[bool, int, float]:
        return row.state in ("gone", "retired"), row.deaths + row.faults, row.mean_delay or 0.0

    ranked = sorted(rows, key=interest, reverse=True)
    return sorted(ranked[:room], key=lambda row: row.worker), ranked[room:]


def _notes(frame: Frame, most: int) -> list[RenderableType]:
    """Return the newest notes, one line each."""
    if not frame.notes:
        return []
    often = {name: len(count) if isinstance(count, list) else count for name, count in frame.faults.items()}
    counted = ((count, name if count > 1 else name.removesuffix("s")) for name, count in often.items() if count)
    counts = ", ".join(f"{count:,} {name}" for count, name in counted)
    heading = Text("notes", style="bold")
    heading.append(f"  {counts}" if counts else "", style="not bold dim")
    table = Table.grid(padding=(0, 2, 0, 0))
    times = max(len(clock(note.seconds)) for note in frame.notes[-most:])
    table.add_column(style="dim", justify="right", no_wrap=True, min_width=times)
    table.add_column(no_wrap=True, overflow="ellipsis")
    for note in frame.notes[-most:]:
        line = note.text.splitlines()[0] if note.text else ""
        table.add_row(clock(note.seconds), Text(line, style="red" if note.bad else ""))
    return [Text(), heading, table]
