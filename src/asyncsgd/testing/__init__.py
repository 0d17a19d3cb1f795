"""Checks for parts that you write yourself, and faults on purpose to run them with.

``check_engine`` the conformance suite of engines · ``FaultyTask`` a task that kills, hangs or fails its workers where
it is told to. `asyncsgd.tasks.check_task` checks a task.
"""

from asyncsgd.core.errors import BadEngine
from asyncsgd.testing.bench import Abilities
from asyncsgd.testing.engine import SCENARIOS, check_engine
from asyncsgd.testing.faults import AtJobs, AtRandom, Fault, FaultyTask

__all__ = ["SCENARIOS", "Abilities", "AtJobs", "AtRandom", "BadEngine", "Fault", "FaultyTask", "check_engine"]
