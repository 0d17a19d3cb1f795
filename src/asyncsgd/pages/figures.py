"""Draw runs into matplotlib axes: which worker worked when, how the metrics changed, how late updates came."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from asyncsgd._files import write_bytes, write_text
from asyncsgd.core.errors import MissingLibrary
from asyncsgd.trace import Trace
from asyncsgd.trace.labels import PLAIN
from asyncsgd.trace.timeline import spans

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#777777")
"""Okabe and Ito's colours, distinguishable with colour blindness; lines also differ by marker and dash."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")

INK = "#1c2126"
"""The colour of text and axes. A page replaces it by its text colour, so that figures are readable in dark mode."""


@contextmanager
def figure(columns: int = 1, rows: int = 1, width: float = 7.2, height: float = 3.4, **options: Any) -> Iterator[Any]:
    """Yield (fig, axes) in the style of asyncsgd, for a with statement. No global setting changes."""
    try:
        import matplotlib
        from cycler import cycler
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingLibrary("a figure", "matplotlib", "asyncsgd[report]") from error
    look = {
        "axes.edgecolor": INK,
        "axes.grid": True,
        "axes.labelcolor": INK,
        "axes.prop_cycle": cycler(color=COLOURS) + cycler(marker=MARKERS),
        "axes.spines.right": False,
        "axes.spines.top": False,
        "axes.titlecolor": INK,
        "axes.titlesize": 10,
        "figure.facecolor": "none",
        "axes.facecolor": "none",
        "font.family": "sans-serif",
        "font.size": 9.5,
        "grid.alpha": 0.25,
        "grid.linewidth": 0.6,
        "legend.fontsize": 8.5,
        "legend.frameon": False,
        "lines.linewidth": 1.6,
        "lines.markersize": 4.5,
        "svg.fonttype": "none",
        "svg.hashsalt": "asyncsgd",
        "text.color": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with matplotlib.rc_context(look):
        fig = Figure(figsize=(width, height), layout="constrained")
        yield fig, fig.subplots(rows, columns, **options)


def svg(fig: Any, name: str) -> str:
    """Return the figure as SVG text for a page, with unique ids and the page's text colour."""
    text = _svg_text(fig)
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace(INK, "currentColor").replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def save(fig: Any, stem: str | Path) -> None:
    """Write ``stem.svg`` and ``stem.png``, the latter on white."""
    stem = Path(stem)
    write_text(stem.with_name(stem.name + ".svg"), _svg_text(fig))
    png = io.BytesIO()
    fig.savefig(png, format="png", dpi=160, facecolor="white")
    write_bytes(stem.with_name(stem.name + ".png"), png.getvalue())


def _svg_text(fig: Any) -> str:
    out = io.StringIO()
    fig.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


UNDONE = "#b9c0c7"
MANY, ROWS = 4000, 40
"""With more bars than this, they become pixels in a vector file; with more workers than this, only some are named."""


def timeline(
    axes: Any,
    trace: Trace,
    until: float,
    start: float = 0.0,
    largest: int | None = None,
    label: Callable[[int], str] = PLAIN,
) -> Any:
    """Draw one row per worker, with a bar per job from the start of computing to the arrival, coloured by delay.

    A job that waited behind others of its worker begins where the one before ended. Jobs that did not arrive are grey
    and hatched. Return the colours, for a colour bar.
    """
    import matplotlib as mpl
    from matplotlib import collections

    jobs = trace.jobs
    largest = max(1, int(trace.delay.max(initial=0))) if largest is None else largest
    colours: Any = mpl.cm.ScalarMappable(mpl.colors.LogNorm(1, largest + 1), "viridis_r")
    workers, row = np.unique(jobs.worker, return_inverse=True)
    found = spans(trace)
    end = np.where(jobs.in_flight, np.inf, found.end)
    seen = (found.begin < until) & (end > start) & (found.begin < end)
    left, right = np.maximum(found.begin, start), np.minimum(end, until)
    corners = np.stack([np.stack([x, row + y], -1) for x in (left, right) for y in (-0.37, 0.37)], 1)[:, [0, 1, 3, 2]]
    arrived = seen & jobs.arrived & (end <= until)
    delay = (jobs.ended_iteration - jobs.assigned_iteration)[arrived]
    many = int(np.count_nonzero(seen)) > MANY
    wide = (right - left)[arrived] / (until - start) * axes.bbox.width * 72 / axes.figure.dpi  # in points
    edges = np.clip(0.15 * wide, 0.0, 0.6)  # wider white edges would hide thin bars
    done = {"facecolors": colours.to_rgba(1 + delay), "edgecolors": "white", "linewidths": edges, "rasterized": many}
    undone = {"facecolors": "none", "edgecolors": UNDONE, "linewidths": 0.6, "hatch": "////"}
    bars: Any = collections.PolyCollection
    axes.add_collection(bars(corners[arrived], **done), autolim=False)
    axes.add_collection(bars(corners[seen & ~arrived], **undone), autolim=False)
    shown = range(0, len(workers), -(-len(workers) // ROWS) or 1)
    axes.set_yticks(shown, [label(int(workers[place])) for place in shown])
    axes.set_xlim(start, until)
    axes.set_ylim(len(workers) - 0.5, -0.5)
    axes.grid(False)
    axes.spines[["left"]].set_visible(False)
    axes.tick_params(axis="y", length=0)
    return colours


def delay_bar(fig: Any, colours: Any, axes: Any) -> None:
    """Draw the colour bar of a timeline, in delays."""
    bar = fig.colorbar(colours, ax=axes, shrink=0.9, pad=0.01)
    top = round(colours.norm.vmax) - 1
    ticks = sorted({0, *[t for t in (1, 3, 10, 30, 100, 300, 1000) if t < 0.7 * top], top})
    bar.set_ticks([1 + tick for tick in ticks], labels=[str(tick) for tick in ticks])
    bar.minorticks_off()
    bar.set_label("delay (updates)")
    bar.outline.set_visible(False)


def convergence(axes: Any, runs: Mapping[str, Any], metric: str, over: str = "time") -> None:
    """Draw a metric of several runs over seconds or iterations; lines differ in colour and marker."""
    for place, (name, run) in enumerate(runs.items()):
        known = ~np.isnan(run.metrics[metric])  # where it was measured: a gap would break the line
        x, y = run.metrics[over][known], run.metrics[metric][known]
        every = max(1, len(x) // 8)
        style = {"color": COLOURS[place % len(COLOURS)], "marker": MARKERS[place % len(MARKERS)]}
        axes.plot(x, y, label=name, markevery=(place % every, every), **style)
    axes.set_xlabel("seconds" if over == "time" else "iterations")
    axes.set_ylabel(metric)
    axes.legend()


def delays(axes: Any, traces: Mapping[str, Trace]) -> None:
    """Draw the distribution of delays: the share of updates with at most each delay."""
    for place, (name, trace) in enumerate(traces.items()):
        values = np.sort(trace.delay)
        share = np.arange(1, len(values) + 1) / max(1, len(values))
        axes.step(values + 1, share, where="post", label=name, marker="", color=COLOURS[place % len(COLOURS)])
    axes.set_xscale("log")
    ticks = [tick for tick in (0, 1, 3, 10, 30, 100, 300, 1000, 3000) if tick + 1 <= axes.get_xlim()[1]]
    axes.set_xticks([1 + tick for tick in ticks], labels=[str(tick) for tick in ticks])
    axes.minorticks_off()
    axes.set_xlabel("delay (updates)")
    axes.set_ylabel("share of updates")
    axes.set_ylim(0, 1.02)
    axes.legend(labelcolor=INK)
