"""The page of one run or of several side by side: text and tables here, pictures by the scripts in ``js``."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd._files import write_text
from asyncsgd.core.errors import BadParameter
from asyncsgd.pages import page_data, sections, sources
from asyncsgd.pages.page import Page, asset
from asyncsgd.pages.page_data import Series, bins, histogram, series, spans, thinned, workers
from asyncsgd.pages.theory_comparison import expected
from asyncsgd.run.view import AXES, Floats, RunView
from asyncsgd.trace.columns import WHEN

WORDS = {"train": "clients, while training", "evaluate": "clients, evaluating"}
MOST = 12
"""The largest number of charts: clients choose the names of metrics and could send any number of them."""


def client_charts(subjects: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return one chart per metric and kind that clients measured: means over clients, from the journals."""
    known: dict[tuple[str, str], None] = {}
    for subject in subjects:
        for row in _rows(subject):
            known |= {(name, row["kind"]): None for name in row["metrics"]}
    charts = []
    for name, kind in list(known)[:MOST]:
        lines = []
        for place, subject in enumerate(subjects):
            rows = [row for row in _rows(subject) if row["kind"] == kind and name in row["metrics"]]
            at = [(row.get("at", row["iteration"]), row["seconds"], row["metrics"][name]) for row in rows]
            if at:
                values = np.array(at, float)
                columns = thinned({**{axis: values[:, n] for n, axis in enumerate(AXES)}, "value": values[:, 2]})
                lines.append({"run": place, **{key: page_data.numbers(column) for key, column in columns.items()}})
        charts.append({"name": f"{name} ({WORDS[kind]})", "log": False, "target": None, "lines": lines})
    return charts


def _rows(subject: RunView) -> list[Mapping[str, Any]]:
    rows = [row for row in subject.journal if row.get("event") == "client_metrics"]
    return [row for row in rows if row.get("kind") in WORDS and isinstance(row.get("metrics"), Mapping)]


SCRIPTS = (
    "basics",
    "theme",
    "data",
    "view",
    "paint",
    "panel",
    "pointer",
    "timeline",
    "deck",
    "plot",
    "chart",
    "bars",
    "main",
)
"""The scripts in order: a class comes after the one that it extends, and the last script starts the page."""

NO_SCRIPT = "<noscript><p>The pictures need JavaScript; the tables and text do not.</p></noscript>"
LEGEND = '<div class="legend" role="group" aria-label="runs shown"></div>'


def compose(
    subjects: Sequence[RunView], title: str = "", lead: str = "", first: Callable[[Page], None] | None = None
) -> Page:
    """Return the page without writing it; ``first`` may add a section at the top."""
    script = "(() => {\n'use strict';\n" + "\n".join(asset(f"js/{name}.js") for name in SCRIPTS) + "})();"
    page = Page(title or sources.title(subjects), lead or sources.lead(subjects), style=asset("run.css"), script=script)
    alone = len(subjects) == 1
    times = [spans(subject) for subject in subjects]
    tables = [workers(subject, time) for subject, time in zip(subjects, times, strict=True)]
    theory = [expected(subject, table) for subject, table in zip(subjects, tables, strict=True)]
    if first is not None:
        first(page)
    page.section("In short", subjects[0].state if alone else "", subjects[0].ending.colour)
    page.raw(NO_SCRIPT)
    if alone:
        sections.tiles(page, subjects[0])
        sections.says(page, subjects[0])
    else:
        sections.comparison(page, subjects)
        for subject in subjects:
            words = f" {sections.badge(subject)}{sections.problems(subject)}"
            sections.fold(page, subject, alone, words, partial(sections.says, page, subject))
    found = _metrics(subjects) + client_charts(subjects)
    if found:
        page.section("Progress")
        page.raw(LEGEND + '<div class="charts" data-part="metrics"></div>')
    if any(len(subject.trace) for subject in subjects):
        page.section("Who worked when")
        page.raw('<div class="colours" data-part="key"></div><div data-part="timelines"></div>')
        page.raw(HELP)
        page.section("Delays")
        page.raw(LEGEND + '<div class="charts" data-part="delays"></div>')
        sections.delays(page, subjects)
        page.section("Workers")
        for subject, table, formulas in zip(subjects, tables, theory, strict=True):
            body = partial(sections.workers, page, subject, table, formulas)
            sections.fold(page, subject, alone, f": {len(table):,} workers", body)
        page.section("Steps")
        if any(len(np.unique(subject.trace.step)) > 1 for subject in subjects):
            page.raw(LEGEND + '<div class="charts" data-part="steps"></div>')
        sections.steps(page, subjects)
        page.section("Measured against theory")
        for subject, table, formulas in zip(subjects, tables, theory, strict=True):
            sections.theory(page, subject, table, formulas)
    page.section("Configuration")
    for subject in subjects:
        sections.fold(page, subject, alone, "", partial(sections.configuration, page, subject))
    ranges = bins(np.concatenate([subject.trace.delays.values for subject in subjects]))
    runs = [_run(subject, page_data.jobs(subject, time), ranges) for subject, time in zip(subjects, times, strict=True)]
    everything = {"runs": runs, "metrics": found, "ranges": ranges}
    page.raw(f'<script type="application/json" id="data">{page_data.as_script(everything)}</script>')
    return page


HELP = """<p class="why">A bar is a job while its worker computes it; the number in it is its delay. A thin line below a
       bar is a job that waits in the worker’s queue. Where there are too many jobs for bars, a spot shows how much its
       workers computed and the average delay. Click a job to see which model version it read; dots mark updates applied
       before its own.</p><details><summary>Mouse, fingers and keys</summary><p class="why">Drag to move; wheel or pinch
       to zoom (click the timeline first, or hold <kbd>Ctrl</kbd>); <kbd>Shift</kbd> and wheel change the height of the
       rows; the strip below is the whole run. With the timeline in focus: arrows go from job to job, <kbd>+</kbd> and
       <kbd>−</kbd> zoom, <kbd>Shift</kbd> and arrows move, <kbd>[</kbd> and <kbd>]</kbd> lower and raise the rows,
       <kbd>Home</kbd> and <kbd>End</kbd> go to the ends, <kbd>0</kbd> shows the whole run, <kbd>Esc</kbd> lets go of
       the job.</p></details>"""


def write(subjects: Sequence[RunView], path: Path, title: str = "") -> Path:
    """Write the page, whole or not at all."""
    return save(compose(subjects, title).html(), path)


def save(html: str, path: Path) -> Path:
    """Write a page; raise `BadParameter` if that fails."""
    try:
        if path.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        return write_text(path, html)
    except OSError as error:
        raise BadParameter("path", str(path), f"cannot be written ({error.strerror})", "pass another path") from error


# ---------------------------------------------------------------------------------------------- for the scripts


def _run(subject: RunView, jobs: dict[str, Any], ranges: list[tuple[int, int]]) -> dict[str, Any]:
    trace, delays = subject.trace, subject.trace.delays
    return {
        "name": subject.name,
        "jobs": jobs,
        "histogram": histogram(delays.values, ranges).tolist(),
        "delay": _series(series(trace, trace.delay)),
        "step": _series(series(trace, trace.step)),
        "delays": {
            "average": page_data.plain(delays.average),
            "maximum": delays.maximum,
            "concurrency": delays.concurrency,
            "mean_concurrency": delays.mean_concurrency,
        },
    }


def _series(found: Series) -> dict[str, Any]:
    columns = {name: page_data.numbers(getattr(found, name)) for name in ("iteration", "time", "low", "high")}
    return {**columns, "value": page_data.numbers(found.mean)}


def _metrics(subjects: Sequence[RunView]) -> list[dict[str, Any]]:
    """Return one chart per metric, with a line for every run that has it."""
    names = list(dict.fromkeys(name for subject in subjects for name in subject.metrics if name not in WHEN))
    charts = []
    for name in names:
        lines, values = [], []
        for place, subject in enumerate(subjects):
            if name not in subject.metrics or "iteration" not in subject.metrics:
                continue
            axes = {axis: subject.metrics.get(axis, np.full(len(subject.metrics[name]), np.nan)) for axis in AXES}
            known = ~np.isnan(subject.metrics[name])  # where it was measured: a gap would break the line
            if not known.any():
                continue
            columns = {**axes, "value": subject.metrics[name]}
            columns = thinned({key: column[known] for key, column in columns.items()})
            lines.append({"run": place, **{key: page_data.numbers(column) for key, column in columns.items()}})
            values.append(subject.metrics[name])
        everywhere = np.concatenate(values) if values else np.empty(0)
        target = next((subject.targets[name] for subject in subjects if name in subject.targets), None)
        if np.isfinite(everywhere).any():
            charts.append({"name": name, "log": _wide(everywhere), "target": target, "lines": lines})
    return charts


def _wide(values: Floats) -> bool:
    """Return whether a logarithmic axis fits better: all values above zero, over two or more powers of ten."""
    known = values[np.isfinite(values)]
    return bool(known.min() > 0 and known.max() / known.min() > 100)
