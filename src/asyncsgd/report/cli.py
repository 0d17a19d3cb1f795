"""What ``asyncsgd report`` does."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from asyncsgd.report import compose
from asyncsgd.report.page import retitled
from asyncsgd.report.sources import gather


def report(paths: Sequence[Path], output: Path | None, title: str, *, as_json: bool) -> None:
    """Write the page of these runs and say where it is, or print their numbers for a program.

    A folder of ``asyncsgd paper`` has its page already; it may be wanted elsewhere, or under another heading.
    """
    if len(paths) == 1 and (paths[0] / "claims.json").exists() and (paths[0] / "index.html").exists():
        made = _of_paper(paths[0] / "index.html", output, title)
        sys.stdout.write(json.dumps({"page": str(made), "runs": []}, indent=2) + "\n" if as_json else f"Page: {made}\n")
        return
    subjects = gather(list(paths))
    inside = paths[0] if len(paths) == 1 and paths[0].is_dir() else Path()
    page = compose.write(subjects, output or inside / "report.html", title)
    if as_json:
        found = {"page": str(page), "runs": [subject.headline() for subject in subjects]}
        json.dump(found, sys.stdout, indent=2, allow_nan=False)
        sys.stdout.write("\n")
        return
    console = Console(highlight=False)
    for subject in subjects:
        problems = len(subject.diagnosis.problems) if subject.diagnosis else 0
        more = f", {problems} problem{'s' if problems > 1 else ''}" if problems else ""
        words = f"{subject.name}: {subject.trace.iterations:,} updates, {subject.state}{more}"
        console.print(words, markup=False, soft_wrap=True)
    console.print(f"Page: {page}", markup=False, soft_wrap=True)


def _of_paper(page: Path, output: Path | None, title: str) -> Path:
    if output is None and not title:
        return page
    html = page.read_text("utf-8")
    return compose.save(retitled(html, title) if title else html, output or page)
