"""Simulate any method under any delays, on a simulated clock.

::

    durations ──▶ schedule (compiled) ──▶ arrivals ──▶ replay (compiled lanes, or the core's own code) ──▶ Run, Sweep
                  clock (plain: the reference) ▲
                  a recorded Trace ─────────┘
"""

from asyncsgd.core.errors import DivergenceWarning, EdgeWarning, TargetNotReached
from asyncsgd.result import Run
from asyncsgd.simulation import durations
from asyncsgd.simulation._compare import Comparison, compare
from asyncsgd.simulation._simulate import simulate
from asyncsgd.simulation._sweep import Sweep, grid, sweep

__all__ = [
    "Comparison",
    "DivergenceWarning",
    "EdgeWarning",
    "Run",
    "Sweep",
    "TargetNotReached",
    "compare",
    "durations",
    "grid",
    "simulate",
    "sweep",
]
