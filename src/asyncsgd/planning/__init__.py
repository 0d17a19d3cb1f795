"""From measured durations to advice: would asynchronous SGD help, by how much, with which concurrency and step?

::

    file, trace, numbers ──▶ MeasuredWorkers ──▶ candidates ──▶ simulated runs ──▶ accuracy (theorems) ──▶ advice
                                                                                                   │
                                                                               terminal, page ◀── Plan

With a network between the workers and the server, a plan also says how many local steps and which compression to take.
"""

from asyncsgd.planning.advice import Row
from asyncsgd.planning.network import Network, seconds_per_update
from asyncsgd.planning.planner import plan
from asyncsgd.planning.result import Plan

__all__ = ["Network", "Plan", "Row", "plan", "seconds_per_update"]
