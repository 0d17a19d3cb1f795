"""The parts of a page that are text and tables: findings, workers, theory, configuration."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from typing import Any

import numpy as np

from asyncsgd.core.events import Outcome
from asyncsgd.format import number, relative, size, span
from asyncsgd.pages import sources, theory_comparison
from asyncsgd.pages.page import Page
from asyncsgd.pages.page_data import Worker
from asyncsgd.pages.theory_comparison import Expected
from asyncsgd.run.view import RunView, word

MANY = 1000
"""The largest number of workers in a table; of more, those with the most jobs."""
DELAYS = (
    ("τ avg", "average_delay", "mean delay of what arrived or is in flight"),
    ("τ max", "maximum_delay", "the largest of them"),
    ("τ C", "concurrency", "most jobs in flight at once"),
    ("τ̄ C", "mean_concurrency", "jobs in flight on average"),
)


def badge(subject: RunView) -> str:
    """Return how the run ended, as a badge beside a heading."""
    words, kind = subject.state, subject.ending.colour
    return f'<span class="badge {kind}">{escape(words)}</span>' if words else ""


def problems(subject: RunView) -> str:
    """Return the number of problems, as a badge beside a heading."""
    count = len(subject.diagnosis.problems) if subject.diagnosis else 0
    return f' <span class="badge bad">{count} problem{"s" if count > 1 else ""}</span>' if count else ""


def tiles(page: Page, subject: RunView) -> None:
    """Add the most important numbers."""
    numbers = subject.headline()
    shown = [("updates", number(numbers["iterations"]))]
    if numbers["seconds"] is not None:
        shown += [("time", span(numbers["seconds"])), ("updates per second", number(numbers["updates_per_second"], 3))]
    shown += [(name, number(value)) for name, value in list(numbers["metrics"].items())[:4]]
    shown += [(name, number(numbers[key], 3)) for name, key, _ in DELAYS[:3]]
    if numbers["bytes_up"] is not None:
        shown += [("sent to the server", size(numbers["bytes_up"])), ("sent to workers", size(numbers["bytes_down"]))]
    shown += [(f"{name} jobs", number(often)) for name, often in sources.wasted(subject).items()]
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in shown)
    page.raw(f'<dl class="tiles">{cells}</dl>')


def comparison(page: Page, subjects: Sequence[RunView]) -> None:
    """Add a table with one row per run."""
    metrics = list(dict.fromkeys(name for subject in subjects for name in subject.last_metrics))[:4]
    headings = ["run", "updates", "time", "updates/s", *metrics, "τ avg", "τ max", "τ C"]
    headings += ["sent up", "sent down", "wasted"]
    rows = []
    for subject in subjects:
        numbers, last = subject.headline(), subject.last_metrics
        cells = [subject.name, number(numbers["iterations"]), span(numbers["seconds"])]
        cells += [number(numbers["updates_per_second"], 3), *(number(last.get(name)) for name in metrics)]
        cells += [number(numbers[key], 3) for _, key, _ in DELAYS[:3]]
        cells += [size(numbers["bytes_up"]), size(numbers["bytes_down"])]
        rows.append([*cells, number(sum(sources.wasted(subject).values()))])
    page.table(headings, rows, "Final state of each run")


def says(page: Page, subject: RunView) -> None:
    """Add the findings about the run, problems first."""
    found = subject.diagnosis
    if found is None or not (found.problems or found.facts):
        return
    lines = [f'<li class="problem"><b>Problem:</b> {escape(line)}.</li>' for line in found.problems]
    lines += [f"<li>{escape(line[:1].upper() + line[1:])}.</li>" for line in found.facts]
    page.raw(f'<ul class="says">{"".join(lines)}</ul>')


def fold(page: Page, subject: RunView, alone: bool, words: str, body: Callable[[], None]) -> None:
    """Add a long part: open for a single run, folded for each of several."""
    if alone:
        body()
        return
    page.raw(f"<details><summary>{escape(subject.name)}{words}</summary>")
    body()
    page.raw("</details>")


def delays(page: Page, subjects: Sequence[RunView]) -> None:
    """Add the paper's four figures about delays, and what they mean."""
    found = [subject.headline() for subject in subjects]
    if len(subjects) == 1:
        rows = [[name, number(found[0][key], 4), words] for name, key, words in DELAYS]
        page.table(["", "value", "meaning"], rows, "Delays by the paper’s definitions, in updates")
        return
    rows = [
        [subject.name, *(number(row[key], 4) for _, key, _ in DELAYS)]
        for subject, row in zip(subjects, found, strict=True)
    ]
    page.table(["run", *(name for name, _, _ in DELAYS)], rows, "Delays by the paper’s definitions, in updates")


# ---------------------------------------------------------------------------------------------- workers


def workers(page: Page, subject: RunView, found: list[Worker], theory: Expected | None) -> None:
    """Add what each worker did, how late, and with what weight."""
    faults = subject.faults_by_worker()
    outcomes = [kind for kind in Outcome if kind is not Outcome.APPLIED and subject.trace.counts[kind]]
    expected = theory.per_worker if theory else {}
    shown = sorted(found, key=lambda worker: (-worker.jobs, worker.worker))[:MANY]
    shown.sort(key=lambda worker: worker.worker)
    most = max((worker.share for worker in found), default=0.0)
    clients = subject.label.clients
    headings = ["worker", *(["client"] if clients else []), "jobs", *(word(kind) for kind in outcomes), "mean delay"]
    headings += ["by theory"] if expected else []
    headings += ["computing", "busy"] if subject.timed else []
    headings += ["share of the step", *(["faults"] if faults else [])]
    lines = []
    for worker in shown:
        cells: list[tuple[str, float]] = [(str(worker.worker), worker.worker)]
        if clients:
            name, node = clients.get(worker.worker, ("", ""))
            cells.append((" · ".join(part for part in (name, node) if part), worker.worker))
        cells.append((f"{worker.jobs:,}", worker.jobs))
        cells += [(f"{worker.outcomes[kind]:,}", worker.outcomes[kind]) for kind in outcomes]
        cells.append(_cell(worker.mean_delay, 3))
        if expected:
            cells.append(_cell(expected.get(worker.worker), 3))
        if subject.timed:
            cells.append((span(worker.seconds), -1 if worker.seconds is None else worker.seconds))
            cells.append(("–", -1) if worker.busy is None else (f"{worker.busy:.0%}", worker.busy))
        row = "".join(f'<td class="n" data-value="{value}">{escape(words)}</td>' for words, value in cells)
        width = 100 * worker.share / most if most else 0
        row += (
            f'<td class="n share" data-value="{worker.share}"><span class="meter" style="width:{width:.1f}%"></span>'
            f"{worker.share:.1%}</td>"
        )
        if faults:
            row += f"<td>{escape(_faults(faults.get(worker.worker, {})))}</td>"
        lines.append(f"<tr>{row}</tr>")
    head = "".join(f'<th scope="col" class="n">{escape(name)}</th>' for name in headings)
    more = f"; the {len(shown):,} with the most jobs of {len(found):,}" if len(shown) < len(found) else ""
    caption = f"{escape(subject.name)}: one row per worker{more}. A click on a heading sorts."
    page.raw(
        f'<div class="scroll tall" tabindex="0" role="region" aria-label="workers of {escape(subject.name)}">'
        f'<table class="sortable"><caption><span>{caption}</span></caption><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(lines)}</tbody></table></div>"
    )


def _cell(value: float | None, digits: int) -> tuple[str, float]:
    return number(value, digits), -1.0 if value is None else value


def _faults(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {often}×" if often > 1 else name for name, often in counts.items())


# ---------------------------------------------------------------------------------------------- steps and theory


def steps(page: Page, subjects: Sequence[RunView]) -> None:
    """Add which steps were used."""
    rows = []
    for subject in subjects:
        used = subject.trace.step
        if not len(used):
            continue
        values, often = np.unique(used, return_counts=True)
        common = int(np.argmax(often))
        cells = (values[common], values[0], np.median(used), values[-1], used.sum())
        rows.append([subject.name, *(number(float(value)) for value in cells), f"{often[common] / len(used):.0%}"])
        rows[-1].insert(2, rows[-1].pop())
    headings = ["run", "most common", "share of updates", "smallest", "median", "largest", "sum"]
    page.table(headings, rows, "Steps of the updates that arrived; those of dropped ones are 0")
    for subject in subjects:
        if subject.schedule is not None:
            page.text(f"{subject.name}: the step size follows {subject.schedule}.", css="why")


def theory(page: Page, subject: RunView, found: list[Worker], expected: Expected | None) -> None:
    """Add measured and expected numbers side by side."""
    lines = theory_comparison.lines(subject, found, expected)
    if expected is not None and expected.seconds is None:
        page.text(f"{subject.name}: {expected.source}.", css="why")
    if not lines:
        return
    rows = [
        [line.quantity, number(line.measured), number(line.expected), _ratio(line.measured, line.expected), line.source]
        for line in lines
    ]
    page.table(["quantity", "measured", "theory", "ratio", "where the theory comes from"], rows, subject.name)


def _ratio(measured: float | None, expected: float | None) -> str:
    return relative(measured / expected) if measured is not None and expected else "–"


# ---------------------------------------------------------------------------------------------- configuration


def configuration(page: Page, subject: RunView) -> None:
    """Add the configuration, the versions, and the events of the run."""
    said = ("format", "job", *(("method",) if subject.recipe else ()))  # the recipe is the method
    config: dict[str, Any] = {key: value for key, value in subject.config.items() if key not in said}
    versions = config.pop("versions", {})
    if isinstance(versions, Mapping):
        config |= {f"version of {name}": value for name, value in versions.items()}
    if subject.recipe:
        page.raw(f'<pre class="scroll" tabindex="0"><code>{escape(pretty(subject.recipe))}</code></pre>')
    shown = list(_flat(config))
    if shown:
        page.table(["", "value"], shown, subject.name)
    elif not subject.recipe:
        page.text("Not recorded.", css="why")
    if subject.journal:
        rows = [
            [span(row.get("seconds")), row.get("iteration"), row.get("event"), _rest(row)] for row in subject.journal
        ]
        page.raw(f"<details><summary>Journal: {len(rows):,} lines</summary>")
        page.table(["time", "iteration", "what", "more"], rows[-MANY:], "Events during the run")
        page.raw("</details>")


def _flat(config: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, str]]:
    """Yield rows of text; nested entries get the name of their parent as a prefix, and empty ones are left out."""
    for key, value in config.items():
        name = above if key == above.strip() else f"{above}{key}".replace("_", " ")
        if isinstance(value, Mapping):
            yield from _flat(value, f"{name} ")
        elif isinstance(value, list):
            if value:
                yield name, ", ".join(str(part) for part in value)
        elif value not in (None, ""):
            yield name, value if isinstance(value, str) else json.dumps(value)


def _rest(row: Mapping[str, Any]) -> str:
    known = ("seconds", "iteration", "event", "facts", "problems")
    return ", ".join(f"{key} {value}" for key, value in row.items() if key not in known and value is not None)


def pretty(recipe: str) -> str:
    """Return a method's repr with one part per line.

    >>> print(pretty("Method(name='a', step=Constant(stepsize=0.1), transforms=())"))
    Method(
        name='a',
        step=Constant(stepsize=0.1),
        transforms=(),
    )
    """
    whole = re.fullmatch(r"(\w+)\((.*)\)", recipe, re.DOTALL)
    if whole is None:
        return recipe
    parts, depth, start = [], 0, 0
    for place, letter in enumerate(whole[2]):
        depth += (letter in "([{") - (letter in ")]}")
        if letter == "," and depth == 0:
            parts.append(whole[2][start:place].strip())
            start = place + 1
    parts.append(whole[2][start:].strip())
    lines = "".join(f"    {part},\n" for part in parts if part)
    return f"{whole[1]}(\n{lines})"
