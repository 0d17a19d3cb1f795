"""What the pages of the documentation show: python blocks, what they print, commands."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(r"^(?P<indent> *)```(?P<info>[^\n`]*)\n(?P<body>.*?)^(?P=indent)```$", re.DOTALL | re.MULTILINE)
PRINTS = 'text title="prints"'
"""The info string of a block that shows what the python block before it prints; `...` stands for anything."""
FOR_INSTANCE = 'text title="prints, for instance"'
"""The same where it depends on the machine, for example on who was how fast: only how it starts is compared."""


@dataclass(frozen=True)
class Block:
    """A fenced block: its info string, its text, and the line it begins at."""

    info: str
    text: str
    line: int


def blocks(path: Path) -> list[Block]:
    """The fenced blocks of a page, in order."""
    page = path.read_text(encoding="utf-8")
    return [
        Block(found["info"].strip(), found["body"], page.count("\n", 0, found.start()) + 1)
        for found in FENCE.finditer(page)
    ]


def pages() -> list[Path]:
    """Pages whose python blocks are run: all but the records of decisions, and guides to Flower.

    What needs a cluster stands in ``py`` blocks, which are not run.
    """
    left_out = {DOCS / "guides" / f"{name}.md" for name in ("federated", "flower-deployment", "flower-strategy")}
    return sorted(path for path in set(DOCS.rglob("*.md")) - left_out if path.parent.name != "decisions")


def steps(path: Path) -> list[tuple[Block, Block | None]]:
    """The python blocks of a page, each with the block that shows what it prints, if there is one."""
    found = blocks(path)
    steps = []
    for place, block in enumerate(found):
        if block.info.split(" ")[0] == "python":
            after = found[place + 1] if place + 1 < len(found) else None
            steps.append((block, after if after is not None and after.info in (PRINTS, FOR_INSTANCE) else None))
    return steps


def commands() -> list[tuple[Path, int, str]]:
    """Every `asyncsgd ...` that a block of commands shows, with its page and line; comments and output are left out."""
    found = []
    for path in [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]:
        for block in blocks(path):
            if block.info.split(" ")[0] not in ("bash", "console"):
                continue
            for place, line in enumerate(block.text.splitlines()):
                words = line.strip().removeprefix("$ ")
                if words.startswith("asyncsgd "):
                    found.append((path, block.line + 1 + place, words.split("  #")[0].rstrip()))
    return found
