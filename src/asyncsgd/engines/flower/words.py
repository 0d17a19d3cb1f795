"""Words of strangers, made fit for a terminal and a log."""

from __future__ import annotations

from typing import Any

LONGEST = 2000


def clean(words: Any) -> str:
    r"""Printable characters only (no escape sequences), and not too many: the last ones, as tracebacks end well.

    >>> clean("\x1b[2Jgone")
    '?[2Jgone'
    """
    text = str(words)[-LONGEST:]
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)
