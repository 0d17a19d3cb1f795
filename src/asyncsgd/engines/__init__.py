"""Where jobs are computed for real: worker processes on this machine, or workers on a Ray cluster."""

from asyncsgd.core.errors import EngineError
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
    "processes",
    "ray",
]
