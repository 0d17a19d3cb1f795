"""Hooks of `mkdocs build`: list folders in the nav, insert benchmark figures, enable search, check public names.

Every problem is logged as a warning of MkDocs, so that `--strict` turns it into a failure.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import figures
import public_names

log = logging.getLogger("mkdocs.hooks.asyncsgd")


def on_config(config: Any) -> Any:
    """Replace each nav entry that ends in ``*.md`` by all pages of its folder, sorted by name."""
    config.nav = _expanded(config.nav, Path(config.docs_dir))
    return config


def _expanded(nav: list[Any], docs: Path) -> list[Any]:
    found: list[Any] = []
    for entry in nav:
        ((title, value),) = entry.items() if isinstance(entry, dict) else ((None, entry),)
        if isinstance(value, list):
            inside = _expanded(value, docs)
            if inside:
                found.append({title: inside})
        elif value.endswith("*.md"):
            found += [{_title(path): path.relative_to(docs).as_posix()} for path in _pages(docs, value)]
        else:
            found.append(entry)
    return found


def _pages(docs: Path, pattern: str) -> list[Path]:
    return sorted(path for path in docs.glob(pattern) if path.name != "README.md")


def _title(path: Path) -> str:
    """Return the nav title: the file name of a decision record, because it is short, or the heading of another page."""
    number, _, words = path.stem.partition("-")
    if number.isdigit():
        return f"{number} {words.replace('-', ' ')}"
    heading = next((line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")), "")
    return heading.removeprefix("# ").strip() or path.stem


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Insert the benchmark tables where a page has a mark for them."""
    return figures.filled(markdown, Path(__file__).parents[2] / "benchmarks")


def on_page_content(html: str, **_: Any) -> str:
    """Replace the double colon, which introduces code in docstrings, by a single one."""
    return html.replace("::</p>", ":</p>")


def on_post_build(config: Any) -> None:
    """Make search work in pages opened by double-click, and warn about public names without docstring or reference."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")
    for complaint in public_names.complaints(Path(config.site_dir) / "objects.inv"):
        log.warning(complaint)
