"""The results for readers and for programs: ``index.html`` and ``claims.json``, and the page of the documentation.

A block of ``docs/measured.md`` lies between ``<!-- claims: NAME -->`` and ``<!-- end of claims -->``. Beside the page
lie the results that it was made from, ``measured.json``, which are the ``claims.json`` of that run.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from asyncsgd._files import write_text
from asyncsgd.core.errors import BadParameter, UsageError
from asyncsgd.experiments.common import Claim, Verdict
from asyncsgd.pages.page import Page

KINDS = {Verdict.HOLDS: "good", Verdict.CORRECTED: "warn"}
"""The colour of a verdict; any other verdict is bad."""

LEAD = (
    "Koloskova, Stich and Jaggi, Sharper Convergence Guarantees for Asynchronous SGD for Distributed and Federated "
    "Learning (NeurIPS 2022): what the paper claims, what we measured, and whether it holds as written. Every number "
    "and every verdict on this page was computed in one run of “asyncsgd paper”."
)

MEANING = (
    "Holds: as written. Holds with a correction: the conclusion stands once a constant, a condition or a range is "
    "fixed, and the section says which. Does not hold as written: the conclusion itself fails."
)


def write(found: Sequence[Claim], output: str | Path) -> Path:
    """Write both files, and return the path of the page."""
    folder = Path(output)
    write_text(folder / "claims.json", as_json(found) + "\n")
    return page(found).write(folder / "index.html")


def as_json(found: Sequence[Claim]) -> str:
    """Return one object per claim; it has an "error" if the claim could not be judged."""
    return json.dumps([_row(claim) for claim in found], indent=2, ensure_ascii=False, allow_nan=False)


def _row(claim: Claim) -> dict[str, Any]:
    names = ("number", "title", "paper", "measured", "summary", "refuted_by", "verdict", "why", "values")
    row = {name: getattr(claim, name) for name in names} | {"figures": [drawing.name for drawing in claim.drawings]}
    return {**row, "error": claim.error} if claim.error else row


def page(found: Sequence[Claim]) -> Page:
    """Return a page with all claims, the verdicts first."""
    sheet = Page("The paper, reproduced", LEAD)
    sheet.section("Verdicts")
    sheet.raw(_summary(found))
    sheet.text(MEANING, "why")
    for claim in found:
        sheet.section(f"{claim.number}. {claim.title}", claim.verdict, kind(claim))
        for label, words in (
            ("The paper says", claim.paper),
            ("Measured", claim.measured),
            ("Why", claim.why),
            ("What would refute it", claim.refuted_by),
        ):
            if words:
                sheet.raw(f"<h3>{label}</h3>")
                sheet.text(words)
        if claim.error:
            sheet.raw(f'<div class="scroll"><pre>{escape(claim.error)}</pre></div>')
        for drawing in claim.drawings:
            sheet.figure(drawing.svg, drawing.caption)
        for table in claim.tables:
            sheet.table(table.headings, table.rows, table.caption)
    return sheet


def kind(claim: Claim) -> str:
    """Return good, warn or bad, which the page and the terminal show as a colour."""
    return KINDS.get(claim.verdict, "bad")


def _summary(found: Sequence[Claim]) -> str:
    rows = "".join(
        f'<tr><td class="n">{claim.number}</td>'
        f'<td><span class="badge {kind(claim)}">{escape(claim.verdict)}</span></td>'
        f'<td class="t"><a href="#s{place}">{escape(claim.title)}</a></td></tr>'
        for place, claim in enumerate(found, start=2)  # this section is the first
    )
    head = "".join(
        f"<th scope=col{css}>{name}</th>" for name, css in (("claim", ' class="n"'), ("verdict", ""), ("about", ""))
    )
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'


PAGE, RESULTS = "measured.md", "measured.json"
BLOCK = re.compile(r"(<!-- claims: (\w+) -->\n).*?(<!-- end of claims -->)", re.DOTALL)
PICTURE = re.compile(r"\(images/(claim[\w-]+\.svg)\)")
Row = Mapping[str, Any]
"""A claim as claims.json has it."""
WORDS = ("No claim", "One", "Two", "Three", "Four", "Five", "Six", "Seven", "Eight", "Nine", "Ten")


def check_docs(docs: Path, only: str | None) -> None:
    """Raise an error, before anything is measured, if the page cannot be written."""
    if only is not None:
        raise BadParameter("only", only, "leaves claims out, and the page of --docs shows all", "pass one of the two")
    page = docs / PAGE
    if not page.is_file() or not BLOCK.search(page.read_text(encoding="utf-8")):
        raise UsageError(
            f"docs = {str(docs)!r} has no {PAGE} with blocks to fill; pass the docs folder of a checkout of asyncsgd, "
            "or leave --docs out"
        )


def write_docs(found: Sequence[Claim], output: str | Path, docs: Path) -> Path:
    """Fill the page, write the results beside it, replace the pictures that it shows, and return its path."""
    results = as_json(found)
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
