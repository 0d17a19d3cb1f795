"""Write the results for readers and for programs: ``index.html`` and ``claims.json`` beside the figures."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from asyncsgd._files import write_text
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
