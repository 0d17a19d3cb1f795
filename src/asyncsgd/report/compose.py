"""The page of one run or of several side by side: words and tables here, pictures by the scripts in ``js``."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.report import embed, sections, summary
from asyncsgd.report.against import expected
from asyncsgd.report.clients import client_charts
from asyncsgd.report.measures import Series, bins, histogram, series, spans, thinned, workers
from asyncsgd.report.page import Page, asset
from asyncsgd.run.view import AXES, Floats, RunView
from asyncsgd.trace.atomic import write_text

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
"""In this order, as a class must stand after the one that it extends; the last one starts."""

NO_SCRIPT = "<noscript><p>The pictures need JavaScript; the tables and words do not.</p></noscript>"
LEGEND = '<div class="legend" role="group" aria-label="runs shown"></div>'


def compose(
    subjects: Sequence[RunView], title: str = "", lead: str = "", first: Callable[[Page], None] | None = None
) -> Page:
    """The page, not yet written; ``first`` may put a section of its own at the top."""
    script = "(() => {\n'use strict';\n" + "\n".join(asset(f"js/{name}.js") for name in SCRIPTS) + "})();"
    page = Page(title or summary.title(subjects), lead or summary.lead(subjects), style=asset("run.css"), script=script)
    alone = len(subjects) == 1
    times = [spans(subject) for subject in subjects]
    rosters = [workers(subject, time) for subject, time in zip(subjects, times, strict=True)]
    theory = [expected(subject, roster) for subject, roster in zip(subjects, rosters, strict=True)]
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
        for subject, roster, formulas in zip(subjects, rosters, theory, strict=True):
            body = partial(sections.workers, page, subject, roster, formulas)
            sections.fold(page, subject, alone, f": {len(roster):,} workers", body)
        page.section("Steps")
        if any(len(np.unique(subject.trace.step)) > 1 for subject in subjects):
            page.raw(LEGEND + '<div class="charts" data-part="steps"></div>')
        sections.steps(page, subjects)
        page.section("Measured against theory")
        for subject, roster, formulas in zip(subjects, rosters, theory, strict=True):
            sections.theory(page, subject, roster, formulas)
    page.section("Configuration")
    for subject in subjects:
        sections.fold(page, subject, alone, "", partial(sections.configuration, page, subject))
    ranges = bins(np.concatenate([subject.trace.delays.values for subject in subjects]))
    runs = [_run(subject, embed.jobs(subject, time), ranges) for subject, time in zip(subjects, times, strict=True)]
    everything = {"runs": runs, "metrics": found, "ranges": ranges}
    page.raw(f'<script type="application/json" id="data">{embed.as_script(everything)}</script>')
    return page


HELP = """<p class="why">A bar is a job while its worker computes it; the number in it is its delay. A thin line below a
bar is a job that waits in the worker’s queue. Where there are too many jobs for bars, a spot shows how much its workers
computed and how late that came on average. Choose a job to see which version it read, and as dots the updates that came
before its own.</p><details><summary>Mouse, fingers and keys</summary><p class="why">Drag to move; wheel or pinch to
zoom (click the timeline first, or hold <kbd>Ctrl</kbd>); <kbd>Shift</kbd> and wheel change the height of the rows; the
strip below is the whole run. With the timeline in focus: arrows go from job to job, <kbd>+</kbd> and <kbd>−</kbd> zoom,
<kbd>Shift</kbd> and arrows move, <kbd>[</kbd> and <kbd>]</kbd> lower and raise the rows, <kbd>Home</kbd> and
<kbd>End</kbd> go to the ends, <kbd>0</kbd> shows the whole run, <kbd>Esc</kbd> lets go of the job.</p></details>"""


def write(subjects: Sequence[RunView], path: Path, title: str = "") -> Path:
    """Write the page, whole or not at all."""
    return save(compose(subjects, title).html(), path)


def save(html: str, path: Path) -> Path:
    """Write a page; where that cannot be done, say so."""
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
            "average": embed.plain(delays.average),
            "maximum": delays.maximum,
            "concurrency": delays.concurrency,
            "mean_concurrency": delays.mean_concurrency,
        },
    }


def _series(found: Series) -> dict[str, Any]:
    columns = {name: embed.numbers(getattr(found, name)) for name in ("iteration", "time", "low", "high")}
    return {**columns, "value": embed.numbers(found.mean)}


def _metrics(subjects: Sequence[RunView]) -> list[dict[str, Any]]:
    """One chart per metric, with a line for every run that has it."""
    names = list(dict.fromkeys(name for subject in subjects for name in subject.metrics if name not in AXES))
    charts = []
    for name in names:
        lines, values = [], []
        for place, subject in enumerate(subjects):
            if name not in subject.metrics or "iteration" not in subject.metrics:
                continue
            axes = {axis: subject.metrics.get(axis, np.full(len(subject.metrics[name]), np.nan)) for axis in AXES}
            columns = thinned({**axes, "value": subject.metrics[name]})
            lines.append({"run": place, **{key: embed.numbers(column) for key, column in columns.items()}})
            values.append(subject.metrics[name])
        everywhere = np.concatenate(values) if values else np.empty(0)
        target = next((subject.targets[name] for subject in subjects if name in subject.targets), None)
        if np.isfinite(everywhere).any():
            charts.append({"name": name, "log": _wide(everywhere), "target": target, "lines": lines})
    return charts


def _wide(values: Floats) -> bool:
    """Whether a logarithmic axis shows more: all above zero, over two powers of ten and more."""
    known = values[np.isfinite(values)]
    return bool(known.min() > 0 and known.max() / known.min() > 100)
