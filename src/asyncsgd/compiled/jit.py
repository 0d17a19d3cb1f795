"""How functions are compiled here."""

from __future__ import annotations

from typing import Any

from numba import njit

borrowing: Any = njit(cache=True, nogil=True, _nrt=False)  # type: ignore[call-overload]
"""For functions that allocate nothing: the caller holds all arrays, so references need no counting.

Counting them costs more than the work where a function gets a tuple of ten arrays (numba issues 2345, 2350).
"""

inlined: Any = njit(cache=True, nogil=True, _nrt=False, error_model="numpy", forceinline=True)  # type: ignore[call-overload]
"""The same for the parts of one hot loop: handing over a tuple of arrays copies a kilobyte if the call stays a call."""
