"""Tables of measured figures, from the `results.json` of the benchmarks."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

MARK = re.compile(r"<!-- figures: (\w+) -->")


def filled(page: str, benchmarks: Path) -> str:
    """The page with a table where it says ``<!-- figures: NAME -->``."""
    return MARK.sub(lambda mark: table(mark[1], benchmarks / mark[1] / "results.json"), page)


def table(name: str, results: Path) -> str:
    """The table of a benchmark, with the machine it was measured on."""
    if not results.exists():
        return f"*Not measured yet: run `make bench-{name}`.*"
    figures = json.loads(results.read_text(encoding="utf-8"))
    machine = figures["machine"]
    measured = f"Median of {figures['rounds']} rounds on {machine['cores']} cores ({machine['machine']}).\n"
    return "\n".join([*{"simulate": _simulate, "engines": _engines}[name](figures), "", measured])


def _simulate(figures: dict[str, Any]) -> list[str]:
    rows = ["| Ours / theirs | |", "|---|--:|"]
    for part in figures.values():
        for what, value in part.items() if isinstance(part, dict) else ():
            if isinstance(value, list):
                what = re.sub(r" \(at (most|least) [^)]*\)", "", what)
                times = " times as fast" if " / " in what else ""
                rows.append(f"| {what} | {_short(value[0])}{times} |")
    return rows


def _engines(figures: dict[str, Any]) -> list[str]:
    rows: list[str] = []
    titles = {
        "updates": "Updates of a constant gradient, as a share of those of a bare `torch.add` loop on one core",
        "efficiency": "Gradients of a perceptron, as a share of those of the same workers without any server",
    }
    for part, title in titles.items():
        if part not in figures:
            continue
        sizes = figures[part]
        names = [name for name, value in next(iter(sizes.values())).items() if isinstance(value, dict)]
        rows += [f"{title}:", "", "| | " + " | ".join(f"{int(size):,} parameters" for size in sizes) + " |"]
        rows += ["|---|" + "--:|" * len(sizes)]
        for name in names:
            shares = [f"{sizes[size][name]['ratio']:.0%}" if name in sizes[size] else "–" for size in sizes]
            rows.append(f"| {name} | " + " | ".join(shares) + " |")
        rows.append("")
    for what, value in figures.get("replacement", {}).items():
        if what != "wanted_seconds":
            rows.append(f"- {value:.2g} s: {what.removeprefix('seconds_').replace('_', ' ')}")
    return rows


def _short(value: float) -> str:
    return f"{value:.0f}" if value >= 20 or value == int(value) else f"{value:.2g}"
