"""From measured durations to advice: would asynchronous SGD help, by how much, with which concurrency and step?

::

    file, trace, numbers ──▶ Fleet ──▶ candidates ──▶ simulated runs ──▶ accuracy (theorems) ──▶ advice
                                                                                                   │
                                                                               terminal, page ◀── Plan
"""

from asyncsgd.planning.advice import Row
from asyncsgd.planning.planner import plan
from asyncsgd.planning.result import Plan

__all__ = ["Plan", "Row", "plan"]
