"""The numba decorators that this package uses."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from typing import Any

import numba


def njit(**options: Any) -> Any:
    """Return numba's decorator, which compiles without a cache if there is no place for one.

    numba stores compiled code beside the source, or else below the user's home. If neither is writable (a read-only
    installation and no home), it raises during the import.
    """

    def compiled(function: Callable[..., Any]) -> Any:
        try:
            return numba.njit(**options)(function)
        except RuntimeError as error:
            if not options.get("cache") or "cannot cache" not in str(error):
                raise
            _warn()
            return numba.njit(**{**options, "cache": False})(function)

    return compiled


@cache
def _warn() -> None:
    warnings.warn(
        "numba has no place to store compiled code, so every start compiles again, for about half a minute; "
        "set NUMBA_CACHE_DIR to a writable directory",
        UserWarning,
        stacklevel=3,
    )


borrowing: Any = njit(cache=True, nogil=True, _nrt=False)
"""For functions that allocate nothing: the caller holds all arrays, so references need no counting.

Counting them costs more than the work where a function gets a tuple of ten arrays (numba issues 2345, 2350).
"""

inlined: Any = njit(cache=True, nogil=True, _nrt=False, error_model="numpy", forceinline=True)
"""The same, always inlined, for the parts of one hot loop: passing a tuple of arrays to a call copies a kilobyte."""
