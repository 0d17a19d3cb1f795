"""The migration page: the asyncsgd versions change fewer than 20 lines, and both sides are run."""

import ast

from docs.pages import DOCS, blocks

PAGE = DOCS / "guides" / "migrate.md"


def script(title: str) -> list[str]:
    [found] = [block for block in blocks(PAGE) if f'title="{title}' in block.info]
    ast.parse(found.text)
    return [line.strip() for line in found.text.splitlines() if line.strip()]


def test_fewer_than_20_lines_are_new():
    for before, after in (("before: one process", "after: two"), ("before: accelerate", "after: python")):
        kept = set(script(before))
        new = [line for line in script(after) if line not in kept]
        assert 5 < len(new) < 20, f"{after}: {len(new)} new lines"


def test_all_scripts_are_run():
    """`test_docs_code` runs blocks that begin with `python`, also the one for Accelerate."""
    scripts = [block for block in blocks(PAGE) if "title=" in block.info and "prints" not in block.info]
    assert len(scripts) == 4
    assert all(block.info.startswith("python ") for block in scripts)
