"""The commands of the deployment guide, taken out of it, so that what is tested is what is written."""

from __future__ import annotations

import re
from pathlib import Path

GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "flower-deployment.md"


def block(name: str, *changes: tuple[str, str]) -> str:
    """The fenced block after ``<!-- tested: name -->``, with names of the test in place of those of the guide."""
    found = re.search(rf"<!-- tested: {name} -->\n```\w+\n(.*?)```", GUIDE.read_text("utf-8"), re.DOTALL)
    assert found, f"the guide has no block {name!r}"
    text = found[1]
    for old, new in changes:
        assert old in text, f"{old!r} is not in the block {name!r} of the guide"
        text = text.replace(old, new)
    return text
