"""A plan as one self-contained page."""

from __future__ import annotations

from html import escape
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from asyncsgd.core.errors import BadParameter
from asyncsgd.format import number, span
from asyncsgd.pages.figures import COLOURS, INK, MARKERS, figure, svg
from asyncsgd.pages.page import Page
from asyncsgd.planning import terminal
from asyncsgd.planning.candidates import ADAPTIVE, ALGORITHM2, ASYNC, LABELS, MINIBATCH, OVER

if TYPE_CHECKING:
    from asyncsgd.planning.advice import Row
    from asyncsgd.planning.result import Plan

LOOKS = dict(zip((MINIBATCH, OVER, ASYNC, ALGORITHM2, ADAPTIVE), zip(COLOURS, MARKERS, strict=True), strict=False))
WIDTH, HEIGHT = 5.2, 3.4


def write(plan: Plan, path: Path) -> Path:
    """Write the page, whole or not at all."""
    page = compose(plan)
    try:
        return page.write(path)
    except OSError as error:
        raise BadParameter("page", str(path), f"cannot be written ({error.strerror})", "pass another path") from error


def missing() -> str | None:
    """Return what must be installed to draw a page, as a sentence; None if nothing is missing."""
    if find_spec("matplotlib") is not None:
        return None
    return "the page needs matplotlib; install it with: pip install 'asyncsgd[report]'"


def compose(plan: Plan) -> Page:
    """Return the page without writing it."""
    page = Page("Would asynchronous SGD help?", lead=terminal.title(plan) + ".")
    page.section("Advice", badge=_verdict(plan), kind="good")
    page.text(plan.reason, css="advice")
    page.raw(f'<pre class="scroll"><code>{escape(plan.recipe)}</code></pre>')
    page.text(terminal.limit(plan))
    page.text(terminal.assumptions(plan), css="why")
    for note in plan.notes():
        page.text(f"Note: {note}", css="why")
    best = [_pointed(plan, row, terminal.cells(plan, row)) for row in plan.best()]
    page.table(_plain(terminal.HEADINGS_BEST), best, caption="Each method at its best")

    if plan.network is not None:
        page.section("Few messages over a slow network")
        page.text(plan.network.sentence, css="advice")
        if plan.network.chosen.recipe:
            page.raw(f'<pre class="scroll"><code>method{escape(plan.network.chosen.recipe)}</code></pre>')
        page.table(plan.network.table()[0], terminal.marked(plan.network), caption=terminal.NETWORK)
        page.text(
            f"For a model of {plan.network.parameters:,} parameters in float32, with the recommended method. "
            "Columns: how updates are encoded; models are then sent as bfloat16. In brackets: the mildest choice with "
            "which communication takes at most 10% of the time. Larger numbers of local steps and coarser codes cost "
            "quality, which this table does not show.",
            css="why",
        )

    page.section("Time per gradient")
    page.figure(
        _speed(plan),
        "Seconds between two gradients that reach the model, against jobs in flight; both axes logarithmic. Simulated "
        "from the measured durations. Dashed: Algorithm 2 by the speed-up lemma, which ignores queues.",
    )
    page.table(
        _plain(terminal.HEADINGS_QUEUES),
        terminal.queues(plan),
        caption="Algorithm 2 three ways, mini-batch SGD beside it: seconds for as many gradients as jobs in flight",
    )
    page.text(
        "The lemma assumes that every worker is free. Queues on slow workers are part of the figure with queues (mean "
        "value analysis, with the measured variability) and of the simulated one. In the long run nothing is faster "
        "than the floor; * marks a run that had not reached the long run.",
        css="why",
    )

    page.section("Time to the same accuracy")
    page.figure(
        _accuracy(plan),
        f"Seconds per gradient times gradients needed, relative to mini-batch SGD with {plan.baseline.concurrency:,} "
        "jobs in flight (dashed line). Below the line is faster. Both axes logarithmic.",
    )
    page.text(
        "A larger delay needs a smaller step, so more gradients per second do not always help. How many gradients "
        "are needed comes from Theorems 1 to 3 of Koloskova, Stich and Jaggi (2022), without the constants of the "
        "proofs; “guaranteed” is the time after which the theorem promises the accuracy, every constant included.",
        css="why",
    )
    headings = (*_plain(terminal.HEADINGS_BEST), "theorem", "guaranteed after")
    page.raw(f"<details><summary>All {len(plan.rows)} candidates</summary>")
    page.table(headings, [_full(plan, row) for row in plan.rows], caption="Everything that was compared")
    page.raw("</details>")

    page.section("Whose gradients, and how late")
    page.table(
        *terminal.groups(plan), caption="Share of all gradients, average delay ≤ longest delay, per group of workers"
    )
    page.text(
        terminal.groups_explained()
        + " Delays τ are in iterations; a batch of b counts as delays 0 to b-1. A method that "
        "gives a group a smaller share than its number of workers neglects that group's data.",
        css="why",
    )

    page.section("What was measured")
    page.figure(_durations(plan), "Every worker from the fastest to the slowest: mean, and shortest to longest job.")
    return page


def _verdict(plan: Plan) -> str:
    candidate = plan.recommended.candidate
    return LABELS[candidate.method] if candidate.workers > 1 else "one worker"


def _plain(headings: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(heading.replace("\n", " ") for heading in headings)


def _full(plan: Plan, row: Row) -> list[str]:
    seconds = row.guaranteed_seconds
    theorem = terminal.NONE if row.accuracy is None else row.accuracy.theorem.removeprefix("Theorem ")
    return [
        *_pointed(plan, row, terminal.cells(plan, row)),
        theorem,
        terminal.NONE if seconds is None else span(seconds),
    ]


def _pointed(plan: Plan, row: Row, cells: list[str]) -> list[str]:
    return [f"→ {cells[0]}", *cells[1:]] if row is plan.recommended else cells


def _speed(plan: Plan) -> str:
    with figure(width=WIDTH, height=HEIGHT) as (fig, ax):
        for method in (MINIBATCH, OVER, ASYNC, ALGORITHM2):
            rows = plan.at(method)
            _line(ax, method, [(row.concurrency, row.seconds) for row in rows])
        rows = plan.at(ALGORITHM2)
        lemma = [row.formula.lemma for row in rows]
        colour = LOOKS[ALGORITHM2][0]
        ax.plot([row.concurrency for row in rows], lemma, color=colour, dashes=(4, 2), marker="", linewidth=1.1)
        _finish(ax, plan, "seconds per gradient")
        return svg(fig, "plan-speed")


def _accuracy(plan: Plan) -> str:
    base = plan.baseline.seconds_to_target
    assert base is not None
    with figure(width=WIDTH, height=HEIGHT) as (fig, ax):
        for method in (MINIBATCH, OVER, ASYNC, ADAPTIVE, ALGORITHM2):
            timed = [(row.concurrency, row.seconds_to_target) for row in plan.at(method)]
            _line(ax, method, [(c, time / base) for c, time in timed if time is not None])
        legend = "ring: recommended"
        for row in plan.rows:
            time = row.seconds_to_target
            if row.candidate.workers < row.candidate.total and time is not None:
                colour, mark = LOOKS[row.candidate.method]
                ax.plot(
                    [row.concurrency], [time / base], color=colour, marker=mark, markerfacecolor="none", linestyle=""
                )
                legend = "ring: recommended; hollow: only the fastest workers"
        time = plan.recommended.seconds_to_target
        assert time is not None
        ax.plot([plan.recommended.concurrency], [time / base], "o", color=INK, markersize=13, markerfacecolor="none")
        ax.axhline(1.0, color=INK, linewidth=0.8, dashes=(4, 3), marker="")
        _finish(ax, plan, "relative time to ε")
        ax.set_title(legend, loc="left")
        return svg(fig, "plan-accuracy")


def _line(ax: Any, method: str, points: list[tuple[int, float]]) -> None:
    if points:
        colour, mark = LOOKS[method]
        ax.plot(*zip(*points, strict=True), color=colour, marker=mark, label=LABELS[method])


def _finish(ax: Any, plan: Plan, quantity: str) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter, NullLocator

    jobs = sorted({row.concurrency for row in plan.at(ALGORITHM2)})
    ax.set_xscale("log")
    ax.set_yscale("log")
    ax.set_xticks(jobs, [f"{c:,}" for c in jobs])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 3)))
    low, high = ax.get_ylim()
    if high / low < 30:
        ax.yaxis.set_minor_formatter(FuncFormatter(lambda value, _: number(value, 3) if _leads(value) else ""))
    else:
        ax.yaxis.set_minor_formatter(NullFormatter())
    ax.set_xlabel("jobs in flight")
    ax.set_ylabel(quantity)
    ax.legend()


def _leads(value: float) -> bool:
    """Return whether a tick is 2 or 5 times a power of ten."""
    return f"{value:.0e}"[0] in "25"


def _durations(plan: Plan) -> str:
    workers = plan.workers
    order = np.argsort(workers.means, kind="stable")
    if len(order) > 400:  # more than a reader can see
        order = order[np.linspace(0, len(order) - 1, 400).astype(int)]
    with figure(width=WIDTH, height=2.8) as (fig, ax):
        place = np.arange(1, len(order) + 1) * (workers.count / len(order))
        ax.vlines(place, workers.shortest[order], workers.longest[order], color=COLOURS[4], linewidth=2.5)
        ax.plot(place, workers.means[order], linestyle="", color=COLOURS[0], marker="o", markersize=3.5)
        ax.axhline(workers.median, color=INK, linewidth=0.8, dashes=(4, 3), marker="")
        if workers.longest.max() > 10 * workers.shortest.min():
            ax.set_yscale("log")
            from matplotlib.ticker import FuncFormatter

            ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: number(value, 3)))
        ax.set_xlabel("workers, fastest first (dashed: median)")
        ax.set_ylabel("seconds per gradient")
        return svg(fig, "plan-durations")
