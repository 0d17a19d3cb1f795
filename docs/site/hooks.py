"""What `mkdocs build` does beyond reading pages: nav of folders, figures of benchmarks, search, check of public names.

Every complaint is a warning of MkDocs, so that `--strict` turns it into a failure.
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
    """In the nav, an entry that ends in ``*.md`` stands for all pages of that folder, in the order of their names."""
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
    """A record of a decision by its file's name, which is short; other pages by their heading."""
    number, _, words = path.stem.partition("-")
    if number.isdigit():
        return f"{number} {words.replace('-', ' ')}"
    heading = next((line for line in path.read_text(encoding="utf-8").splitlines() if line.startswith("# ")), "")
    return heading.removeprefix("# ").strip() or path.stem


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the figures of benchmarks where a page asks for them."""
    return figures.filled(markdown, Path(__file__).parents[2] / "benchmarks")


def on_page_content(html: str, **_: Any) -> str:
    """Docstrings announce code by two colons, of which a reader wants one."""
    return html.replace("::</p>", ":</p>")


def on_post_build(config: Any) -> None:
    """Search works in pages opened by double-click; every public name has a docstring and stands in the reference."""
    index = Path(config.site_dir) / "search" / "search_index.json"
    index.with_suffix(".js").write_text(f"var __index = {index.read_text(encoding='utf-8')}", encoding="utf-8")
    for complaint in public_names.complaints(Path(config.site_dir) / "objects.inv"):
        log.warning(complaint)
