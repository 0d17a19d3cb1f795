"""The hot operation of `asyncsgd.core.vectors`, compiled: the same bits in one pass over memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import DTypeLike

from asyncsgd.compiled.jit import borrowing


@borrowing
def subtract_scaled(x: Any, scale: Any, g: Any, out: Any) -> None:
    """``out[i] = x[i] - scale * g[i]``, rounded twice as in NumPy. ``out`` may be x; all three have one dtype."""
    scale = x.dtype.type(scale)
    if x.ctypes.data == out.ctypes.data:  # two arrays, which a compiler can tell apart, so that it uses vectors
        for i in range(len(out)):
            out[i] -= scale * g[i]
    else:
        for i in range(len(out)):
            out[i] = x[i] - scale * g[i]


def ready(dtype: DTypeLike) -> Any:
    """`subtract_scaled`, loaded for vectors of this dtype, which takes half a second: the first arrival need not wait.

    >>> x, g, out = np.ones(3), np.ones(3), np.empty(3)
    >>> ready(x.dtype)(x, 0.5, g, out)
    >>> out
    array([0.5, 0.5, 0.5])
    """
    x = np.zeros(1, dtype)
    x.flags.writeable = False  # as the server's own views are
    subtract_scaled(x, 0.0, np.zeros(1, dtype), np.zeros(1, dtype))
    return subtract_scaled
