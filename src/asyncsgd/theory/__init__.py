"""The paper's results as functions: pure, each citing its theorem and stating its assumptions."""

from asyncsgd.theory.bounds import Bound, theorem1, theorem1_bounded, theorem2, theorem3, theorem3_bounded
from asyncsgd.theory.limits import Limits, limits
from asyncsgd.theory.speedup import Speedup, speedup

__all__ = [
    "Bound",
    "Limits",
    "Speedup",
    "limits",
    "speedup",
    "theorem1",
    "theorem1_bounded",
    "theorem2",
    "theorem3",
    "theorem3_bounded",
]
