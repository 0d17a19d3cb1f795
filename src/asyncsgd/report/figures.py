"""Figures with matplotlib: one look, no global style changed, colours that survive greyscale and colour blindness."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from asyncsgd.core.errors import MissingLibrary
from asyncsgd.trace.atomic import write_bytes, write_text

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#777777")
"""Okabe and Ito's, told apart by everybody; lines differ by marker and dash as well."""

MARKERS = ("o", "s", "^", "D", "v", "P", "X")

INK = "#1c2126"
"""What is drawn in ink; on a page it takes the colour of the text, so that it can be read in the dark too."""


@contextmanager
def figure(columns: int = 1, rows: int = 1, width: float = 7.2, height: float = 3.4, **options: Any) -> Iterator[Any]:
    """A figure in our look, for a with statement that takes (fig, axes). Nothing global is changed."""
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
    """The figure as SVG text to put into a page: ids of its own, ink in the colour of the text."""
    text = _svg_text(fig)
    text = text[text.index("<svg") :]
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="#|url\(#)', rf"\g<1>{name}-", text)
    return text.replace(INK, "currentColor").replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def save(fig: Any, stem: str | Path) -> None:
    """``stem.svg`` and ``stem.png``, the latter on white."""
    stem = Path(stem)
    write_text(stem.with_name(stem.name + ".svg"), _svg_text(fig))
    png = io.BytesIO()
    fig.savefig(png, format="png", dpi=160, facecolor="white")
    write_bytes(stem.with_name(stem.name + ".png"), png.getvalue())


def _svg_text(fig: Any) -> str:
    out = io.StringIO()
    fig.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()
