"""Engines compute jobs for real: in worker processes on this machine, or on a Ray cluster.

``base`` is what every engine implements, ``lifecycle`` decides when a worker is started, killed or given up, ``job``
computes one job in a worker, ``devices`` tells the worker's task which GPU to use, and ``compression`` rounds updates
to 16 bits. ``_processes`` and ``_ray`` are the two engines.
"""

from asyncsgd.core.errors import EngineError
from asyncsgd.core.work import compute_job
from asyncsgd.engines._processes import Processes, processes
from asyncsgd.engines._ray import Group, Ray, ray
from asyncsgd.engines.base import Died, Engine, Failed, Rejected, Report, WorkerPool

__all__ = [
    "Died",
    "Engine",
    "EngineError",
    "Failed",
    "Group",
    "Processes",
    "Ray",
    "Rejected",
    "Report",
    "WorkerPool",
    "compute_job",
    "processes",
    "ray",
]
