"""One self-contained HTML page: opens offline by double-click, light and dark, on a laptop and on a phone."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Iterable, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from asyncsgd._files import write_text
from asyncsgd.format import cell

LONG = 36
"""The number of letters from which a cell counts as a sentence."""
SHORT = 6
"""The number of letters up to which a heading stays on one line."""
NARROW = 400
"""The width in points up to which a figure is readable on a phone; wider ones scroll."""


class Page:
    """Sections of text, tables and figures, written as one self-contained file.

    >>> page = Page("A run", lead="What happened.")
    >>> page.section("Delays")
    >>> page.text("They were small.")
    >>> page.table(["worker", "jobs"], [["0", 12], ["1", 3]])
    >>> "<h2 id=" in page.html()
    True
    """

    def __init__(self, title: str, lead: str = "", *, style: str = "", script: str = "") -> None:
        self.title = title
        self._lead = lead
        self._style, self._script = style, script
        self._parts: list[str] = []
        self._sections: list[tuple[str, str]] = []
        self._open = False

    def section(self, heading: str, badge: str = "", kind: str = "") -> None:
        """Start a section. ``badge`` is a short verdict beside the heading; ``kind`` is good, warn, bad or empty."""
        self._close()
        anchor = f"s{len(self._sections) + 1}"
        self._sections.append((anchor, heading))
        mark = f' <span class="badge {kind}">{escape(badge)}</span>' if badge else ""
        self._parts.append(f'<section aria-labelledby="{anchor}"><h2 id="{anchor}">{escape(heading)}{mark}</h2>')
        self._open = True

    def text(self, words: str, css: str = "") -> None:
        """Add a paragraph of plain text."""
        self._parts.append(f'<p class="{css}">{escape(words)}</p>' if css else f"<p>{escape(words)}</p>")

    def table(self, headings: Sequence[str], rows: Iterable[Sequence[object]], caption: str = "") -> None:
        """Add a table; columns of numbers are aligned right, columns of sentences get more width."""
        body = [[cell(value) for value in row] for row in rows]
        right = [all(_numeric(row[place]) for row in body) for place in range(len(headings))]
        long = [any(len(row[place]) > LONG for row in body) for place in range(len(headings))]
        css = [' class="n"' if flush else ' class="t"' if much else "" for flush, much in zip(right, long, strict=True)]
        head = "".join(f"<th scope=col{c}>{_heading(h)}</th>" for h, c in zip(headings, css, strict=True))
        lines = "".join(
            "<tr>" + "".join(f"<td{c}>{escape(v)}</td>" for v, c in zip(row, css, strict=True)) + "</tr>"
            for row in body
        )
        says = f"<caption><span>{escape(caption)}</span></caption>" if caption else ""
        self._parts.append(
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption or "table")}">'
            f'<table class="set">{says}<thead><tr>{head}</tr></thead><tbody>{lines}</tbody></table></div>'
        )

    def figure(self, svg: str, caption: str) -> None:
        """Add a drawing (SVG text) with a caption."""
        size = re.search(r'viewBox="0 0 ([\d.]+)', svg)
        wide = ' class="wide"' if size is not None and float(size[1]) > NARROW else ""
        self._parts.append(f"<figure{wide}>{svg}<figcaption>{escape(caption)}</figcaption></figure>")

    def raw(self, html: str) -> None:
        """Add HTML as it is. The caller must have escaped all text that came from outside."""
        self._parts.append(html)

    def html(self) -> str:
        """Return the whole page."""
        self._close()
        style = asset("page.css") + self._style
        links = "".join(f'<a href="#{anchor}">{escape(heading)}</a>' for anchor, heading in self._sections)
        menu = f'<nav aria-label="sections">{links}</nav>' if len(self._sections) > 2 else ""
        lead = f'<p class="lead">{escape(self._lead)}</p>' if self._lead else ""
        script = f"<script>{self._script}</script>" if self._script else ""
        return (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">'
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(self._script)}">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
            f"<title>{escape(self.title)}</title><style>{style}</style></head><body>"
            f"<header><h1>{escape(self.title)}</h1>{lead}{menu}</header><main>{''.join(self._parts)}</main>"
            f"<footer>Made by asyncsgd.</footer>{script}</body></html>\n"
        )

    def write(self, path: str | Path) -> Path:
        """Write the page to a file, whole or not at all."""
        return write_text(path, self.html())

    def _close(self) -> None:
        if self._open:
            self._parts.append("</section>")
            self._open = False


def retitled(html: str, title: str) -> str:
    """Return a page that was written earlier, with another heading.

    >>> "<h1>Ours</h1>" in retitled(Page("A run").html(), "Ours")
    True
    """
    return re.sub(r"(?<=<title>)[^<]*|(?<=<h1>)[^<]*", lambda _: escape(title), html, count=2)


def asset(name: str) -> str:
    """Return a style or a script from the folder of this module."""
    return files("asyncsgd.pages").joinpath(name).read_text("utf-8")


def _policy(script: str) -> str:
    """Return the page's policy: it fetches nothing and runs only its own script, whatever text it shows."""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if script else "'none'"
    return f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}"


def _heading(words: str) -> str:
    """Return a heading; short ones such as τ avg stay on one line."""
    return escape(words.replace(" ", "\N{NO-BREAK SPACE}") if len(words) <= SHORT else words)


def _numeric(text: str) -> bool:
    return text[:1].isdigit() or text[:1] in "–-−∞<≤≥" or text[:2] == "≈ "
