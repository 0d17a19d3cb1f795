"""Fill the tables of the documentation's page about the claims from the results of a run.

A block of ``docs/measured.md`` lies between ``<!-- claims: NAME -->`` and ``<!-- end of claims -->``. Beside the page
lie the results it was made from, ``measured.json``, which are the ``claims.json`` of that run.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from asyncsgd._files import write_text
from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.experiments import paper_page
from asyncsgd.experiments.common import Claim, Verdict

PAGE, RESULTS = "measured.md", "measured.json"
BLOCK = re.compile(r"(<!-- claims: (\w+) -->\n).*?(<!-- end of claims -->)", re.DOTALL)
PICTURE = re.compile(r"\(images/(claim[\w-]+\.svg)\)")
Row = Mapping[str, Any]
"""A claim as claims.json has it."""
WORDS = ("No claim", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def check(docs: Path, only: str | None) -> None:
    """Raise an error, before anything is measured, if the page cannot be written."""
    if only is not None:
        raise BadParameter("only", only, "leaves claims out, and the page of --docs shows all", "pass one of the two")
    page = docs / PAGE
    if not page.is_file() or not BLOCK.search(page.read_text(encoding="utf-8")):
        raise UsageError(
            f"docs = {str(docs)!r} has no {PAGE} with blocks to fill; pass the docs folder of a checkout of asyncsgd, "
            "or leave --docs out"
        )


def write(found: Sequence[Claim], output: str | Path, docs: Path) -> Path:
    """Fill the page, write the results beside it, replace the pictures that it shows, and return its path."""
    results = paper_page.as_json(found)
    page = docs / PAGE
    text = filled(page.read_text(encoding="utf-8"), json.loads(results))
    write_text(docs / RESULTS, results + "\n")
    write_text(page, text)
    for name in PICTURE.findall(text):
        write_text(docs / "images" / name, (Path(output) / name).read_text(encoding="utf-8"))
    return page


def filled(page: str, rows: Sequence[Row]) -> str:
    """Return the page with every block replaced by what these results give."""
    return BLOCK.sub(lambda block: f"{block[1]}{BLOCKS[block[2]](rows)}\n{block[3]}", page)


def _count(rows: Sequence[Row]) -> str:
    """Return how many claims hold, in one sentence."""
    counts = Counter(row["verdict"] for row in rows)
    parts: list[str] = []
    for verdict in Verdict:
        if many := counts[str(verdict)]:
            words = str(verdict) if many == 1 else str(verdict).replace("holds", "hold").replace("does", "do")
            which = [str(row["number"]) for row in rows if row["verdict"] == str(verdict)]
            parts.append(f"{WORDS[many] if not parts else WORDS[many].lower()} {words} ({', '.join(which)})")
    return "; ".join(parts) + "."


def _verdicts(rows: Sequence[Row]) -> str:
    lines = ["| | The paper | Measured | Verdict |", "|--:|---|---|---|"]
    lines += [
        f"| {row['number']} | {_cell(row['paper'])} | {_cell(row['summary'])} | {row['verdict']} |" for row in rows
    ]
    return "\n".join(lines)


def _refutations(rows: Sequence[Row]) -> str:
    lines = ["| | What would refute the claim |", "|--:|---|"]
    return "\n".join([*lines, *(f"| {row['number']} | {_cell(row['refuted_by'])} |" for row in rows)])


BLOCKS: dict[str, Callable[[Sequence[Row]], str]] = {
    "count": _count,
    "verdicts": _verdicts,
    "refutations": _refutations,
}


def _cell(words: str) -> str:
    """Return text for a cell of a Markdown table: bars are not borders, and τ̄_C does not begin emphasis."""
    return re.sub(r"(?<=[\u0300-\u036f])_", r"\\_", words.replace("|", r"\|").replace("*", r"\*"))
