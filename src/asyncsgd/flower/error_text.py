"""Flower's error codes, which come in place of a reply."""

from __future__ import annotations

from typing import Any

# --------------------------------------------------------------------------------------------------------------
# Words of strangers, made fit for a terminal and a log.


LONGEST = 2000


def clean(words: Any) -> str:
    r"""Printable characters only (no escape sequences), and not too many: the last ones, as tracebacks end well.

    >>> clean("\x1b[2Jgone")
    '?[2Jgone'
    """
    text = str(words)[-LONGEST:]
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


UNDELIVERED = -1
"""Not Flower's but ours: a message that the SuperLink did not take."""
EXPIRED = (UNDELIVERED, 3, 4)
"""Flower's codes for a message, or its reply, that is gone: most often its time-to-live is over."""
OFFLINE = 5
SUPERLINKS = (*EXPIRED, OFFLINE)
"""What a client cannot know of itself: such an error is believed if the SuperLink sent it."""
CODES = {
    0: "an unknown error",
    1: "the ClientApp cannot be loaded",
    2: "the ClientApp raised an exception",
    6: "a mod of the ClientApp refused",
    7: "the app bundle is invalid",
    8: "the ClientApp ended without a reply",
}


def meaning(code: int) -> str:
    """In words.

    >>> meaning(2), meaning(99)
    ('the ClientApp raised an exception', 'error 99')
    """
    return CODES.get(code, f"error {code}")
