"""Checks for engines that you write yourself, and deliberate faults to test with.

`check_engine` is the conformance suite of engines. `FaultyTask` is a task whose chosen jobs kill, hang or fail their
workers. To check a task, use `asyncsgd.tasks.check_task`.
"""

from asyncsgd.core.errors import BadEngine
from asyncsgd.testing.bench import Abilities
from asyncsgd.testing.engine import SCENARIOS, check_engine
from asyncsgd.testing.faults import AtJobs, AtRandom, Fault, FaultyTask

__all__ = ["SCENARIOS", "Abilities", "AtJobs", "AtRandom", "BadEngine", "Fault", "FaultyTask", "check_engine"]
