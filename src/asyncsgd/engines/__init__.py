"""Where jobs are computed for real: worker processes on this machine, or workers on a Ray cluster."""

from asyncsgd.core.errors import EngineError
from asyncsgd.engines.base import Crew, Died, Engine, Failed, Rejected, Report
from asyncsgd.engines.processes import Processes, processes
from asyncsgd.engines.ray import Group, Ray, ray

__all__ = [
    "Crew",
    "Died",
    "Engine",
    "EngineError",
    "Failed",
    "Group",
    "Processes",
    "Ray",
    "Rejected",
    "Report",
    "processes",
    "ray",
]
