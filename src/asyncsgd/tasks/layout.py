"""What the entries of ``task.lowered`` mean: ``(kind, params, A, B, labels, bounds)``.

========== ================================== =============== ======================================== =========
kind       params                             A               B                                        labels
========== ================================== =============== ======================================== =========
QUADRATIC  noise per coordinate, multiplier   Hessian         -b_i per worker, their mean, then x*     (none)
the others HEADER numbers, the rows' weights  rows of data    A transposed (linear tasks only)         classes
           in f, their offsets (linear tasks)
========== ================================== =============== ======================================== =========

HEADER: ridge, batch (0: every row), f* (0: unknown), classes. bounds: first and one past the last row of worker i at
2i and 2i + 1. Rows of a linear task are scaled so that the slope of the loss of row r is φ(a_r·x + offset_r)·a_r.
"""

from __future__ import annotations

QUADRATIC, LEAST_SQUARES, LOGISTIC, SOFTMAX = 0, 1, 2, 3
RIDGE, BATCH, MINIMUM, CLASSES, HEADER = 0, 1, 2, 3, 4
BLOCK = 64
"""Rows of data worked on together: their lanes fit into the first-level cache."""


def scratch_rows(kind: int, dim: int, classes: int = 0) -> int:
    """How many rows of lanes the kernels need; single lanes are written up to seven beyond the last."""
    if kind == QUADRATIC:
        return 2 * dim
    return max(BLOCK, dim + 1 + classes) + 8
